"""Places of a tensor: writing at one, and their numbers."""

import contextlib
import contextvars

from keras import ops

_xla_is_off = contextvars.ContextVar("xla_is_off", default=False)


@contextlib.contextmanager
def without_xla():
    """Makes `write_slice` go without XLA where a graph is traced inside.

    `ops.slice_update` is an operation that TensorFlow compiles with XLA
    wherever it runs, in a graph that is not compiled too, and that TensorFlow
    Serving refuses on a CPU unless it is told otherwise. It is the faster one
    for large batches, hence used elsewhere.
    """
    token = _xla_is_off.set(True)
    try:
        yield
    finally:
        _xla_is_off.reset(token)


def numbered(x, axis):
    """Numbers the places along an axis of `x`, from 0: int32 `(M,)`.

    For the steps of decoding. Where the length is not known it is not asked
    for either: in a LiteRT file a range of a length to compute makes every
    tensor after it one that is allocated while the file runs. Then the other
    axes must not be empty.
    """
    if x.shape[axis] is not None:
        return ops.arange(x.shape[axis], dtype="int32")
    place = [0] * len(x.shape)
    place[axis] = slice(None)
    # Not `ones_like`, which asks for the length.
    ones = ops.cast(x[tuple(place)], "int32") * 0 + 1
    return ops.cumsum(ones) - 1


def write_slice(x, position, update):
    """Writes over the positions of axis 2 from `position` on.

    Args:
        x: Tensor of shape `(B, N, L)` or `(B, N, L, H)`.
        position: Scalar int32 tensor.
        update: Tensor like `x` with fewer positions.

    Returns:
        Tensor of the shape of `x`.
    """
    if not _xla_is_off.get():
        start = (0, 0, position, 0)[: len(x.shape)]
        return ops.slice_update(x, start, update)
    end = position + ops.shape(update)[2]
    return ops.concatenate([x[:, :, :position], update, x[:, :, end:]], axis=2)

"""Writing at one position of a tensor."""

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

"""Reading and writing at places in a tensor, without needless operations."""

import keras
import numpy as np
from keras import ops

from keras_transformer.tensorflow_only import indexing
from keras_transformer.tensorflow_only.graphs import is_plain_graph
from keras_transformer.tensorflow_only.indexing import gather


def numbered(x, axis):
    """Numbers the places along an axis of `x`, from 0: int32 `(M,)`.

    For the steps of decoding. An unknown length is not computed: in a LiteRT
    file, a range whose length is computed makes LiteRT allocate every tensor
    after it while the file runs. The other axes must then not be empty.
    """
    if x.shape[axis] is not None:
        return ops.arange(x.shape[axis], dtype="int32")
    place = [0] * len(x.shape)
    place[axis] = slice(None)
    # Not `ones_like`, which computes the length.
    ones = ops.cast(x[tuple(place)], "int32") * 0 + 1
    return ops.cumsum(ones) - 1


def take(x, places, axis=0):
    """Takes the entries at some places of an axis, counted from its start.

    Like `ops.take`, which on TensorFlow also accepts places counted from the
    end, at the cost of seven more operations.
    """
    if keras.backend.backend() == "tensorflow":
        return gather(x, places, axis)
    return ops.take(x, _from_start(places, x.shape[axis]), axis=axis)


def pick(x, places):
    """Picks one entry of each row: `(..., V)` at places `(...)`, to `(...)`.

    Like `ops.take_along_axis`, which on TensorFlow computes all sizes.
    """
    if keras.backend.backend() == "tensorflow":
        last = len(places.shape)
        return gather(x, places, axis=last, batch_dims=last)
    if keras.backend.backend() == "torch":
        # Keras takes places modulo the size there.
        import torch

        places = ops.expand_dims(ops.cast(places, "int64"), -1)
        return ops.squeeze(torch.gather(x, -1, places), -1)
    places = ops.expand_dims(_from_start(places, x.shape[-1]), -1)
    return ops.squeeze(ops.take_along_axis(x, places, axis=-1), -1)


def _from_start(places, size):
    """Moves negative places past the end, where JAX finds NaN.

    Keras on JAX and PyTorch would count them from the end, as if an id of -1
    were the last token.
    """
    return ops.where(places < 0, size, places)


def at_least(x, least):
    """The greater of two integers or tensors of integers, int32.

    Like `ops.maximum`, for which Keras on JAX turns a Python integer into a
    float if `keras.config.floatx()` is "bfloat16".
    """
    return ops.maximum(ops.cast(x, "int32"), ops.cast(least, "int32"))


def at_most(x, most):
    """The lesser of two, like `at_least`."""
    return ops.minimum(ops.cast(x, "int32"), ops.cast(most, "int32"))


def write_slice(x, position, update):
    """Writes over the positions of axis 2 from `position` on.

    Args:
        x: Tensor of shape `(B, N, L)` or `(B, N, L, H)`.
        position: Scalar int32 tensor.
        update: Tensor like `x` with fewer positions.

    Returns:
        Tensor of the shape of `x`.
    """
    if is_plain_graph():
        return indexing.write_slice(x, position, update)
    start = (0, 0, position, 0)[: len(x.shape)]
    if keras.backend.backend() == "jax":  # 0 may be int64 there
        start = [ops.cast(place, "int32") for place in start]
    # PyTorch casts nothing, and Keras's products of float64 are float32 there.
    return ops.slice_update(x, start, ops.cast(update, x.dtype))


def largest(x, k):
    """The `k` largest of each row `(..., M)`, sorted; of equal ones the first.

    Returns:
        Values and int32 places, `(..., k)` each.
    """
    if keras.backend.backend() == "torch":  # its `topk` takes any of equal ones
        places = ops.argsort(-x, axis=-1)[..., :k]
        return ops.take_along_axis(x, places, axis=-1), places
    values, places = ops.top_k(x, k)
    return values, ops.cast(places, "int32")


def take_rows(x, places):
    """Takes rows `(B, k, ...)` of `(B, M, ...)` by their places `(B, k)`.

    In one gather; `ops.take_along_axis` first copies all of `x`.
    """
    if keras.backend.backend() == "tensorflow":
        return gather(x, places, axis=1, batch_dims=1)
    size = ops.shape(x)[1]
    flat = ops.reshape(x, (-1, *ops.shape(x)[2:]))
    first = numbered(places, axis=0) * size
    rows = ops.take(flat, places + ops.expand_dims(first, 1), axis=0)
    # If there are no rows, JAX forgets how many places each has.
    return ops.reshape(rows, (*ops.shape(places), *ops.shape(x)[2:]))


def is_integer_tensor(x):
    """Whether it is an array or tensor of integers."""
    if not hasattr(x, "dtype"):
        return False
    if isinstance(x, np.ndarray):  # strings and objects have no Keras dtype
        return x.dtype.kind in "iu"
    return "int" in keras.backend.standardize_dtype(x.dtype)

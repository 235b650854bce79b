"""Places of a tensor: taking and writing at some, and their numbers."""

import itertools

import keras
from keras import ops

from keras_transformer.tensorflow_only import operations
from keras_transformer.tensorflow_only.graphs import is_plain_graph
from keras_transformer.tensorflow_only.operations import gather
from keras_transformer.tensorflow_only.operations import size


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


def take(x, places, axis=0):
    """Takes what is at some places of an axis, counted from its beginning.

    As `ops.take`, which on TensorFlow counts from the end too, by seven more
    operations each time.
    """
    if keras.backend.backend() == "tensorflow":
        return gather(x, places, axis)
    return ops.take(x, places, axis=axis)


def pick(x, places):
    """Picks one entry of each row: `(..., V)` at places `(...)`, to `(...)`.

    As `ops.take_along_axis`, which on TensorFlow asks for all sizes.
    """
    if keras.backend.backend() == "tensorflow":
        last = len(places.shape)
        return gather(x, places, axis=last, batch_dims=last)
    places = ops.expand_dims(places, -1)
    return ops.squeeze(ops.take_along_axis(x, places, axis=-1), -1)


def at_least(x, least):
    """The greater of two integers or tensors of integers, int32.

    As `ops.maximum`, for which Keras makes a float of a Python integer on JAX
    where `keras.config.floatx()` is "bfloat16".
    """
    return ops.maximum(ops.cast(x, "int32"), ops.cast(least, "int32"))


def at_most(x, most):
    """The lesser of two, as `at_least`."""
    return ops.minimum(ops.cast(x, "int32"), ops.cast(most, "int32"))


def split_rows(x, count):
    """Splits rows into tensors that differ by one row at most.

    Args:
        x: Tensor `(B, ...)`.
        count: Number of tensors, from 1; with more than `B` some are empty.

    Returns:
        A list, of which `join_rows` makes `x` again.
    """
    if count == 1:
        return [x]
    rows = size(x, 0)
    bounds = [rows * place // count for place in range(count + 1)]
    return [x[start:end] for start, end in itertools.pairwise(bounds)]


def join_rows(parts):
    """Joins tensors along the first axis."""
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=0)


def sum_rows(x):
    """Adds up rows `(M, D)`, to `(D,)`."""
    if is_plain_graph():
        # TensorFlow's sum takes longer on a processor.
        ones = ops.ones((1, size(x, 0)), dtype=x.dtype)
        return ops.squeeze(ops.matmul(ones, x), 0)
    return ops.sum(x, axis=0)


def by_part(function, parts, *others):
    """Calls a function with each part of rows, and joins what it returns.

    Args:
        function: Function of a part, and of the same rows of each other.
        parts: Those of something that `split_rows` has split.
        *others: Tensors `(B, ...)`, not split yet.
    """
    others = (split_rows(x, len(parts)) for x in others)
    return join_rows(
        [function(*rows) for rows in zip(parts, *others, strict=True)]
    )


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
        return operations.write_slice(x, position, update)
    start = (0, 0, position, 0)[: len(x.shape)]
    return ops.slice_update(x, start, update)

"""Rows of a tensor: split into parts, joined and added up."""

import itertools

from keras import ops

from keras_transformer.tensorflow_only.graphs import adds_by_products
from keras_transformer.tensorflow_only.indexing import size


def split_rows(x, count):
    """Splits rows into tensors whose sizes differ by at most one row.

    Args:
        x: Tensor `(B, ...)`.
        count: Number of tensors, from 1; with more than `B` some are empty.

    Returns:
        A list from which `join_rows` makes `x` again.
    """
    if count == 1:
        return [x]
    rows = size(x, 0)
    bounds = [rows * place // count for place in range(count + 1)]
    return [x[start:end] for start, end in itertools.pairwise(bounds)]


def join_rows(parts):
    """Joins tensors along the first axis."""
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=0)


def by_part(function, parts, *others):
    """Calls a function with each part of rows, and joins what it returns.

    Args:
        function: Function of a part, and of the same rows of each of `others`.
        parts: From `split_rows`.
        *others: Tensors `(B, ...)`, not split yet.
    """
    others = (split_rows(x, len(parts)) for x in others)
    return join_rows(
        [function(*rows) for rows in zip(parts, *others, strict=True)]
    )


def sum_rows(x):
    """Adds up rows `(M, D)`, to `(D,)`."""
    if adds_by_products():
        ones = ops.ones((1, size(x, 0)), dtype=x.dtype)
        return ops.squeeze(ops.matmul(ones, x), 0)
    return ops.sum(x, axis=0)

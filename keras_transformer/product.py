"""Logits that know what they are the product of.

The gradient of a loss with respect to logits `x E^T` is as large as they are,
`(B, T, V)`. A training step asks for those of `x` and `E` alone, which the
loss can compute without it. Keras hands losses and metrics nothing but logits,
so they carry `x` and `E` to the loss as they carry their mask, and what the
loss has found to metrics. Where a step computes a batch in parts, they carry
the logits of each, and are joined only if something else looks at them.
"""

import contextlib
from typing import Any
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.rows import join_rows


class Product(NamedTuple):
    """What logits are the product of.

    Attributes:
        logits: They themselves, as they were computed.
        vectors: Float tensor, as many axes, the last `D` wide.
        embeddings: Float tensor `(V, D)`, of the same dtype.
        weight: What the embeddings were cast from: the variable, or what
            `TokenEmbedding.one_gradient` passes on.
    """

    logits: Any
    vectors: Any
    embeddings: Any
    weight: Any


def keep_product(logits, vectors, embeddings, weight):
    """Notes on logits that they are `vectors embeddings^T`.

    Not in float16, whose range is too small for probabilities, and only on
    TensorFlow: XLA makes one pass over memory of what JAX computes with the
    logits.

    Args:
        logits: Float tensor, the last axis `V` wide.
        vectors: As for `Product`.
        embeddings: As for `Product`.
        weight: As for `Product`.
    """
    dtype = keras.backend.standardize_dtype(logits.dtype)
    is_wide = dtype in ("float32", "bfloat16")
    if is_wide and keras.backend.backend() == "tensorflow":
        logits._kept_product = (vectors, embeddings, weight)


def join_logits(parts):
    """Makes logits `(B, T, V)` of those of the parts of a batch."""
    logits = join_rows(parts)
    if len(parts) > 1:
        logits._parts = tuple(parts)
    return logits


def parts_of(logits):
    """Returns what logits were joined of, or they themselves."""
    return getattr(logits, "_parts", (logits,))


@contextlib.contextmanager
def offered_products(logits):
    """Lets a loss leave out the gradient of logits, inside the context.

    Nothing is offered where logits are no products, or were changed.
    """
    parts = parts_of(logits)
    if not all(hasattr(part, "_kept_product") for part in parts):
        yield
        return
    logits._offered_products = [
        Product(part, *part._kept_product) for part in parts
    ]
    try:
        yield
    finally:
        del logits._offered_products


def cast_products(logits, dtype):
    """Casts logits, which go on offering what they offered.

    A loss of Keras casts them before it calls what computes it.
    """
    cast = ops.cast(logits, dtype)
    for name in ("_keras_mask", "_offered_products"):
        if hasattr(logits, name):
            setattr(cast, name, getattr(logits, name))
    return cast


def products_of(logits):
    """Returns the `Product` of each part, if they are offered, or `None`."""
    return getattr(logits, "_offered_products", None)


def keep_log_normalizers(logits, log_normalizers):
    """Notes on logits `(B, T, V)` their `logsumexp` `(B, T)`."""
    logits._log_normalizers = log_normalizers


def log_normalizers_of(logits):
    """Returns what a loss has noted, or `None`; without its gradient."""
    parts = parts_of(logits)
    if not all(hasattr(part, "_log_normalizers") for part in parts):
        return None
    return join_rows([part._log_normalizers for part in parts])

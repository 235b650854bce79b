"""Logits that know what they are the product of.

The gradient of a loss with respect to logits `x E^T` is as large as they are,
`(B, T, V)`. A training step asks for those of `x` and `E` alone, which the
loss can compute without it. Keras hands losses and metrics nothing but logits,
so they carry `x` and `E` to the loss as they carry their mask, and what the
loss has found to metrics.
"""

import contextlib
from typing import Any
from typing import NamedTuple

import keras
from keras import ops


class Product(NamedTuple):
    """What logits are the product of.

    Attributes:
        logits: They themselves, as they were computed.
        vectors: Float tensor, as many axes, the last `D` wide.
        embeddings: Float tensor `(V, D)`, of the same dtype.
        weight: The variable that the embeddings are, perhaps of another.
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


@contextlib.contextmanager
def offered_product(logits):
    """Lets a loss leave out the gradient of logits, inside the context.

    Nothing is offered where logits are no product, or one that was changed.
    """
    if not hasattr(logits, "_kept_product"):
        yield
        return
    logits._offered_product = Product(logits, *logits._kept_product)
    try:
        yield
    finally:
        del logits._offered_product


def cast_product(logits, dtype):
    """Casts logits, which go on offering what they offered.

    A loss of Keras casts them before it calls what computes it.
    """
    cast = ops.cast(logits, dtype)
    for name in ("_keras_mask", "_offered_product"):
        if hasattr(logits, name):
            setattr(cast, name, getattr(logits, name))
    return cast


def product_of(logits):
    """Returns the `Product` that is offered, or `None`."""
    return getattr(logits, "_offered_product", None)


def keep_log_normalizers(logits, log_normalizers):
    """Notes on logits `(B, T, V)` their `logsumexp` `(B, T)`."""
    logits._log_normalizers = log_normalizers


def log_normalizers_of(logits):
    """Returns what a loss has noted, or `None`; without its gradient."""
    return getattr(logits, "_log_normalizers", None)

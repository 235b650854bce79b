"""Logits that carry the factors they are the product of.

The gradient of a loss with respect to logits `x E^T + b` is as large as the
logits, `(B, T, V)`. A training step needs only the gradients of `x`, `E` and
`b`, which the loss can compute without it. Keras passes only logits to losses
and metrics, so the logits carry `x`, `E` and `b` to the loss, as they carry
their mask, and carry to the metrics what the loss has computed. If a step
computes a batch in parts, they carry the logits of each part, which are joined
only if something else reads them.
"""

import contextlib
from typing import Any
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.tensors.rows import join_rows


class Product(NamedTuple):
    """The factors of logits.

    Attributes:
        logits: The logits themselves, as they were computed.
        vectors: Float tensor, as many axes, the last `D` wide.
        embeddings: Float tensor `(V, D)`, of the same dtype.
        weight: What the embeddings were cast from: the variable, or what
            `TokenEmbedding.one_gradient` passes on.
        bias: Variable `(V,)` that was added to the product, or `None`.
    """

    logits: Any
    vectors: Any
    embeddings: Any
    weight: Any
    bias: Any = None


def keep_product(logits, vectors, embeddings, weight):
    """Records on logits that they are `vectors embeddings^T`.

    Not in float16, whose range is too small for probabilities, and only on
    TensorFlow: on JAX, XLA fuses what is computed with the logits into one pass
    over memory.

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


def add_bias(logits, bias):
    """Adds a bias `(V,)` to logits, which go on carrying their factors."""
    shifted = logits + ops.cast(bias, logits.dtype)
    if hasattr(logits, "_kept_product"):
        shifted._kept_product = (*logits._kept_product, bias)
    return shifted


def join_logits(parts):
    """Makes the logits `(B, T, V)` of a batch from those of its parts."""
    logits = join_rows(parts)
    if len(parts) > 1:
        logits._parts = tuple(parts)
    return logits


def parts_of(logits):
    """Returns the parts that logits were joined from, or the logits."""
    return getattr(logits, "_parts", (logits,))


@contextlib.contextmanager
def offered_products(logits):
    """Lets a loss skip the gradient of logits, inside the context.

    Has no effect on logits that are not a product, or were changed.
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


def cast_logits(logits, dtype):
    """Casts logits without losing the factors they carry.

    A Keras loss casts its inputs before it calls `call`.
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
    """Records on logits `(B, T, V)` their `logsumexp` `(B, T)`."""
    logits._log_normalizers = log_normalizers


def log_normalizers_of(logits):
    """Returns what a loss has recorded, without gradient, or `None`."""
    parts = parts_of(logits)
    if not all(hasattr(part, "_log_normalizers") for part in parts):
        return None
    return join_rows([part._log_normalizers for part in parts])

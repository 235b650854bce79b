"""Probabilities and the most probable tokens, from logits."""

import numpy as np
from keras import ops

from keras_transformer.tensors.slices import largest
from keras_transformer.tensors.slices import pick
from keras_transformer.tensors.slices import take_rows

# Tokens of which `top_k` takes the maximum first.
CHUNK = 64


def log_normalizer(logits):
    """Computes `logsumexp` `(..., 1)` of logits `(..., V)`.

    The log-probability of a token is its logit minus this. Computed from the
    softmax, which every engine computes in one pass: the largest probability
    is at least `1 / V`, so its logarithm is safe.
    """
    highest = ops.max(logits, axis=-1, keepdims=True)
    shares = ops.softmax(logits, axis=-1)
    return highest - ops.log(ops.max(shares, axis=-1, keepdims=True))


def log_probabilities(logits, token_ids):
    """Log-probabilities of tokens `(B, T)` under logits `(B, T, V)`."""
    return pick(logits, token_ids) - ops.squeeze(log_normalizer(logits), 2)


def top_k(x, k):
    """Finds the `k` largest of each row `(B, W, V)`, sorted.

    Looks at the maximum of each chunk first: the `k` largest are in the `k`
    chunks with the largest maxima. `ops.top_k` alone would sort whole
    vocabularies on XLA.

    Returns:
        Values and int32 places, `(B, W, k)` each.
    """
    size = x.shape[-1]
    if size < 4 * k * CHUNK:
        return largest(x, k)
    shape = ops.shape(x)[:-1]
    num_chunks = -(-size // CHUNK)
    rest = num_chunks * CHUNK - size
    if rest:
        x = ops.pad(x, ((0, 0), (0, 0), (0, rest)), constant_values=-np.inf)
    chunks = ops.reshape(x, (-1, num_chunks, CHUNK))
    _, best = largest(ops.max(chunks, axis=-1), k)
    candidates = take_rows(chunks, best)  # (B W, k, CHUNK)
    values, order = largest(ops.reshape(candidates, (-1, k * CHUNK)), k)
    places = take_rows(best, order // CHUNK) * CHUNK + order % CHUNK
    return ops.reshape(values, (*shape, k)), ops.reshape(places, (*shape, k))

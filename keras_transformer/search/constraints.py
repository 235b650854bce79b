"""Constraints of a search, on the logits of what may follow."""

import keras
import numpy as np
from keras import ops

from keras_transformer.search.logits import log_normalizer
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.tensorflow_only.graphs import is_litert_graph
from keras_transformer.tensors.slices import at_least
from keras_transformer.tensors.slices import numbered
from keras_transformer.tensors.slices import take

# Added to the logit of a token that must not be chosen. Finite, so that sums
# over a target stay finite; far below any real logit.
IMPOSSIBLE = -1e9

# The largest logit, or score with one, of a token that was forbidden.
MOST_IMPOSSIBLE = IMPOSSIBLE / 2

# Up to this size of n-grams, a graph compares their tokens without a loop.
MOST_UNROLLED = 8

# In place of ids: what any token is, and what none is.
ANY_TOKEN = -1
NO_TOKEN = -2

# How far below the best a forced token counts at most, in nats.
MOST_COST = 1e2


def is_possible(logits):
    """Whether logits, or scores with them, are of what may be chosen."""
    return ops.greater(logits, MOST_IMPOSSIBLE)


def scale_used(logits, target_ids, penalty):
    """Multiplies the log-probabilities of tokens that the targets have."""
    normalizer = log_normalizer(logits)
    scaled = (logits - normalizer) * penalty + normalizer
    return ops.where(_marked(target_ids, logits.shape[-1]), scaled, logits)


def block_ngrams(logits, target_ids, position, size):
    """Forbids tokens that would complete an n-gram a second time.

    The last `size - 1` tokens are compared with those before each earlier
    token; where they are the same, that token may not follow now.
    """
    longest = target_ids.shape[2]
    if longest is not None and size > longest:
        return logits  # no target holds one, let alone two
    ends = numbered(target_ids, axis=2)  # the last token of an n-gram
    same = ops.logical_and(
        ops.greater_equal(ends, size - 1), ops.less(ends, position)
    )  # (T,)

    def compared(back, same):
        place = at_least(position - back, 0)
        last = take(target_ids, place, axis=2)  # (B, W)
        # Not `ops.roll`, for which LiteRT has no operation.
        before = take(target_ids, at_least(ends - back, 0), axis=2)
        return back + 1, ops.logical_and(
            same, ops.equal(before, ops.expand_dims(last, 2))
        )

    back = 1
    while back < min(size, MOST_UNROLLED):
        back, same = compared(back, same)
    if size > MOST_UNROLLED:
        size = min(size, 2**31 - 1)
        _, same = ops.while_loop(
            lambda back, same: ops.logical_and(back < size, ops.any(same)),
            compared,
            (ops.convert_to_tensor(back, dtype="int32"), same),
        )
    blocked = ops.where(same, target_ids, PAD_TOKEN_ID)
    return ops.where(_marked(blocked, logits.shape[-1]), IMPOSSIBLE, logits)


def block_sequences(logits, target_ids, position, sequences):
    """Forbids tokens that would complete one of the sequences.

    Args:
        logits: Float32 tensor `(B, W, V)`.
        target_ids: Int32 tensor `(B, W, T)`, chosen so far, then padding.
        position: How many were chosen, scalar int32 tensor.
        sequences: Tuples of one id or more.
    """
    longest = target_ids.shape[2]
    if longest is not None:  # no target holds a longer one
        sequences = [ids for ids in sequences if len(ids) <= longest]
    if not sequences:
        return logits
    longest = max(map(len, sequences))
    # Right-aligned; anything may be before the first id of a shorter one.
    table = np.full((len(sequences), longest), ANY_TOKEN, "int32")
    for row, ids in zip(table, sequences, strict=True):
        row[longest - len(ids) :] = ids
    is_begun = True
    # Unrolled: sequences are those of words, not of thousands of ids.
    for back in range(1, longest):
        before = take(target_ids, at_least(position - back, 0), axis=2)
        before = ops.where(ops.less(position, back), NO_TOKEN, before)
        before = ops.expand_dims(before, 2)  # (B, W, 1)
        needed = table[:, -1 - back]  # (M,)
        same = ops.logical_or(ops.equal(before, needed), needed == ANY_TOKEN)
        is_begun = ops.logical_and(is_begun, same)  # (B, W, M)
    last_ids = ops.add(ops.zeros_like(target_ids[:, :, :1]), table[:, -1])
    blocked = ops.where(is_begun, last_ids, PAD_TOKEN_ID)
    return ops.where(_marked(blocked, logits.shape[-1]), IMPOSSIBLE, logits)


def force_tokens(logits, token_ids):
    """Keeps, of logits `(B, W, V)`, only those of one token `(B, 1, 1)`.

    The token is forced however improbable it is, but its cost is capped, so
    that later tokens still decide between hypotheses.
    """
    vocabulary = ops.arange(logits.shape[-1], dtype="int32")
    least = ops.max(logits, axis=-1, keepdims=True) - MOST_COST
    return ops.where(
        ops.equal(vocabulary, token_ids),
        ops.maximum(logits, least),
        IMPOSSIBLE,
    )


def over_tokens(x):
    """Adds axes to `(B,)`, which then broadcasts to `(B, W, V)`."""
    return ops.reshape(x, (-1, 1, 1))


def _marked(token_ids, vocabulary_size):
    """Marks the tokens among `(B, W, T)` in `(B, W, V)`, bool.

    Padding is marked as well, but no model lets a search choose it.
    """
    shape = ops.shape(token_ids)
    # Pairs, as one index for both would pass 2^31 in large batches; TensorFlow
    # makes one of them, in their dtype. LiteRT has none of 64 bits.
    is_tensorflow = keras.backend.backend() == "tensorflow"
    is_wide = is_tensorflow and not is_litert_graph()
    dtype = "int64" if is_wide else "int32"
    ids = ops.cast(ops.reshape(token_ids, (-1, shape[2])), dtype)
    rows = ops.arange(shape[0] * shape[1], dtype=dtype)
    places = ops.stack([ids * 0 + ops.expand_dims(rows, 1), ids], axis=2)
    marks = ops.scatter(
        ops.reshape(places, (-1, 2)),
        ops.ones_like(ops.reshape(ids, (-1,)), dtype="float32"),
        (shape[0] * shape[1], vocabulary_size),
    )
    marks = ops.reshape(marks, (shape[0], shape[1], vocabulary_size))
    return ops.greater(marks, 0)

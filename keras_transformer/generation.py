"""The methods `generate`, `score` and `align` of a model, on arrays.

Ids are checked and padded to the sizes that functions are compiled for; the
results are cut back.
"""

import bisect
import copy
import functools
import numbers

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_as_many
from keras_transformer.checks import check_choice
from keras_transformer.checks import check_flag
from keras_transformer.checks import check_ids
from keras_transformer.checks import check_integer
from keras_transformer.checks import check_padding_last
from keras_transformer.decoding import FEWEST_COMPILED
from keras_transformer.decoding import DecodingLoop
from keras_transformer.lengths import check_length
from keras_transformer.lengths import check_limits
from keras_transformer.lengths import check_prefix_lengths
from keras_transformer.lengths import default_max_length
from keras_transformer.lengths import within_model
from keras_transformer.masking import padding_mask
from keras_transformer.search import log_probabilities
from keras_transformer.search import wrap_int32
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.tensorflow_only.graphs import jit

# Functions are compiled for lengths that are a multiple of this, in tokens,
# rather than for every length.
LENGTH_STEP = 16


def generate(
    model,
    source_ids,
    search,
    min_length,
    max_length,
    target_prefix_ids,
    return_scores,
    return_token_scores,
    return_attention,
    jit_compile,
):
    """Translates ids to ids, as `Transformer.generate` says."""
    check_flag(
        return_scores=return_scores,
        return_token_scores=return_token_scores,
        return_attention=return_attention,
    )
    inputs = _checked_inputs(
        model, source_ids, search, min_length, max_length, target_prefix_ids
    )
    rows = len(inputs["source_ids"])
    jit_compile = _jit_or_default(jit_compile)
    capacity = None
    if jit_compile and max_length is not None:
        capacity = length_for(within_model(max_length, model))
    # The compiled function is kept, and the user may change the search.
    search = _own_copy(search)
    found = _decoded(
        DecodingLoop(
            model, search, capacity, return_scores or return_token_scores
        ),
        _filled_up(inputs, jit_compile, model.max_length),
        jit_compile,
    )
    target_ids, scores, token_scores = (x[:rows] for x in found)
    target_ids = _cut(target_ids)
    _check_numbers(model, inputs, target_ids, scores)
    num_hypotheses, longest = target_ids.shape[1:]
    results = [target_ids]
    if return_scores:
        results.append(scores)
    if return_token_scores:
        results.append(token_scores[:, :, :longest])
    if return_attention:
        source = inputs["source_ids"]
        pairs = {
            "source_ids": np.repeat(source, num_hypotheses, axis=0),
            "target_ids": target_ids.reshape((rows * num_hypotheses, longest)),
        }
        last = len(model.decoder.layers) - 1
        attention = _attention(model, pairs, last, jit_compile)
        attention = attention.reshape(
            (rows, num_hypotheses, longest, source.shape[1])
        )
        results.append(_widened(attention, np.shape(source_ids)[1]))
    if search.num_hypotheses == 1:
        results = [x[:, 0] for x in results]
    return tuple(results)


def score(model, source_ids, target_ids, jit_compile):
    """Computes how probable targets are, as `Transformer.score` says."""
    inputs = _checked_pairs(model, source_ids, target_ids)
    rows, length = inputs["target_ids"].shape
    given_length = np.shape(target_ids)[1]
    jit_compile = _jit_or_default(jit_compile)
    token_scores = model.compiled_functions.run(
        ("score",),
        functools.partial(_token_scores, model),
        _filled_up(inputs, jit_compile, model.max_length),
        jit_compile,
    )[:rows, :length]
    sources, targets = (
        np.sum(ids != PAD_TOKEN_ID, axis=1) for ids in inputs.values()
    )
    # What `generate` says of a source without tokens: its target has none.
    for row in np.flatnonzero(sources == 0):
        target = inputs["target_ids"][row, : targets[row]]
        is_empty = [*target] in ([], [model.end_token_id])
        token_scores[row, : len(target)] = 0.0 if is_empty else -np.inf
    token_scores = _widened(token_scores, given_length)
    return token_scores, np.sum(token_scores, axis=1)


def align(model, source_ids, target_ids, layer, jit_compile):
    """Computes what targets attend to, as `Transformer.align` says."""
    inputs = _checked_pairs(model, source_ids, target_ids)
    num_layers = len(model.decoder.layers)
    check_integer(layer=layer)
    check_choice(range(-num_layers, num_layers), layer=layer)
    layer %= num_layers
    weights = _attention(model, inputs, layer, _jit_or_default(jit_compile))
    missing = np.shape(target_ids)[1] - weights.shape[1]
    weights = np.pad(weights, [(0, 0), (0, missing), (0, 0)])
    return _widened(weights, np.shape(source_ids)[1])


def row_counts(most: int) -> list[int]:
    """The numbers of rows that functions are compiled for: `2^n` and `3 2^n`.

    Args:
        most: Number of rows for which the last one must be enough.

    Example:
    >>> row_counts(9)
    [0, 1, 2, 3, 4, 6, 8, 12]
    """
    powers = [2**n for n in range(most.bit_length() + 1)]
    counts = sorted([0, *powers, *(3 * power for power in powers)])
    return counts[: bisect.bisect_left(counts, most) + 1]


def length_for(length):
    """Rounds a length up to one of those that functions are compiled for.

    Args:
        length: An integer or a tensor, in tokens.

    Example:
    >>> length_for(17)
    32
    """
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def _checked_inputs(
    model, source_ids, search, min_length, max_length, target_prefix_ids
):
    """What `DecodingLoop` starts from, as arrays."""
    source_ids = _checked_ids(
        model, "source_ids", source_ids, model.source_vocabulary_size
    )
    check_limits(min_length, max_length)
    search.check_vocabulary(
        model.vocabulary_size, never=(PAD_TOKEN_ID, model.start_token_id)
    )
    rows = len(source_ids)
    inputs = {"source_ids": source_ids}
    if max_length is not None:
        limit = within_model(max_length, model)
        inputs["max_lengths"] = np.full((rows,), limit, "int32")
    if min_length:
        inputs["min_lengths"] = np.full((rows,), min_length, "int32")
    if target_prefix_ids is not None:
        inputs["target_prefix_ids"] = _checked_prefix(
            model, target_prefix_ids, source_ids, max_length
        )
    if search.seed is not None:
        inputs["seed"] = np.full((rows,), wrap_int32(search.seed), "int32")
    return inputs


def _checked_prefix(model, target_prefix_ids, source_ids, max_length):
    prefix_ids = check_ids(
        "target_prefix_ids", target_prefix_ids, model.vocabulary_size
    )
    check_as_many(target_prefix_ids=prefix_ids, source_ids=source_ids)
    check_padding_last("target_prefix_ids", prefix_ids)
    _check_start_and_end(model, "target_prefix_ids", prefix_ids)
    lengths = np.sum(prefix_ids != PAD_TOKEN_ID, axis=1)
    source_lengths = np.sum(source_ids != PAD_TOKEN_ID, axis=1)
    check_prefix_lengths(
        lengths,
        source_lengths,
        max_length,
        model,
        describe="target_prefix_ids[{}]".format,
    )
    # That of an empty source is not used, and may be longer than any target.
    has_source = np.expand_dims(source_lengths > 0, 1)
    return _cut(np.where(has_source, prefix_ids, PAD_TOKEN_ID))


def _checked_pairs(model, source_ids, target_ids):
    source_ids = _checked_ids(
        model, "source_ids", source_ids, model.source_vocabulary_size
    )
    target_ids = _checked_ids(
        model, "target_ids", target_ids, model.vocabulary_size
    )
    check_as_many(source_ids=source_ids, target_ids=target_ids)
    _check_start_and_end(model, "target_ids", target_ids)
    return {"source_ids": source_ids, "target_ids": target_ids}


def _checked_ids(model, name, ids, vocabulary_size):
    """Ids as an array, without the columns that are padding in all rows."""
    ids = check_ids(name, ids, vocabulary_size)
    check_padding_last(name, ids)
    ids = _cut(ids)
    check_length(name, ids, model.max_length)
    return ids


def _check_start_and_end(model, name, ids):
    """Raises `ValueError` if targets have a start, or more after their end."""
    starts = np.any(ids == model.start_token_id, axis=1)
    if np.any(starts):
        raise ValueError(
            f"`{name}` must be without the start token, which the model adds. "
            f"Received: row {np.argmax(starts)} with id {model.start_token_id}."
        )
    ends = ids[:, :-1] == model.end_token_id
    goes_on = np.any(ends & (ids[:, 1:] != PAD_TOKEN_ID), axis=1)
    if np.any(goes_on):
        raise ValueError(
            f"`{name}` must have nothing after the end token, "
            f"{model.end_token_id}. Received: more in row {np.argmax(goes_on)}."
        )


def _check_numbers(model, inputs, target_ids, scores):
    """Raises `ValueError` if a search found nothing as logits were NaN.

    Of NaN a search makes targets without a score, or without an end: of no
    tokens, or with padding where the next one would be.
    """
    source_ids = inputs["source_ids"]
    lengths = np.sum(source_ids != PAD_TOKEN_ID, axis=1)
    limits = inputs.get("max_lengths", default_max_length(lengths))
    limits = np.minimum(limits, model.max_length or limits)
    # With room for an end token.
    targets = np.pad(target_ids[:, 0], ((0, 0), (0, 1)))
    counts = np.argmax(targets == PAD_TOKEN_ID, axis=1)  # until padding
    last = targets[np.arange(len(targets)), counts - 1]
    has_ended = (last == model.end_token_id) | (counts == limits)
    found = np.isfinite(scores[:, 0]) & has_ended
    rows = np.flatnonzero((lengths > 0) & ~found)
    if len(rows) == 0:
        return
    # Constraints too may have left no tokens, and a search of one's own
    # anything: so the model says what it computes there.
    targets, counts = targets[rows], counts[rows]
    is_before = np.arange(targets.shape[1]) < counts[:, np.newaxis]
    targets = np.where(is_before, targets, PAD_TOKEN_ID)
    targets[np.arange(len(rows)), counts] = model.end_token_id
    _, scores_of_ends = score(model, source_ids[rows], _cut(targets), False)
    rows = rows[np.isnan(scores[rows, 0]) | np.isnan(scores_of_ends)]
    if len(rows):
        raise ValueError(
            "The logits of a model must be numbers. Received: NaN for row "
            f"{rows[0]}. Its weights are not finite, or its numbers too large "
            f"for its dtype, {model.compute_dtype}."
        )


def _cut(ids):
    """Drops the last columns that are padding in all rows."""
    used = np.sum(ids != PAD_TOKEN_ID, axis=-1)
    return ids[..., : np.max(used, initial=0)]


def _widened(x, length):
    """Adds zeros to the last axis, up to a length."""
    missing = length - x.shape[-1]
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])


def _jit_or_default(jit_compile):
    if jit_compile is None:
        return keras.backend.backend() == "jax"
    check_flag(jit_compile=jit_compile)
    return jit_compile


def _filled_up(inputs, to_few_shapes, max_length):
    """Adds rows and columns of padding.

    At least one column: JAX cannot split the heads of an empty tensor. With
    `to_few_shapes`, to a number of rows from `row_counts`, and of columns from
    `length_for`.
    """
    filled = {}
    for name, x in inputs.items():
        wanted = [len(x), *(max(size, 1) for size in x.shape[1:])]
        if to_few_shapes:
            wanted[0] = row_counts(len(x))[-1]
            for axis, size in enumerate(wanted[1:], 1):
                size = length_for(size)
                wanted[axis] = min(size, max_length or size)
        filled[name] = np.pad(
            x,
            [
                (0, size - had)
                for size, had in zip(wanted, x.shape, strict=True)
            ],
        )
    return filled


def _decoded(loop, inputs, jit_compile):
    """Runs a compiled `DecodingLoop`: arrays to arrays."""
    model, options = loop.model, {**vars(loop.search)}
    if "seed" in inputs:  # one function for all seeds
        options.pop("seed", None)
    key = (
        type(loop.search),
        _key_of(options),
        loop.capacity,
        loop.needs_scores,
    )
    # A batch too small to shrink is compiled as one loop, without segments.
    rows = len(inputs["source_ids"])
    is_small = jit_compile and 0 < rows < 2 * FEWEST_COMPILED
    if is_small or keras.backend.backend() != "tensorflow":
        return model.compiled_functions.run(
            ("whole", *key), loop.whole, inputs, jit_compile
        )
    # Compiles its parts by itself.
    in_segments = functools.partial(
        loop.in_segments, compile_function=jit if jit_compile else None
    )
    return model.compiled_functions.run(
        ("in_segments", *key, jit_compile), in_segments, inputs, False
    )


def _own_copy(search):
    """Copies a search and its data; other objects stay the same."""

    def own(value):
        if type(value) is dict:
            return {name: own(x) for name, x in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(own, value))
        is_data = isinstance(value, np.ndarray) and not value.dtype.hasobject
        return value.copy() if is_data else value

    search = copy.copy(search)
    vars(search).update(own(vars(search)))
    return search


def _key_of(value):
    """Tells options of searches apart: data by value, objects by identity."""
    if isinstance(value, dict):
        return dict, *((name, _key_of(x)) for name, x in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), *map(_key_of, value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    if value is None or isinstance(value, (str, bytes, numbers.Number)):
        return repr(value)
    return _Identity(value), repr(value)


class _Identity:
    """Equal to those of the same object, which it keeps alive."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self):
        return id(self.value)


def _attention(model, inputs, layer, jit_compile):
    """Computes weights `(B, T, S)` of ids, arrays to arrays."""
    rows, length = inputs["target_ids"].shape
    source_length = inputs["source_ids"].shape[1]
    weights = model.compiled_functions.run(
        ("attention", layer),
        functools.partial(_mean_attention, model, layer=layer),
        _filled_up(inputs, jit_compile, model.max_length),
        jit_compile,
    )
    return weights[:rows, :length, :source_length]


def _token_scores(model, inputs):
    """Log-probabilities `(B, T)` of target ids, each given those before."""
    target_ids = inputs["target_ids"]
    logits = model({**inputs, "target_ids": model.decoder_inputs(target_ids)})
    logits = ops.cast(logits, "float32")
    scores = log_probabilities(logits, target_ids)
    return ops.where(padding_mask(target_ids), scores, 0.0)


def _mean_attention(model, inputs, layer):
    """Weights `(B, T, S)` of a decoder layer, mean over its heads."""
    source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
    weights = model.cross_attention(
        {**inputs, "target_ids": model.decoder_inputs(target_ids)}
    )[layer]
    real = ops.logical_and(
        ops.expand_dims(padding_mask(target_ids), 2),
        ops.expand_dims(padding_mask(source_ids), 1),
    )
    return ops.where(real, ops.mean(weights, axis=1), 0.0)

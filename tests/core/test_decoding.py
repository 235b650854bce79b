"""Decoding token by token equals decoding the whole, however it is run."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt

from .compiled import loops_in_python
from .copying import END
from .copying import START
from .layers import D
from .layers import F
from .layers import N
from .layers import S
from .layers import T
from .layers import V

SIZES = {
    "num_layers": 1,
    "num_heads": N,
    "hidden_dim": D,
    "intermediate_dim": F,
}
MODELS = {
    "paper": {},
    "pre_norm": {"normalize_first": True},
    "learned": {"positional_encoding": "learned", "max_length": 67},
    "concatenated": {"positional_encoding": "concatenated"},
    "untied": {"tie_source": False, "tie_output": False},
    "other_head_sizes": {"key_dim": 5, "value_dim": 7},
}
SOURCE_IDS = np.array(
    [
        [4, 5, 6, 7, 8, 9, END],
        [9, 8, 7, END, 0, 0, 0],
        [10, END, 0, 0, 0, 0, 0],
        [6, 11, 12, 5, END, 0, 0],
    ],
    "int32",
)
LENGTH = 11
NEVER = 1000  # a `min_length` that forbids the end

each_model = pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)


def naive_greedy(model, source_ids, max_length, min_length=0):
    """Runs the whole model for each token, and chooses in numpy."""
    rows = range(len(source_ids))
    inputs = np.zeros((len(rows), max_length), "int32")
    inputs[:, 0] = START
    target_ids, scores = np.zeros_like(inputs), np.zeros(len(rows))
    for position in range(max_length):
        ids = {"source_ids": source_ids, "target_ids": inputs}
        logits = np.float64(ops.convert_to_numpy(model(ids))[:, position])
        logits[:, [0, START]] = -np.inf
        if position < min_length:
            logits[:, END] = -np.inf
        for row in rows:
            if END in target_ids[row]:
                continue
            chosen = np.argmax(logits[row])
            target_ids[row, position] = chosen
            normalizer = np.log(np.sum(np.exp(logits[row])))
            scores[row] += logits[row, chosen] - normalizer
            if position + 1 < max_length:
                inputs[row, position + 1] = chosen
    return target_ids, scores


def trimmed(target_ids):
    """Cuts the columns off that hold padding alone."""
    return target_ids[:, : (target_ids != 0).sum(axis=1).max(initial=0)]


def lengths(target_ids):
    return (target_ids != 0).sum(axis=1).tolist()


# One step.


def step_logits(model, source_ids, target_ids):
    """Feeds the targets token by token, as a search does."""
    encoded_cache = model.decoder.encoded_cache(model.encode(source_ids))
    rows, length = target_ids.shape
    cache = model.decoder.start_cache(rows, length + 2)
    steps = []
    for position in range(length):
        logits, cache = model.decode_step(
            ops.array(target_ids[:, position]),
            ops.array(position),
            cache,
            encoded_cache,
            ops.array(source_ids != 0),
        )
        steps.append(ops.convert_to_numpy(logits))
    return np.stack(steps, axis=1)


@each_model
def test_cached_logits_equal_uncached_logits_at_every_step(options):
    model = kt.Transformer(V, **{**SIZES, "num_layers": 2}, **options)
    target_ids = np.random.default_rng(5).integers(1, V, (len(SOURCE_IDS), T))
    target_ids[:, 0] = START
    expected = model({"source_ids": SOURCE_IDS, "target_ids": target_ids})
    np.testing.assert_allclose(
        step_logits(model, SOURCE_IDS, target_ids), expected, atol=1e-4
    )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_cached_logits_are_near_uncached_logits_in_half_precision(policy):
    model = kt.Transformer(V, **SIZES, dtype=policy)
    target_ids = np.random.default_rng(5).integers(1, V, (len(SOURCE_IDS), T))
    logits = model({"source_ids": SOURCE_IDS, "target_ids": target_ids})
    steps = step_logits(model, SOURCE_IDS, target_ids)
    assert steps.dtype == "float32"
    expected = ops.convert_to_numpy(ops.cast(logits, "float32"))
    np.testing.assert_allclose(steps, expected, atol=0.1)


# The whole target.


@each_model
def test_targets_equal_those_of_a_naive_search(options):
    model = kt.Transformer(V, **SIZES, **options)
    target_ids, scores = model.generate(SOURCE_IDS, max_length=T)
    expected_ids, expected_scores = naive_greedy(model, SOURCE_IDS, T)
    np.testing.assert_array_equal(target_ids, trimmed(expected_ids))
    np.testing.assert_allclose(scores, expected_scores, atol=1e-4)


@pytest.mark.parametrize("min_length", [0, 6])
def test_trained_model_equals_a_naive_search(copying_model, min_length):
    target_ids, scores = copying_model.generate(
        SOURCE_IDS, max_length=LENGTH, min_length=min_length
    )
    expected_ids, expected_scores = naive_greedy(
        copying_model, SOURCE_IDS, LENGTH, min_length
    )
    np.testing.assert_array_equal(target_ids, trimmed(expected_ids))
    np.testing.assert_allclose(scores, expected_scores, atol=1e-4)


def test_trained_model_copies(copying_model):
    target_ids, _ = copying_model.generate(SOURCE_IDS)
    np.testing.assert_array_equal(target_ids, SOURCE_IDS)


def test_results_are_arrays(copying_model):
    target_ids, scores = copying_model.generate(SOURCE_IDS)
    assert isinstance(target_ids, np.ndarray)
    assert isinstance(scores, np.ndarray)
    assert (target_ids.dtype, scores.dtype) == ("int32", "float32")
    assert scores.shape == (len(SOURCE_IDS),)


def test_ids_may_be_nested_lists(copying_model):
    target_ids, _ = copying_model.generate(SOURCE_IDS.tolist())
    np.testing.assert_array_equal(target_ids, SOURCE_IDS)


def test_result_does_not_depend_on_batch_order_or_padding(copying_model):
    expected_ids, expected_scores = copying_model.generate(SOURCE_IDS)

    backwards_ids, backwards_scores = copying_model.generate(SOURCE_IDS[::-1])
    np.testing.assert_array_equal(backwards_ids[::-1], expected_ids)
    np.testing.assert_allclose(
        backwards_scores[::-1], expected_scores, atol=1e-4
    )

    wide = np.pad(SOURCE_IDS, ((0, 0), (0, 4)))
    wide_ids, wide_scores = copying_model.generate(wide)
    np.testing.assert_array_equal(wide_ids, expected_ids)
    np.testing.assert_allclose(wide_scores, expected_scores, atol=1e-4)

    for row, length in enumerate(lengths(SOURCE_IDS)):
        ids, scores = copying_model.generate(SOURCE_IDS[[row], :length])
        np.testing.assert_array_equal(ids[0], expected_ids[row, : ids.shape[1]])
        assert not expected_ids[row, ids.shape[1] :].any()
        np.testing.assert_allclose(scores[0], expected_scores[row], atol=1e-4)


def test_empty_source_has_an_empty_target(copying_model):
    source_ids = SOURCE_IDS.copy()
    source_ids[1] = 0
    target_ids, scores = copying_model.generate(source_ids)
    np.testing.assert_array_equal(target_ids, source_ids)
    assert scores[1] == 0


def test_only_empty_sources_have_no_tokens(copying_model):
    for width in (0, S):
        source_ids = np.zeros((2, width), "int32")
        target_ids, scores = copying_model.generate(source_ids)
        assert target_ids.shape == (2, 0)
        np.testing.assert_array_equal(scores, [0, 0])


def test_no_sources_have_no_targets(copying_model):
    target_ids, scores = copying_model.generate(np.zeros((0, S), "int32"))
    assert target_ids.shape == (0, 0)
    assert scores.shape == (0,)


def test_source_of_one_token_has_a_target(copying_model):
    target_ids, _ = copying_model.generate([[END]], max_length=1)
    assert target_ids.shape == (1, 1)


def test_default_limit_is_50_tokens_more_than_the_source(copying_model):
    target_ids, _ = copying_model.generate(SOURCE_IDS, min_length=NEVER)
    expected = [length + 50 for length in lengths(SOURCE_IDS)]
    assert lengths(target_ids) == expected


@pytest.mark.parametrize("max_length", [1, 3])
def test_max_length_cuts_targets(copying_model, max_length):
    target_ids, _ = copying_model.generate(SOURCE_IDS, max_length=max_length)
    expected = [min(length, max_length) for length in lengths(SOURCE_IDS)]
    assert lengths(target_ids) == expected


def test_min_length_delays_the_end(copying_model):
    target_ids, _ = copying_model.generate(
        SOURCE_IDS, min_length=5, max_length=LENGTH
    )
    assert not (target_ids[:, :5] == END).any()
    assert min(lengths(target_ids)) >= 5


def test_targets_are_no_longer_than_the_learned_positions():
    model = kt.Transformer(
        V, **SIZES, positional_encoding="learned", max_length=S + 2
    )
    for max_length in (None, 19):
        target_ids, _ = model.generate(
            SOURCE_IDS, min_length=18, max_length=max_length
        )
        assert lengths(target_ids) == [S + 2] * len(SOURCE_IDS)


def test_compiled_search_equals_the_plain_one(copying_model):
    plain_ids, plain_scores = copying_model.generate(
        SOURCE_IDS, max_length=LENGTH, jit_compile=False
    )
    ids, scores = copying_model.generate(
        SOURCE_IDS, max_length=LENGTH, jit_compile=True
    )
    np.testing.assert_array_equal(ids, plain_ids)
    np.testing.assert_allclose(scores, plain_scores, atol=1e-4)


def test_search_sees_the_weights_of_now():
    model = kt.Transformer(V, **SIZES)
    _, before = model.generate(SOURCE_IDS, max_length=2)
    model.set_weights([weight * 1.5 for weight in model.get_weights()])
    _, after = model.generate(SOURCE_IDS, max_length=2)
    assert np.abs(after - before).max() > 1e-3
    _, expected = naive_greedy(model, SOURCE_IDS, 2)
    np.testing.assert_allclose(after, expected, atol=1e-4)


def test_default_search_is_greedy(copying_model):
    expected_ids, _ = copying_model.generate(SOURCE_IDS)
    target_ids, _ = copying_model.generate(SOURCE_IDS, search=kt.GreedySearch())
    np.testing.assert_array_equal(target_ids, expected_ids)


def test_half_precision_copies_too(copying_model):
    half = kt.Transformer.from_config(
        {**copying_model.get_config(), "dtype": "mixed_bfloat16"}
    )
    half.set_weights(copying_model.get_weights())
    target_ids, scores = half.generate(SOURCE_IDS)
    np.testing.assert_array_equal(target_ids, SOURCE_IDS)
    assert scores.dtype == "float32"


# A search over a step that is no model.


def table_step(table):
    """Makes a step whose logits depend on the last token alone."""

    def step(token_ids, position, cache):
        return ops.take(ops.array(table, "float32"), token_ids, axis=0), cache

    return step


def search(step, start_ids, max_lengths, cache=(), **options):
    target_ids, scores = kt.GreedySearch()(
        step,
        cache=cache,
        start_ids=ops.array(start_ids),
        max_lengths=ops.array(max_lengths),
        capacity=max(max_lengths),
        end_token_id=END,
        **options,
    )
    return ops.convert_to_numpy(target_ids), ops.convert_to_numpy(scores)


def test_search_follows_a_table():
    table = np.random.default_rng(2).normal(size=(T, T))
    start_ids, max_lengths = [0, 1, 4], [7, 3, 0]
    target_ids, scores = search(table_step(table), start_ids, max_lengths)
    log_shares = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    for row, token_id in enumerate(start_ids):
        expected, score = [], 0.0
        while len(expected) < max_lengths[row] and END not in expected:
            score += log_shares[token_id].max()
            token_id = log_shares[token_id].argmax()
            expected.append(token_id)
        padding = [0] * (max(max_lengths) - len(expected))
        assert target_ids[row].tolist() == [*expected, *padding]
        np.testing.assert_allclose(scores[row], score, rtol=1e-5)


def test_search_never_chooses_what_is_forbidden():
    table = np.tile(np.arange(T, dtype="float32"), (T, 1))
    target_ids, scores = search(
        table_step(table), [1, 2], [3, 3], forbidden_token_ids=(4, END, 0)
    )
    assert target_ids.tolist() == [[2, 2, 2], [2, 2, 2]]
    share = np.exp(2) / (np.exp(1) + np.exp(2))
    np.testing.assert_allclose(scores, 3 * np.log(share), rtol=1e-5)


def test_search_gives_each_step_its_position_and_cache():
    def step(token_ids, position, cache):
        chosen = 4 + position + cache
        logits = ops.one_hot(chosen, V)
        return ops.repeat(logits[None], len(token_ids), axis=0), cache + 3

    target_ids, _ = search(step, [START, 5], [3, 3], cache=ops.array(0))
    assert target_ids.tolist() == [[4, 8, 12], [4, 8, 12]]


def test_search_stops_when_every_sentence_has_ended():
    positions = []

    def step(token_ids, position, cache):
        positions.append(int(position))
        return ops.one_hot(token_ids + 1, V), cache

    with loops_in_python():
        target_ids, _ = search(step, [END - 1, END - 3], [500, 500])
    assert positions == [0, 1, 2]
    assert target_ids.shape == (2, 500)
    assert lengths(target_ids) == [1, 3]


def test_search_over_nothing_makes_no_step():
    def step(token_ids, position, cache):
        raise AssertionError

    with loops_in_python():
        target_ids, scores = search(step, [4, 4], [0, 0])
    assert target_ids.shape == (2, 0)
    assert scores.tolist() == [0, 0]


def test_search_can_be_saved():
    config = keras.saving.serialize_keras_object(kt.GreedySearch())
    again = keras.saving.deserialize_keras_object(config)
    assert isinstance(again, kt.GreedySearch)

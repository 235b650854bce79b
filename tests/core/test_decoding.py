"""Decoding token by token equals decoding the whole, however it is run."""

import collections
import concurrent.futures
import itertools

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer import compiled as compiled_module
from keras_transformer import decoding
from keras_transformer import generation
from keras_transformer.weights import named_weights

from .compiled import COMPILE
from .copying import END
from .copying import START
from .layers import B
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
    "biases": {"attention_bias": True, "output_bias": True},
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
        normalizers = np.log(np.sum(np.exp(logits), axis=1))
        logits[:, [0, START]] = -np.inf
        if position < min_length:
            logits[:, END] = -np.inf
        for row in rows:
            if END in target_ids[row]:
                continue
            chosen = np.argmax(logits[row])
            target_ids[row, position] = chosen
            scores[row] += logits[row, chosen] - normalizers[row]
            if position + 1 < max_length:
                inputs[row, position + 1] = chosen
    return target_ids, scores


def trimmed(target_ids):
    """Cuts the columns off that hold padding alone."""
    return target_ids[:, : (target_ids != 0).sum(axis=1).max(initial=0)]


def lengths(target_ids):
    return (target_ids != 0).sum(axis=1).tolist()


# One step.


def step_logits(model, source_ids, target_ids, room=None):
    """Feeds the targets token by token, as a search does.

    With a `room`, a cache that is full goes to the past.
    """
    encoded_cache = model.decoder.encoded_cache(model.encode(source_ids))
    rows, length = target_ids.shape
    cache = model.decoder.start_cache(rows, room or length + 2)
    past = model.decoder.start_cache(rows, 1) if room else ()
    steps = []
    for position in range(length):
        if room and position and position % room == 0:
            past = keras.tree.map_structure(
                lambda x, y: ops.concatenate([x, y], axis=2), past, cache
            )
        logits, cache = model.decode_step(
            ops.array(target_ids[:, position : position + 1]),
            ops.array(position),
            cache,
            encoded_cache,
            ops.array(source_ids != 0),
            past=past,
        )
        steps.append(ops.convert_to_numpy(logits))
    return np.concatenate(steps, axis=1)


@each_model
def test_cached_logits_equal_uncached_logits_at_every_step(options):
    model = kt.Transformer(V, **{**SIZES, "num_layers": 2}, **options)
    generator = np.random.default_rng(5)
    for variable in model.trainable_variables:
        if variable.ndim == 1:  # biases that show
            variable.assign(generator.normal(1, 0.3, variable.shape))
    target_ids = generator.integers(1, V, (len(SOURCE_IDS), T))
    target_ids[:, 0] = START
    expected = model({"source_ids": SOURCE_IDS, "target_ids": target_ids})
    for room in (None, 2):
        logits = step_logits(model, SOURCE_IDS, target_ids, room)
        np.testing.assert_allclose(logits, expected, atol=1e-4)


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
    for length in (S, S + 20):  # of which TensorFlow makes any length
        target_ids, scores = copying_model.generate(
            np.zeros((0, length), "int32"), jit_compile=True
        )
        assert target_ids.shape == (0, 0)
        assert scores.shape == (0,)
    for max_length in (None, 3):
        target_ids, _ = copying_model.generate(
            np.zeros((0, S), "int32"), max_length=max_length, jit_compile=False
        )
        assert target_ids.shape == (0, 0)


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


def test_no_room_is_made_for_more_than_the_model_takes(
    copying_model, monkeypatch
):
    monkeypatch.setattr(copying_model, "max_length", 20)
    decoded = generation._decoded
    asked = []

    def recorded(decode, inputs, jit_compile):
        asked.append((decode.capacity, set(inputs["max_lengths"].tolist())))
        return decoded(decode, inputs, False)

    monkeypatch.setattr(generation, "_decoded", recorded)
    copying_model.generate(SOURCE_IDS, max_length=10_000, jit_compile=True)
    assert asked == [(32, {20})]
    loop = decoding.DecodingLoop(copying_model, kt.GreedySearch())
    for limits in ({}, {"max_lengths": ops.array([90] * len(SOURCE_IDS))}):
        start = loop.start({"source_ids": ops.array(SOURCE_IDS), **limits})
        assert start.state.target_ids.shape[2] == 20
        assert max(ops.convert_to_numpy(start.inputs["max_lengths"])) == 20


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
    found = copying_model.generate(SOURCE_IDS)
    expected = copying_model.generate(SOURCE_IDS, search=kt.GreedySearch())
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)  # a beam has other scores


def test_half_precision_copies_too(copying_model):
    half = kt.Transformer.from_config(
        {**copying_model.get_config(), "dtype": "mixed_bfloat16"}
    )
    half.set_weights(copying_model.get_weights())
    target_ids, scores = half.generate(SOURCE_IDS)
    np.testing.assert_array_equal(target_ids, SOURCE_IDS)
    assert scores.dtype == "float32"


@pytest.mark.parametrize(
    "dtype",
    [
        "bfloat16",
        "float16",
        pytest.param(
            "float64",
            marks=pytest.mark.skipif(
                keras.backend.backend() == "jax",
                reason="JAX has no float64 unless it is told to",
            ),
        ),
    ],
)
def test_floats_of_keras_may_have_any_size(copying_model, floatx, dtype):
    search = kt.BeamSearch(width=3, num_hypotheses=2, no_repeat_ngram_size=3)
    inputs = {"source_ids": SOURCE_IDS, "target_ids": SOURCE_IDS}
    expected = ops.convert_to_numpy(copying_model(inputs))
    expected_ids, expected_scores = copying_model.generate(SOURCE_IDS, search)
    floatx(dtype)
    model = kt.Transformer.from_config(copying_model.get_config())
    model.set_weights(copying_model.get_weights())
    np.testing.assert_allclose(model(inputs), expected, rtol=1e-5)
    target_ids, scores = model.generate(SOURCE_IDS, search)
    np.testing.assert_array_equal(target_ids, expected_ids)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-4)


# Every search, on a model.

SEARCHES = {
    "greedy": kt.GreedySearch(),
    "beam": kt.BeamSearch(width=3, length_penalty=0.0),
    "beam_best_3": kt.BeamSearch(4, length_penalty=0.0, num_hypotheses=3),
    "sampling": kt.Sampling(seed=4),
    "samples": kt.Sampling(num_hypotheses=3, top_k=6, seed=4),
}
each_search = pytest.mark.parametrize(
    "search", SEARCHES.values(), ids=SEARCHES.keys()
)


def flat(hypotheses, search):
    """Puts the hypotheses of each sentence one under the other."""
    rows = len(SOURCE_IDS) * search.num_hypotheses
    return [x.reshape((rows, *x.shape[-1:])) for x in hypotheses]


def assert_scores_are_those_of_the_whole(model, search):
    """What was kept of a hypothesis is its own, wherever it has moved."""
    target_ids, scores, token_scores = model.generate(
        SOURCE_IDS, search=search, max_length=9, return_token_scores=True
    )
    source_ids = np.repeat(SOURCE_IDS, search.num_hypotheses, axis=0)
    target_ids, token_scores = flat([target_ids, token_scores], search)
    expected, totals = model.score(source_ids, target_ids)
    np.testing.assert_allclose(token_scores, expected, atol=1e-4)
    np.testing.assert_allclose(scores.flatten(), totals, atol=1e-4)


# Positions and the order of layers are the same for all that a beam moves.
@pytest.mark.parametrize("kind", ["paper", "untied", "other_head_sizes"])
def test_scores_of_a_beam_are_those_of_the_whole_model(kind):
    model = kt.Transformer(V, **SIZES, **MODELS[kind])
    assert_scores_are_those_of_the_whole(model, SEARCHES["beam_best_3"])


@each_search
def test_scores_of_a_search_are_those_of_the_whole_model(copying_model, search):
    assert_scores_are_those_of_the_whole(copying_model, search)


@pytest.mark.parametrize("search", [kt.GreedySearch, kt.Sampling])
def test_scores_are_free_of_a_repetition_penalty(search):
    model = kt.Transformer(V, **SIZES)
    target_ids, scores, token_scores = model.generate(
        SOURCE_IDS,
        search=search(repetition_penalty=1.5),
        min_length=V,  # more than there are tokens: one must come again
        max_length=V,
        return_token_scores=True,
    )
    assert all(len(set(row)) < V for row in target_ids.tolist())
    expected, totals = model.score(SOURCE_IDS, target_ids)
    np.testing.assert_allclose(token_scores, expected, atol=1e-4)
    np.testing.assert_allclose(scores, totals, atol=1e-4)


@each_search
def test_attention_is_that_of_the_whole_model(copying_model, search):
    target_ids, _, attention = copying_model.generate(
        SOURCE_IDS, search=search, max_length=9, return_attention=True
    )
    shape = (*target_ids.shape, SOURCE_IDS.shape[1])
    assert attention.shape == shape
    (rows,) = flat([target_ids], search)
    weights = copying_model.cross_attention(
        {
            "source_ids": np.repeat(SOURCE_IDS, search.num_hypotheses, axis=0),
            "target_ids": np.pad(
                rows[:, :-1], ((0, 0), (1, 0)), constant_values=START
            ),
        }
    )
    expected = ops.mean(weights[-1], axis=1) * (rows != 0)[..., None]
    np.testing.assert_allclose(
        attention, np.reshape(expected, shape), atol=1e-4
    )
    aligned = copying_model.align(
        np.repeat(SOURCE_IDS, search.num_hypotheses, axis=0), rows
    )
    np.testing.assert_allclose(attention, np.reshape(aligned, shape), atol=1e-4)
    real = target_ids != 0
    np.testing.assert_allclose(attention.sum(axis=-1), real, atol=1e-5)
    padding = (SOURCE_IDS == 0).reshape(
        (len(SOURCE_IDS), *[1] * (attention.ndim - 2), -1)
    )
    assert np.where(padding, attention, 0).max() == 0


def test_attention_of_a_copy_is_its_source(copying_model):
    _, _, attention = copying_model.generate(
        SOURCE_IDS[:1], return_attention=True
    )
    weights = copying_model.cross_attention(
        {
            "source_ids": SOURCE_IDS[:1],
            "target_ids": np.array([[START, *SOURCE_IDS[0, :-1]]]),
        }
    )
    expected = ops.mean(weights[-1], axis=1)
    np.testing.assert_allclose(attention, expected, atol=1e-4)


@each_search
def test_no_sources_have_no_targets_by_any_search(copying_model, search):
    target_ids, scores = copying_model.generate(
        np.zeros((0, S), "int32"), search, jit_compile=False
    )
    assert target_ids.shape[:-1] == scores.shape
    assert len(scores) == 0


def test_what_is_kept_in_blocks_is_attended_to_as_one():
    random = np.random.default_rng(5)
    layer = kt.MultiHeadAttention(N, D)
    layer.build((None, None, D), (None, None, D))
    query, value = random.normal(size=(2, B, S, D)).astype("float32")
    keys, values = layer.keys_and_values(value)
    mask = random.random((B, 1, S)) < 0.5
    mask[:, :, 0] = True
    expected, _ = layer.attend(query, keys, values, mask)
    rows = ops.reshape(query, (B * S, D))
    for ends in ([S], [1, S], [2, 3, S]):
        blocks = [
            (
                keys[:, :, start:end],
                values[:, :, start:end],
                mask[..., start:end],
            )
            for start, end in itertools.pairwise([0, *ends])
        ]
        found = layer.attend_in_step(rows, blocks, S)
        np.testing.assert_allclose(
            ops.reshape(found, (B, S, D)), expected, rtol=1e-5, atol=1e-5
        )


def test_columns_of_padding_do_not_count():
    """As `max_length` is that of what there is."""
    model = kt.Transformer(
        V, **SIZES, positional_encoding="learned", max_length=S
    )
    options = {"max_length": T, "return_attention": True}
    prefixes = SOURCE_IDS[:, :1]
    wide, wide_prefixes = (
        np.pad(ids, ((0, 0), (0, 40))) for ids in (SOURCE_IDS, prefixes)
    )
    expected_ids, expected_scores, expected = model.generate(
        SOURCE_IDS, target_prefix_ids=prefixes, **options
    )
    target_ids, scores, attention = model.generate(
        wide, target_prefix_ids=wide_prefixes, **options
    )
    np.testing.assert_array_equal(target_ids, expected_ids)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-4)
    assert attention.shape == (*target_ids.shape, S + 40)
    np.testing.assert_allclose(attention[..., :S], expected, atol=1e-4)
    assert not attention[..., S:].any()

    expected, expected_totals = model.score(SOURCE_IDS, SOURCE_IDS)
    found, totals = model.score(wide, wide)
    np.testing.assert_allclose(totals, expected_totals, atol=1e-4)
    assert found.shape == wide.shape
    np.testing.assert_allclose(found[:, :S], expected, atol=1e-4)
    assert not found[:, S:].any()

    expected = model.align(SOURCE_IDS, SOURCE_IDS, layer=0)
    found = model.align(wide, wide, layer=0)
    assert found.shape == (len(wide), S + 40, S + 40)
    np.testing.assert_allclose(found[:, :S, :S], expected, atol=1e-4)
    assert not found[:, S:].any() and not found[:, :, S:].any()


def test_tokens_of_any_layer_are_aligned(untraced):
    model = kt.Transformer(V, **{**SIZES, "num_layers": 2})
    source_ids = np.array([[4, 5, 6, 3, 0], [0] * 5])
    target_ids = np.array([[7, 8, 3, 0], [7, 3, 0, 0]])
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    inputs["target_ids"] = np.array([[START, 7, 8, 0], [START, 7, 0, 0]])
    for layer, expected in enumerate(model.cross_attention(inputs)):
        found = model.align(source_ids, target_ids, layer)
        expected = ops.convert_to_numpy(ops.mean(expected, axis=1))
        np.testing.assert_allclose(found[0, :3], expected[0, :3], atol=1e-5)
        assert not found[0, 3:].any() and not found[1].any()
        backwards = model.align(source_ids, target_ids, layer - 2)
        np.testing.assert_allclose(backwards, found, atol=1e-6)
    with pytest.raises(ValueError, match="`layer` must be one of -2, .*=2"):
        model.align(source_ids, target_ids, 2)
    with pytest.raises(TypeError, match="`layer` must be an integer"):
        model.align(source_ids, target_ids, 0.0)
    with pytest.raises(ValueError, match="`target_ids` must be without"):
        model.align(source_ids, inputs["target_ids"])


@each_search
def test_no_search_depends_on_batch_order_or_padding(copying_model, search):
    options = {"search": search, "max_length": 9}
    expected = copying_model.generate(SOURCE_IDS, **options)
    backwards = copying_model.generate(SOURCE_IDS[::-1], **options)
    wide = np.pad(SOURCE_IDS, ((0, 1), (0, 3)))
    padded = copying_model.generate(wide, **options)
    for found in ([x[::-1] for x in backwards], [x[:-1] for x in padded]):
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1], atol=1e-4)
    for row, length in enumerate(lengths(SOURCE_IDS)):
        ids, scores = copying_model.generate(
            SOURCE_IDS[[row], :length], **options
        )
        wanted = expected[0][row, ..., : ids.shape[-1]]
        np.testing.assert_array_equal(ids[0], wanted)
        np.testing.assert_allclose(scores[0], expected[1][row], atol=1e-4)


@pytest.mark.slow
@each_search
def test_every_compiled_search_equals_the_plain_one(copying_model, search):
    options = {"search": search, "max_length": 9, "return_attention": True}
    for plain, compiled in zip(
        copying_model.generate(SOURCE_IDS, jit_compile=False, **options),
        copying_model.generate(SOURCE_IDS, jit_compile=True, **options),
        strict=True,
    ):
        np.testing.assert_allclose(plain, compiled, atol=1e-4)


@each_search
def test_prefixes_are_the_beginnings_of_targets(copying_model, search):
    prefix_ids = np.array([[12, 11], [5, 0], [0, 0], [9, 9]], "int32")
    target_ids, _ = copying_model.generate(
        SOURCE_IDS, search=search, target_prefix_ids=prefix_ids, max_length=9
    )
    (found,) = flat([target_ids[..., :2]], search)
    wanted = np.repeat(prefix_ids, search.num_hypotheses, axis=0)
    np.testing.assert_array_equal(np.where(wanted, found, 0), wanted)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_prefix_of_an_empty_source_may_be_too_long(jit_compile):
    model = kt.Transformer(
        9, num_layers=1, num_heads=1, hidden_dim=4, max_length=4
    )
    target_ids, scores = model.generate(
        [[0, 0], [4, 3]],
        target_prefix_ids=[[4] * 6, [5] + [0] * 5],
        jit_compile=jit_compile,
    )
    assert not np.any(target_ids[0])
    assert target_ids[1, 0] == 5
    assert np.all(np.isfinite(scores))


def test_best_hypotheses_are_sorted_and_distinct(copying_model):
    search = kt.BeamSearch(width=5, num_hypotheses=5)
    target_ids, scores = copying_model.generate(SOURCE_IDS, search=search)
    assert target_ids.shape[:2] == scores.shape == (len(SOURCE_IDS), 5)
    assert (np.diff(scores, axis=1) <= 0).all()
    for row in target_ids:
        assert len({tuple(ids.tolist()) for ids in row}) == 5


# Scores of given targets.


def test_scores_are_log_probabilities_of_the_model(copying_model):
    target_ids = np.array([[5, 6, END], [4, END, 0], [END, 0, 0], [0, 0, 0]])
    token_scores, scores = copying_model.score(SOURCE_IDS, target_ids)
    inputs = np.array([[START, 5, 6], [START, 4, 0], [START, 0, 0], [0, 0, 0]])
    logits = copying_model({"source_ids": SOURCE_IDS, "target_ids": inputs})
    shares = ops.convert_to_numpy(ops.softmax(logits))
    for row, ids in enumerate(target_ids):
        expected = [
            np.log(shares[row, position, token]) if token else 0.0
            for position, token in enumerate(ids)
        ]
        np.testing.assert_allclose(token_scores[row], expected, atol=1e-4)
        np.testing.assert_allclose(scores[row], sum(expected), atol=1e-4)
    assert (token_scores.dtype, scores.dtype) == ("float32", "float32")


def test_nothing_has_no_translation_but_nothing(copying_model):
    """As `generate` has none, and the `Translator`."""
    target_ids = np.array([[END, 0], [0, 0], [5, END], [5, 0]])
    sources = np.zeros((len(target_ids), 3), "int32")
    token_scores, scores = copying_model.score(sources, target_ids)
    inf = -np.inf
    np.testing.assert_array_equal(
        token_scores, [[0, 0], [0, 0], [inf, inf], [inf, 0]]
    )
    np.testing.assert_array_equal(scores, [0, 0, inf, inf])


def test_copies_score_higher_than_other_targets(copying_model):
    _, copies = copying_model.score(SOURCE_IDS, SOURCE_IDS)
    _, others = copying_model.score(SOURCE_IDS, SOURCE_IDS[::-1])
    assert (copies > others + 1).all()


# Beside other work with the same model.


def test_threads_generate_at_once(copying_model):
    _, expected = copying_model.generate(SOURCE_IDS, max_length=LENGTH)

    def generate(_):
        return copying_model.generate(SOURCE_IDS, max_length=LENGTH)[1]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for scores in pool.map(generate, range(24)):
            np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_weights_stay_where_they_are(copying_model):
    """Whoever holds a weight's array still has it after a call."""
    held = [weight.value for weight in copying_model.weights]
    before = [np.array(ops.convert_to_numpy(x)) for x in held]
    copying_model.generate(SOURCE_IDS, max_length=LENGTH)
    copying_model.score(SOURCE_IDS, SOURCE_IDS)
    for array, expected in zip(held, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(array), expected)


# On TensorFlow the default is the same.
@pytest.mark.parametrize(
    "jit_compile",
    [None, False] if keras.backend.backend() == "jax" else [False],
)
def test_callback_generates_in_the_middle_of_an_epoch(jit_compile):
    model = kt.Transformer(V, **SIZES, dropout=0.0)
    model.compile("sgd", kt.LabelSmoothedCrossentropy(0.1), **COMPILE)
    scores, weights = [], []

    def look(batch, logs):
        weights.append(named_weights(model)["token_embedding/embeddings"].sum())
        of_all = model.score(SOURCE_IDS, SOURCE_IDS, jit_compile=jit_compile)[1]
        scores.append(of_all.sum())

    target_ids = ops.convert_to_numpy(model.decoder_inputs(SOURCE_IDS))
    model.fit(
        {"source_ids": SOURCE_IDS, "target_ids": target_ids},
        SOURCE_IDS,
        batch_size=2,
        epochs=2,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=look)],
        verbose=0,
    )
    assert len(set(scores)) == len(set(weights)) == 4  # each update is seen
    np.testing.assert_allclose(
        scores[-1], model.score(SOURCE_IDS, SOURCE_IDS)[1].sum(), rtol=1e-6
    )


def test_search_of_a_user_needs_no_configuration(copying_model):
    class Favoring(kt.GreedySearch):
        def __init__(self, token_id, **kwargs):
            super().__init__(**kwargs)
            self.token_id = token_id

        def choose(self, logits, *arguments):
            favored = ops.one_hot(self.token_id, V) * 100.0
            return super().choose(logits + favored, *arguments)

    source_ids = np.array([[4, 5, 3]])
    for token_id in (6, 7):
        target_ids, _ = copying_model.generate(
            source_ids, Favoring(token_id), max_length=2
        )
        assert target_ids.tolist() == [[token_id, token_id]]


def test_search_of_a_user_may_hold_a_long_array(copying_model):
    class Favoring(kt.GreedySearch):
        def __init__(self, places):
            super().__init__()
            self.places = places

        def choose(self, logits, *arguments):
            favored = self.places[1000 : 1000 + V]
            return super().choose(logits + favored, *arguments)

    for token_id in (6, 7):
        places = np.zeros(3000, "float32")  # too many for NumPy to write out
        places[1000 + token_id] = 100.0
        target_ids, _ = copying_model.generate(
            np.array([[4, 5, 3]]), Favoring(places), max_length=2
        )
        assert target_ids.tolist() == [[token_id, token_id]]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_kept_search_has_data_of_its_own(copying_model, jit_compile):
    class Favoring(kt.GreedySearch):
        def __init__(self, favors):
            super().__init__()
            self.favors = {"all": [favors]}
            self.names = np.array(["x"], dtype=object)
            self.others = collections.defaultdict(float)  # stays one

        def choose(self, logits, *arguments):
            [favors] = self.favors["all"]
            favors = favors + self.others["none"]
            return super().choose(logits + favors, *arguments)

    def found(search, length):
        source_ids = np.array([[4] * length + [3]])
        target_ids, _ = copying_model.generate(
            source_ids, search, max_length=2, jit_compile=jit_compile
        )
        return target_ids.tolist()

    favors = np.zeros(V, "float32")
    search = Favoring(favors)
    plain = found(search, 1)
    favors[6] = 100.0
    assert found(search, 1) == [[6, 6]] != plain
    # As the first time; compiled anew for the longer source.
    assert found(Favoring(np.zeros(V, "float32")), 20) != [[6, 6]]


def test_layers_of_one_name_make_different_searches(copying_model):
    class Fused(kt.GreedySearch):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def choose(self, logits, position, problem):
            logits = logits + self.layer(ops.zeros_like(logits))
            return super().choose(logits, position, problem)

    def prefers(token_id):
        layer = keras.layers.Dense(copying_model.vocabulary_size, name="same")
        layer.build((None, copying_model.vocabulary_size))
        layer.bias.assign(99.0 * np.eye(layer.units)[token_id])
        return layer

    model = kt.Transformer.from_config(copying_model.get_config())
    searches = {token_id: Fused(prefers(token_id)) for token_id in (6, 7)}
    for token_id, search in [*searches.items()] * 2:
        target_ids, _ = model.generate(
            np.array([[4, 5, 3]]), search, max_length=2
        )
        assert target_ids.tolist() == [[token_id, token_id]]
    assert len(model.compiled_functions.compiled) == len(searches)


def test_a_search_ends_with_its_longest_targets(copying_model):
    class NeverDone(kt.GreedySearch):
        def done(self, state):
            return ops.zeros_like(super().done(state))

    found = copying_model.generate(SOURCE_IDS, NeverDone(), max_length=5)
    expected = copying_model.generate(SOURCE_IDS, max_length=5)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_functions_used_last_are_kept(copying_model, monkeypatch):
    monkeypatch.setattr(compiled_module, "MOST_KEPT", 2)
    functions = compiled_module.CompiledFunctions(copying_model)
    kept = []
    for key in (0, 1, 0, 2, 0):
        functions.run((key,), lambda x: x["x"] + 1, {"x": np.ones(2)}, False)
        kept.append([*functions.compiled.values()])
    first, second, *_ = kept[1]
    assert kept[2] == [second, first]
    assert kept[3][0] == first and second not in kept[3]
    assert kept[4] == kept[3][::-1]


def test_other_functions_are_no_retracing(copying_model, caplog):
    """TensorFlow warns of one function that is traced again and again."""
    kept = compiled_module.CompiledFunctions(copying_model)
    for key in range(12):
        found = kept.run((key,), lambda x: x["x"] + 1, {"x": np.ones(2)}, False)
        assert found.tolist() == [2, 2]
    assert "retracing" not in caplog.text

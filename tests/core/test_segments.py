"""Decoding in segments equals decoding in one loop, and costs less."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer import decoding
from keras_transformer.decoding import DecodingLoop
from keras_transformer.generation import LENGTH_STEP
from keras_transformer.generation import row_counts
from keras_transformer.search.independent import IndependentSearch

from .copying import END
from .layers import D
from .layers import F
from .layers import N
from .layers import V

SEARCHES = {
    "greedy": kt.GreedySearch(),
    "beam": kt.BeamSearch(width=3, num_hypotheses=2),
    "patient": kt.BeamSearch(width=2, patience=1.0, length_penalty=0.0),
    "sampling": kt.Sampling(num_hypotheses=2, seed=5),
}
ROWS = 20

eager_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="JAX compiles one loop, whose shapes cannot vary",
)
each_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


@pytest.fixture(scope="module")
def model():
    """An untrained model, whose targets end early, late and never."""
    keras.utils.set_random_seed(4)
    return kt.Transformer(
        V, num_layers=2, num_heads=N, hidden_dim=D, intermediate_dim=F
    )


def make_small(**options):
    return kt.Transformer(
        V,
        num_layers=1,
        num_heads=N,
        hidden_dim=D,
        intermediate_dim=F,
        **options,
    )


@pytest.fixture(scope="module")
def source_ids():
    generator = np.random.default_rng(7)
    ids = np.zeros((ROWS, 9), "int32")
    for row, length in enumerate(generator.integers(0, 9, ROWS)):
        ids[row, :length] = generator.integers(END + 1, V, length)
        ids[row, length] = END if length else 0
    return ids


def limits():
    """Most tokens of each target, short and long."""
    return np.arange(1, 2 * ROWS, 2).astype("int32")[::-1].copy()


@pytest.mark.slow
@eager_only
@each_search
def test_segments_equal_one_loop(model, source_ids, search):
    inputs = {"source_ids": source_ids, "max_lengths": limits()}
    decode = DecodingLoop(model, search, capacity=2 * ROWS)
    expected = decode.whole(inputs)
    for compile_function in (None, lambda function: function):
        found = decode.in_segments(inputs, compile_function)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.slow
@eager_only
@each_search
def test_segments_with_a_past_equal_one_loop(
    model, source_ids, search, monkeypatch
):
    monkeypatch.setattr(decoding, "is_litert_graph", lambda: True)
    monkeypatch.setattr(decoding, "LEAST_DIM_WITH_PAST", D)
    rooms = set()
    original = DecodingLoop.advance

    def recorded(self, position, under_way, enough_done=None):
        (past, _), (keys, _) = under_way.past[0], under_way.cache[0]
        assert past.shape[2] == (int(position) + 1) * search.num_slots
        rooms.add(keys.shape[2] // search.num_slots)
        return original(self, position, under_way, enough_done)

    monkeypatch.setattr(DecodingLoop, "advance", recorded)
    inputs = {"source_ids": source_ids, "max_lengths": limits()}
    decode = DecodingLoop(model, search, capacity=2 * ROWS)
    found = decode.in_segments(inputs)
    assert rooms == {decoding.FIRST_ROOM}
    monkeypatch.undo()
    for one, other in zip(found, decode.whole(inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize(
    "search", [kt.GreedySearch(), SEARCHES["beam"]], ids=["greedy", "beam"]
)
@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_generate_equals_one_loop(model, source_ids, search, jit_compile):
    expected = model.search(
        source_ids,
        search,
        max_lengths=np.full(ROWS, 37, "int32"),
        capacity=37,
    )
    target_ids, scores = model.generate(
        source_ids, search, max_length=37, jit_compile=jit_compile
    )
    target_ids = target_ids.reshape((ROWS, search.num_hypotheses, -1))
    wanted = ops.convert_to_numpy(expected.target_ids)
    length = target_ids.shape[2]
    np.testing.assert_array_equal(target_ids, wanted[:, :, :length])
    assert not wanted[:, :, length:].any()
    np.testing.assert_allclose(
        scores.reshape((ROWS, -1)), expected.scores, atol=1e-3
    )


@eager_only
def test_finished_sentences_leave_and_the_cache_grows(source_ids, monkeypatch):
    model = make_small()
    sizes, positions = [], []
    original = DecodingLoop.advance

    def recorded(self, position, under_way, enough_done=None):
        keys, _ = under_way.cache[0]
        sizes.append((keys.shape[0], keys.shape[2]))
        position, under_way = original(self, position, under_way, enough_done)
        positions.append(int(position))
        return position, under_way

    monkeypatch.setattr(DecodingLoop, "advance", recorded)
    source_ids = np.where(source_ids == 0, 4, source_ids)  # none is empty
    inputs = {
        "source_ids": source_ids,
        "max_lengths": limits(),
        "min_lengths": np.full(ROWS, 99, "int32"),  # go on to their limits
    }
    DecodingLoop(model, kt.GreedySearch(), 2 * ROWS).in_segments(inputs)
    # At position 16 the cache is full; half of the rows end at 21, and so on.
    assert sizes[0] == (20, 16)
    assert sizes[1] == (12, 32)
    assert positions[-1] == 39
    rows = [size for size, _ in sizes]
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] == 1
    assert sizes[-1][1] == 40  # never more than the capacity
    steps = np.diff([0, *positions])
    assert np.sum(steps * rows) < 1.4 * np.sum(limits())


@eager_only
@pytest.mark.parametrize("rows", [1, 15, 17])
def test_compiled_batches_of_any_size_come_to_an_end(rows):
    model = make_small()
    lengths = np.arange(1, 2 * rows, 2).astype("int32")
    decode = DecodingLoop(model, kt.GreedySearch(), capacity=2 * rows)
    found = decode.in_segments(
        {
            "source_ids": np.full((rows, 3), 5, "int32"),
            "max_lengths": lengths,
            "min_lengths": lengths,
        },
        lambda function: function,
    )
    used = ops.sum(ops.cast(ops.not_equal(found.target_ids, 0), "int32"), 2)
    assert ops.convert_to_numpy(used)[:, 0].tolist() == lengths.tolist()


@eager_only
def test_compiled_segments_have_few_shapes():
    model = make_small()
    shapes = set()

    def compiled(function):
        def recorded(*arguments):
            shapes.add(
                (function.__name__,)
                + tuple(
                    tuple(x.shape)
                    for x in keras.tree.flatten(arguments)
                    if len(x.shape)
                )
            )
            return function(*arguments)

        return recorded

    decode = DecodingLoop(model, kt.GreedySearch(), capacity=48)
    generator = np.random.default_rng(3)
    for _ in range(2):
        source_ids = generator.integers(END + 1, V, (32, LENGTH_STEP))
        inputs = {
            "source_ids": source_ids.astype("int32"),
            "max_lengths": generator.integers(1, 48, 32).astype("int32"),
        }
        decode.in_segments(inputs, compiled)
    # To start; and 32, 16 and 8 rows with room for 16, 32 and 48 positions.
    assert len(shapes) <= 1 + 3 * 3
    assert len([shape for shape in shapes if shape[0] == "start"]) == 1


def test_rows_to_compile_for_are_powers_of_2_and_their_triples():
    counts = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    for rows in range(33):
        enough = [count for count in counts if count >= rows]
        assert row_counts(rows) == [*counts[: -len(enough)], enough[0]]


def test_source_shapes_to_compile_are_few(model, monkeypatch):
    """Any batch and length falls on one of few shapes."""
    shapes = set()
    found = np.full((6, 1, 1), END, "int32")

    def recorded(key, function, inputs, jit_compile):
        shapes.add(inputs["source_ids"].shape)
        return found, found[:, 0], found

    monkeypatch.setattr(model.compiled_functions, "run", recorded)
    for rows in (1, 3, 4, 5, 6):
        for length in (4, 9, 16, 17):
            source_ids = np.full((rows, length), 5)
            model.generate(source_ids, max_length=3, jit_compile=True)
    assert shapes == {
        (rows, length) for rows in (1, 3, 4, 6) for length in (16, 32)
    }


@pytest.mark.parametrize(
    "search", [kt.GreedySearch(), SEARCHES["beam"]], ids=["greedy", "beam"]
)
def test_scores_can_be_left_out(model, source_ids, search):
    expected, _ = model.generate(source_ids, search, max_length=9)
    (target_ids,) = model.generate(
        source_ids, search, max_length=9, return_scores=False
    )
    np.testing.assert_array_equal(target_ids, expected)


def test_seeds_share_what_is_compiled():
    model, source_ids = make_small(), np.array([[5, 6, END], [7, END, 0]])
    drawn = set()
    for seed in (0, np.int32(-1), 2**40 + 3):
        search = kt.Sampling(num_hypotheses=2, seed=seed)
        target_ids, _ = model.generate(source_ids, search, max_length=5)
        expected = model.search(
            source_ids,
            search,
            max_lengths=np.full(2, 5, "int32"),
            capacity=5,
        )
        wanted = ops.convert_to_numpy(expected.target_ids)
        length = target_ids.shape[2]
        np.testing.assert_array_equal(target_ids, wanted[:, :, :length])
        drawn.add(target_ids.tobytes())
    assert len(drawn) == 3
    assert len(model.compiled_functions.compiled) == 1


@eager_only
def test_a_search_is_traced_once_for_sources_of_any_size(monkeypatch):
    model, traced = make_small(), []
    original = DecodingLoop.in_segments

    def recorded(self, inputs, compile_function=None):
        traced.append(inputs["source_ids"].shape)
        return original(self, inputs, compile_function)

    monkeypatch.setattr(DecodingLoop, "in_segments", recorded)
    for rows, length, max_length in ((1, 3, 5), (2, 3, 5), (3, 9, 20)):
        target_ids, _ = model.generate(
            np.full((rows, length), 5), min_length=99
        )
        assert target_ids.shape == (rows, length + 50)
        target_ids, _ = model.generate(
            np.full((rows, length), 5),
            min_length=max_length,
            max_length=max_length,
        )
        assert target_ids.shape == (rows, max_length)
    # Without a limit and with one.
    assert len(traced) == 2


@pytest.mark.parametrize(
    "jit_compile", [None, pytest.param(True, marks=pytest.mark.slow)]
)
def test_search_may_be_changed_after_use(jit_compile):
    model, search = make_small(), kt.GreedySearch()
    options = {"min_length": 5, "max_length": 5, "jit_compile": jit_compile}
    (expected,), _ = model.generate([[5, 6, END]], search, **options)
    search.forbidden_token_ids = tuple(expected.tolist())
    for rows in (1, 2):  # XLA compiles it anew
        source_ids = [[5, 6, END]] * rows
        target_ids, _ = model.generate(source_ids, kt.GreedySearch(), **options)
        np.testing.assert_array_equal(target_ids, [expected] * rows)
        target_ids, _ = model.generate(source_ids, search, **options)
        assert not np.isin(target_ids, expected).any()


def test_limit_may_be_changed():
    model = make_small()
    source_ids, lengths = np.full((1, 3), 5), []
    for model.max_length in (4, 9):
        target_ids, _ = model.generate(source_ids, min_length=20)
        lengths.append(target_ids.shape[1])
    assert lengths == [4, 9]


def test_number_of_a_subclass_may_be_changed():
    class Sharpened(kt.Transformer):
        sharpness = 1.0

        def project(self, x):
            return super().project(x) * self.sharpness

    model = Sharpened.from_config(make_small().get_config())
    ids, scores = [[4, 5, 6, 3]], []
    for sharpness in (1.0, 0.0):
        model.sharpness = sharpness
        scores.append(float(model.score(ids, ids)[1][0]))
    np.testing.assert_allclose(scores[1], 4 * -np.log(V), rtol=1e-5)
    assert abs(scores[0] - scores[1]) > 1e-3


def test_start_and_end_token_may_be_changed():
    model, other = make_small(), make_small(start_token_id=7, end_token_id=9)
    other.set_weights(model.get_weights())
    source_ids, target_ids = [[4, 5, 6, 3], [8, 3, 0, 0]], [[5, 4], [8, 0]]
    before = model.generate(source_ids)[1], model.score(source_ids, target_ids)
    model.start_token_id, model.end_token_id = 7, 9
    expected = other.generate(source_ids)
    for found, value in zip(model.generate(source_ids), expected, strict=True):
        np.testing.assert_array_equal(found, value)
    assert np.abs(before[0] - expected[1]).max() > 1e-3
    scores, _ = model.score(source_ids, target_ids)
    np.testing.assert_array_equal(
        scores, other.score(source_ids, target_ids)[0]
    )
    assert np.abs(scores - before[1][0]).max() > 1e-3


def test_capacity_is_needed_with_lengths(model):
    with pytest.raises(ValueError, match="`capacity` must be given with `max"):
        model.search(np.full((1, 3), 5), max_lengths=np.array([4], "int32"))


@pytest.mark.slow
def test_prefix_as_long_as_its_target_may_be_compiled(model):
    prefix_ids = np.full((1, 16 + 49), 6)
    target_ids, _ = model.generate(
        np.full((1, 16), 5), target_prefix_ids=prefix_ids, jit_compile=True
    )
    np.testing.assert_array_equal(target_ids[:, :65], prefix_ids)


def test_empty_sources_have_attention_without_targets(model):
    target_ids, _, attention = model.generate(
        np.zeros((2, 3), "int32"), return_attention=True
    )
    assert (target_ids.shape, attention.shape) == ((2, 0), (2, 0, 3))


def test_a_search_without_a_part_cannot_be_made():
    class Halfway(IndependentSearch):
        """Has no `choose`."""

    with pytest.raises(TypeError, match="abstract.*choose"):
        Halfway()

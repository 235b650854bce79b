"""Searches over steps that are no model, against brute force."""

import fractions
import functools
import itertools
import json

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from keras import ops

import keras_transformer as kt
from keras_transformer.search import Problem
from keras_transformer.search import sampling
from keras_transformer.search.constraints import IMPOSSIBLE
from keras_transformer.search.constraints import block_ngrams
from keras_transformer.search.constraints import block_sequences
from keras_transformer.search.logits import log_normalizer
from keras_transformer.search.logits import top_k
from keras_transformer.tensors.slices import take_rows

from .compiled import loops_in_python
from .compiled import traced
from .compiled import xla

V, END, START = 6, 3, 2
FORBIDDEN = (0, START)


def table_step(table):
    """Makes a step whose logits depend on the token before and the position."""
    table = ops.array(table, "float32")  # (T, V, V)

    def step(token_ids, position, cache, ancestry):
        return ops.take(ops.take(table, position, axis=0), token_ids, axis=0), (
            cache
        )

    return step


def run(search, step, start_ids, max_lengths, cache=(), **options):
    options.setdefault("forbidden_token_ids", FORBIDDEN)
    found = search(
        step,
        cache,
        Problem(
            start_ids=ops.array(start_ids, "int32"),
            max_lengths=ops.array(max_lengths, "int32"),
            capacity=max(max_lengths),
            end_token_id=END,
            **options,
        ),
    )
    return [ops.convert_to_numpy(x) for x in found]


@functools.cache
def traced_search(search_type, options, start_ids, max_lengths):
    """Traces a search over a table once, to run it over many."""
    search = search_type(**dict(options))

    @traced
    def over_table(table):
        return tuple(
            search(
                table_step(table),
                (),
                Problem(
                    start_ids=ops.array(start_ids, "int32"),
                    max_lengths=ops.array(max_lengths, "int32"),
                    capacity=max(*max_lengths, 1),
                    end_token_id=END,
                    forbidden_token_ids=FORBIDDEN,
                ),
            )
        )

    return over_table


def run_traced(search_type, options, table, start_ids, max_lengths):
    over_table = traced_search(
        search_type, tuple(options.items()), start_ids, max_lengths
    )
    found = over_table(np.float32(table))
    return [ops.convert_to_numpy(x) for x in found]


def table_of(length, seed=0, scale=1.5):
    generator = np.random.default_rng(seed)
    return scale * generator.normal(size=(length, V, V))


def log_shares(table):
    return table - np.log(np.sum(np.exp(table), axis=-1, keepdims=True))


PENALTIES = {
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,
    "power": lambda length, alpha: length ** float(alpha),
}


def every_target(table, start_id, length, alpha, form="gnmt"):
    """All targets there are, best first, with their scores."""
    logs = log_shares(table)
    targets = []
    tokens = [token for token in range(V) if token not in FORBIDDEN]
    for size in range(1, length + 1):
        for target in itertools.product(tokens, repeat=size):
            if END in target[:-1] or (target[-1] != END and size < length):
                continue
            before = (start_id, *target)
            total = sum(
                logs[position, before[position], token]
                for position, token in enumerate(target)
            )
            targets.append((total / PENALTIES[form](size, alpha), target))
    return sorted(targets, reverse=True)


def unpadded(row):
    return tuple(token for token in row.tolist() if token)


# Beam search.


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("form", PENALTIES)
@pytest.mark.parametrize("patience", [None, 1.0])
def test_full_width_equals_exhaustive_search(alpha, form, patience):
    length = 4
    table = table_of(length)
    expected = every_target(table, START, length, alpha, form)
    search = kt.BeamSearch(
        width=len(expected),
        length_penalty=alpha,
        num_hypotheses=len(expected),
        patience=patience,
        length_penalty_form=form,
    )
    target_ids, scores, token_scores = run(
        search, table_step(table), [START], [length]
    )
    np.testing.assert_allclose(
        scores[0], [score for score, _ in expected], atol=1e-4
    )
    assert {unpadded(row) for row in target_ids[0]} == {
        target for _, target in expected
    }
    lengths = np.sum(target_ids[0] != 0, axis=1)
    np.testing.assert_allclose(
        token_scores[0].sum(axis=1) / PENALTIES[form](lengths, alpha),
        scores[0],
        atol=1e-4,
    )


SEEDS = st.integers(0, 10_000)
BEAMS = [
    {"width": 2, "length_penalty": 0.0},
    {"width": 3, "length_penalty": 0.6},
    {"width": 5, "length_penalty": 1.0, "patience": 1.0},
    {"width": 4, "length_penalty": -0.5, "patience": 2.0},
    {"width": 3, "length_penalty": 1.0, "length_penalty_form": "power"},
]
each_beam = pytest.mark.parametrize("options", BEAMS)


@each_beam
@settings(deadline=None, max_examples=20)
@given(seed=SEEDS)
def test_hypotheses_are_sorted_distinct_and_truly_scored(options, seed):
    length = 5
    table = table_of(length, seed)
    known = {
        target: score
        for score, target in every_target(
            table,
            START,
            length,
            options["length_penalty"],
            options.get("length_penalty_form", "gnmt"),
        )
    }
    target_ids, scores, _ = run_traced(
        kt.BeamSearch,
        {**options, "num_hypotheses": options["width"]},
        table,
        (START,),
        (length,),
    )
    assert (np.diff(scores[0]) <= 0).all()
    found = [unpadded(row) for row in target_ids[0]]
    assert len(set(found)) == len(found)
    np.testing.assert_allclose(
        scores[0], [known[target] for target in found], atol=1e-4
    )


@pytest.mark.parametrize("patience", [None, 1.0])
@settings(deadline=None, max_examples=20)
@given(seed=SEEDS)
def test_width_1_equals_greedy_search(patience, seed):
    table = table_of(7, seed)
    problem = ((START, 4, 5), (7, 3, 0))
    target_ids, scores, token_scores = run_traced(
        kt.BeamSearch, {"width": 1, "patience": patience}, table, *problem
    )
    expected_ids, totals, expected = run_traced(
        kt.GreedySearch, {}, table, *problem
    )
    np.testing.assert_array_equal(target_ids, expected_ids)
    np.testing.assert_allclose(token_scores, expected, atol=1e-5)
    lengths = np.sum(target_ids != 0, axis=2)
    np.testing.assert_allclose(
        scores, totals / ((5 + lengths) / 6) ** 0.6, atol=1e-4
    )


@each_beam
@settings(deadline=None, max_examples=10)
@given(seed=SEEDS)
def test_sentences_of_a_batch_do_not_touch_each_other(options, seed):
    table = table_of(6, seed)
    starts, lengths = (START, 4, 5, 1), (6, 2, 0, 5)
    together = run_traced(kt.BeamSearch, options, table, starts, lengths)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        alone = run_traced(kt.BeamSearch, options, table, (start,), (length,))
        for one, all_rows in zip(alone, together, strict=True):
            one, row_of_all = one[0], all_rows[row]
            if one.ndim == 2:  # of tokens, with padding
                assert not row_of_all[:, length:].any()
                one, row_of_all = one[:, :length], row_of_all[:, :length]
            np.testing.assert_allclose(row_of_all, one, atol=1e-5)


def test_hypotheses_that_do_not_exist_have_no_score():
    # One token and the end: of length 2 there are two targets.
    table = np.zeros((2, V, V))
    search = kt.BeamSearch(width=4, num_hypotheses=4)
    target_ids, scores, _ = run(
        search,
        table_step(table),
        [START],
        [2],
        forbidden_token_ids=(0, 1, START, 5),
    )
    assert {unpadded(row) for row in target_ids[0]} == {
        (END,),
        (4, END),
        (4, 4),
        (),
    }
    assert np.isfinite(scores[0]).tolist() == [True, True, True, False]
    assert scores[0, 3] == -np.inf


def positions_of(search, table, max_lengths):
    """The positions at which a search makes a step, and what it finds."""
    positions = []
    step = table_step(table)

    def counted(token_ids, position, cache, ancestry):
        positions.append(int(position))
        return step(token_ids, position, cache, ancestry)

    with loops_in_python():
        found = run(search, counted, [START] * len(max_lengths), max_lengths)
    return positions, found


def sure_table(length, end_at, share=0.9):
    """Token 4 until the end, which is as probable as `share` at `end_at`."""
    table = np.full((length, V, V), -20.0)
    table[:, :, 4] = 0.0
    table[end_at, :, END] = np.log(share / (1 - share))
    return table


def test_search_stops_where_no_hypothesis_can_win():
    # After the end at position 1, others have a tenth of the probability.
    search = kt.BeamSearch(width=2, length_penalty=0.0)
    positions, (target_ids, _, _) = positions_of(
        search, sure_table(50, 1), [50]
    )
    assert unpadded(target_ids[0, 0]) == (4, END)
    assert positions == [0, 1]


def test_search_goes_on_while_a_hypothesis_can_win():
    # One in ten goes on, and becomes the better one by its length.
    table = sure_table(60, 1)
    table[59, :, END] = 20.0
    search = kt.BeamSearch(width=2, length_penalty=2.0)
    positions, (target_ids, _, _) = positions_of(search, table, [60])
    assert len(unpadded(target_ids[0, 0])) == 60
    assert positions == list(range(60))


def test_patience_counts_finished_hypotheses():
    table = np.full((30, V, V), -5.0)
    table[:, :, 4] = table[:, :, END] = 0.0  # an end is likely at any time
    steps = [
        len(
            positions_of(
                kt.BeamSearch(2, length_penalty=3.0, patience=patience),
                table,
                [30],
            )[0]
        )
        for patience in (1.0, 3.0)
    ]
    assert steps[0] == 2
    assert 2 < steps[1] < 30


def test_patience_waits_for_all_hypotheses():
    table = table_of(6, seed=2)
    search = kt.BeamSearch(4, num_hypotheses=4, patience=0.25)
    _, scores, _ = run(search, table_step(table), [START], [6])
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    "search",
    [kt.GreedySearch(), kt.BeamSearch(2), kt.Sampling(seed=1)],
    ids=lambda search: type(search).__name__,
)
def test_ids_and_logits_may_be_of_other_dtypes(search):
    step = table_step(np.round(table_of(3, seed=4)))  # exact in bfloat16

    def other_step(*arguments):
        logits, cache = step(*arguments)
        return ops.cast(logits, "bfloat16"), cache

    problem = Problem(
        start_ids=np.array([1, 4]),
        max_lengths=np.array([3, 2]),
        capacity=3,
        end_token_id=END,
        forbidden_token_ids=FORBIDDEN,
    )
    found = [ops.convert_to_numpy(x) for x in search(other_step, (), problem)]
    expected = run(search, step, [1, 4], [3, 2])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda ids: ids[:, :, None], ValueError, r"shape \(B, W\).*, 3, 1\)"),
        (lambda ids: ids[:, :1], ValueError, r"shape \(.*, 3\).* 1\)"),
        (lambda ids: ops.cast(ids, "float32"), TypeError, "ids, .*: float32"),
    ],
)
def test_what_is_chosen_must_be_ids(change, error, message):
    class Other(kt.Sampling):
        def choose(self, logits, position, problem):
            return change(super().choose(logits, position, problem))

    search = Other(num_hypotheses=3)
    with pytest.raises(error, match=rf"`choose.*{message}"):
        run(search, table_step(table_of(3, seed=4)), [1, 4], [3, 3])


def test_a_prefix_is_kept_whatever_is_chosen():
    class SecondBest(kt.GreedySearch):
        def choose(self, logits, position, problem):
            return top_k(logits, 2)[1][:, :, 1]

    prefix_ids = ops.array([[5, 4, 0], [1, 0, 0]], "int32")
    target_ids, *_ = run(
        SecondBest(),
        table_step(table_of(3, seed=4)),
        [1, 4],
        [3, 3],
        prefix_ids=prefix_ids,
    )
    assert target_ids[0, 0, :2].tolist() == [5, 4]
    assert target_ids[1, 0, 0] == 1


@pytest.mark.parametrize(
    "search",
    [
        kt.BeamSearch(np.int64(3), np.float32(0.5), np.int32(2), np.int64(1)),
        kt.Sampling(np.float32(0.5), np.int64(3), seed=np.int64(7)),
        kt.GreedySearch(np.float32(1.5), np.int64(2), np.array([1])),
    ],
    ids=lambda search: type(search).__name__,
)
def test_numbers_of_numpy_can_be_written(search):
    config = search.get_config()
    assert json.loads(json.dumps(config)) == config


def test_ancestry_names_the_slot_at_each_position():
    """A step that reads what it kept gives each hypothesis its own past."""
    width, length = 3, 5
    table = table_of(length, seed=4)

    def step(token_ids, position, cache, ancestry):
        # The cache holds the tokens fed so far, (B, T, W), never moved.
        cache = ops.slice_update(
            cache, (0, position, 0), ops.expand_dims(token_ids, 1)
        )
        pasts = []
        for slot in range(width):
            slots = ops.expand_dims(ancestry[:, slot], 2)  # (B, T, 1)
            past = ops.take_along_axis(cache, slots, axis=2)[..., 0]
            so_far = ops.arange(length) <= position
            pasts.append(ops.sum(ops.where(so_far, past, 0), axis=1))
        sums = ops.stack(pasts, axis=1) % V  # (B, W)
        logits = ops.take(
            ops.take(ops.array(table, "float32"), position, axis=0),
            sums,
            axis=0,
        )
        return logits, cache

    search = kt.BeamSearch(width, length_penalty=0.0, num_hypotheses=width)
    target_ids, scores, _ = run(
        search,
        step,
        [START],
        [length],
        cache=ops.zeros((1, length, width), "int32"),
    )
    logs = log_shares(table)
    for target, score in zip(target_ids[0], scores[0], strict=True):
        past, total = START, 0.0
        for position, token in enumerate(unpadded(target)):
            total += logs[position, past % V, token]
            past += token
        np.testing.assert_allclose(total, score, atol=1e-4)


# Greedy search.


def test_greedy_search_follows_a_table():
    table = np.repeat(table_of(1, seed=2), 7, axis=0)
    start_ids, max_lengths = [1, 4, 5], [7, 3, 0]
    target_ids, scores, _ = run(
        kt.GreedySearch(), table_step(table), start_ids, max_lengths
    )
    logs = log_shares(table[0])
    allowed = logs.copy()
    allowed[:, FORBIDDEN] = -np.inf
    for row, token_id in enumerate(start_ids):
        expected, score = [], 0.0
        while len(expected) < max_lengths[row] and END not in expected:
            score += allowed[token_id].max()
            token_id = allowed[token_id].argmax()
            expected.append(token_id)
        assert unpadded(target_ids[row, 0]) == tuple(expected)
        np.testing.assert_allclose(scores[row, 0], score, rtol=1e-5)


def test_search_gives_each_step_its_position_and_cache():
    def step(token_ids, position, cache, ancestry):
        assert ancestry is None
        logits = ops.one_hot(4 + position + cache, 13)
        logits = ops.reshape(logits, (1, 1, 13))
        return ops.tile(logits, (2, 1, 1)), cache + 3

    target_ids, _, _ = run(
        kt.GreedySearch(), step, [START, 5], [3, 3], cache=ops.array(0)
    )
    assert target_ids.tolist() == [[[4, 8, 12]], [[4, 8, 12]]]


@pytest.mark.parametrize(
    "search", [kt.GreedySearch(), kt.BeamSearch(2), kt.Sampling()]
)
def test_search_stops_when_every_sentence_has_ended(search):
    positions = []

    def step(token_ids, position, cache, ancestry):
        positions.append(int(position))
        return ops.one_hot(token_ids + 1, 13) * 99.0, cache

    with loops_in_python():
        target_ids, _, _ = run(
            search,
            step,
            [END - 1, 4],
            [500, 5],
            forbidden_token_ids=(0,),
        )
    assert positions == [0, 1, 2, 3, 4]
    assert target_ids.shape == (2, 1, 500)
    assert unpadded(target_ids[0, 0]) == (END,)
    assert unpadded(target_ids[1, 0]) == (5, 6, 7, 8, 9)


@pytest.mark.parametrize(
    "search", [kt.GreedySearch(), kt.BeamSearch(2), kt.Sampling()]
)
def test_search_over_nothing_makes_no_step(search):
    def step(token_ids, position, cache, ancestry):
        raise AssertionError

    with loops_in_python():
        target_ids, scores, _ = run(search, step, [4, 4], [0, 0])
    assert target_ids.shape == (2, 1, 0)
    assert scores.tolist() == [[0], [0]]


# Constraints.

SEARCHES = {
    "greedy": kt.GreedySearch,
    "beam": lambda **options: kt.BeamSearch(
        width=3, num_hypotheses=3, **options
    ),
    "sampling": lambda **options: kt.Sampling(
        num_hypotheses=3, seed=5, **options
    ),
}
each_search = pytest.mark.parametrize(
    "make", SEARCHES.values(), ids=SEARCHES.keys()
)


@each_search
def test_forbidden_tokens_are_never_chosen(make):
    table = table_of(9, seed=3)
    target_ids, _, _ = run(
        make(forbidden_token_ids=[4, END]), table_step(table), [START], [9]
    )
    assert set(target_ids.flatten().tolist()) == {1, 5}


@each_search
def test_forbidden_tokens_must_be_in_the_vocabulary(make):
    for name, ids in (
        ("forbidden_token_ids", [V]),
        ("forbidden_sequences", [[1, 4], [4, V]]),
    ):
        message = rf"`{name}` must be in \[0, 6\), the ids of the vocabulary"
        with pytest.raises(ValueError, match=message), loops_in_python():
            run(make(**{name: ids}), table_step(table_of(2)), [START], [2])


@each_search
def test_min_lengths_delay_the_end(make):
    table = table_of(9, seed=3)
    table[:, :, END] += 9
    target_ids, _, _ = run(
        make(),
        table_step(table),
        [START, START],
        [9, 9],
        min_lengths=ops.array([5, 0], "int32"),
    )
    assert not (target_ids[0, :, :5] == END).any()
    assert (target_ids[0, :, 5] == END).any()
    assert (target_ids[1, :, 0] == END).any()


@each_search
def test_there_is_no_target_where_nothing_is_allowed(make):
    target_ids, scores, token_scores = run(
        make(forbidden_token_ids=[1, 4, 5]),
        table_step(table_of(9, seed=3)),
        [START, START],
        [9, 9],
        min_lengths=ops.array([3, 0], "int32"),
    )
    assert not target_ids[0].any() and not token_scores[0].any()
    assert (scores[0] == -np.inf).all()
    assert target_ids[1, 0, 0] == END and np.isfinite(scores[1, 0])


@each_search
def test_prefixes_are_forced_and_scored(make):
    table = table_of(6, seed=7)
    prefix_ids = np.array([[5, 1, 4, 0, 0, 0], [4, 0, 0, 0, 0, 0]], "int32")
    target_ids, _, token_scores = run(
        make(),
        table_step(table),
        [START, START],
        [6, 6],
        prefix_ids=ops.array(prefix_ids),
    )
    assert (target_ids[0, :, :3] == [5, 1, 4]).all()
    assert (target_ids[1, :, :1] == [4]).all()
    logs = log_shares(table)
    expected = [logs[0, START, 5], logs[1, 5, 1], logs[2, 1, 4]]
    np.testing.assert_allclose(
        token_scores[0, :, :3],
        np.tile(expected, (len(token_scores[0]), 1)),
        atol=1e-5,
    )


@each_search
def test_prefix_may_be_what_the_model_forbids(make):
    table = table_of(4, seed=7)
    table[:, :, 4] = -np.inf
    target_ids, *_ = run(
        make(),
        table_step(table),
        [START],
        [4],
        prefix_ids=ops.array([[5, 4, 0, 0]]),
    )
    assert (target_ids[0, :, :2] == [5, 4]).all()


@each_search
@pytest.mark.parametrize("prefix", [(4,), (4, 4)])
def test_behind_a_forbidden_prefix_the_search_is_the_same(make, prefix):
    table = np.zeros((12, V, V))
    table[:, :, END] = 30
    table[:, :, 4] = -np.inf
    prefix_ids = np.pad(prefix, (0, 12 - len(prefix)))[None]
    target_ids, *_ = run(
        make(),
        table_step(table),
        [START],
        [12],
        prefix_ids=ops.array(prefix_ids, "int32"),
    )
    assert unpadded(target_ids[0, 0]) == (*prefix, END)


@each_search
@pytest.mark.parametrize("size", [1, 2, 3])
def test_ngrams_are_not_repeated(make, size):
    table = table_of(12, seed=8)
    table[:, :, END] -= 9
    target_ids, _, _ = run(
        make(no_repeat_ngram_size=size), table_step(table), [START], [12]
    )
    for row in target_ids[0]:
        tokens = unpadded(row)
        ngrams = [
            tokens[start : start + size]
            for start in range(len(tokens) - size + 1)
        ]
        assert len(set(ngrams)) == len(ngrams)


@pytest.mark.parametrize("size", [1, 2, 8, 9, 20])
@pytest.mark.parametrize("how", [None, traced, xla], ids=["", "traced", "xla"])
def test_what_would_end_an_ngram_again_is_blocked(how, size):
    generator = np.random.default_rng(size)
    repeated = generator.integers(3, 30, (2, 3, 11))  # V is too few for it
    target_ids = np.concatenate([repeated] * 4, axis=2)[:, :, :40]
    target_ids[1, 2, 5] = 30  # not the same as 11 tokens later
    position = 37
    target_ids[:, :, position:] = 0
    block = functools.partial(block_ngrams, size=size)
    if how is not None:
        block = how(block)
    blocked = block(
        ops.zeros((2, 3, 31)),
        ops.array(target_ids, "int32"),
        ops.array(position, "int32"),
    )
    for index in np.ndindex(2, 3):
        tokens = [*target_ids[index][:position]]
        ngrams = {
            tuple(tokens[start : start + size])
            for start in range(position - size + 1)
        }
        start = tokens[position - size + 1 :] if size > 1 else []
        expected = [x for x in range(31) if (*start, x) in ngrams]
        found = np.flatnonzero(ops.convert_to_numpy(blocked)[index] < 0)
        assert [x for x in found if x] == expected  # padding may be too
        assert expected


def contains(tokens, sequence):
    starts = range(len(tokens) - len(sequence) + 1)
    return any(tuple(tokens[i:][: len(sequence)]) == sequence for i in starts)


SEQUENCES = [(4,), (5, 5), (1, 5, 1), (5, 1, END), (1,) * 9]


@pytest.mark.parametrize("how", [None, traced, xla], ids=["", "traced", "xla"])
@pytest.mark.parametrize("position", [0, 1, 2, 7])
def test_what_would_complete_a_sequence_is_blocked(how, position):
    target_ids = np.random.default_rng(2).choice([1, 5], (40, 2, 8))
    target_ids[:, :, position:] = 0
    block = functools.partial(block_sequences, sequences=SEQUENCES)
    if how is not None:
        block = how(block)
    blocked = block(
        ops.zeros((40, 2, V)),
        ops.array(target_ids, "int32"),
        ops.array(position, "int32"),
    )
    seen = set()
    for index in np.ndindex(40, 2):
        tokens = tuple(target_ids[index][:position])
        expected = [
            x
            for x in range(1, V)
            if any((*tokens, x)[-len(ids) :] == ids for ids in SEQUENCES)
        ]
        found = np.flatnonzero(ops.convert_to_numpy(blocked)[index] < 0)
        assert [x for x in found if x] == expected  # padding may be too
        seen.update(expected)
    assert seen == {0: {4}, 1: {4, 5}}.get(position, {1, END, 4, 5})


@each_search
def test_no_target_contains_a_forbidden_sequence(make):
    table = table_of(12, seed=8)
    table[:, :, END] -= 3
    free, _, _ = run(make(), table_step(table), [START], [12])
    sequences = [unpadded(free[0, 0])[i : i + 2] for i in (1, 4)]
    target_ids, scores, _ = run(
        make(forbidden_sequences=sequences), table_step(table), [START], [12]
    )
    assert np.isfinite(scores).all()
    for row in target_ids[0]:
        assert not any(contains(unpadded(row), ids) for ids in sequences)


def test_full_width_is_exhaustive_without_forbidden_sequences():
    table = table_of(4)
    sequences = [(4, 5), (1, 1, 5), (5, END)]
    expected = every_target(table, START, 4, 0.6, "gnmt")
    allowed = [
        target
        for _, target in expected
        if not any(contains(target, ids) for ids in sequences)
    ]
    search = kt.BeamSearch(
        len(expected), 0.6, len(allowed), forbidden_sequences=sequences
    )
    target_ids, _, _ = run(search, table_step(table), [START], [4])
    assert [*map(unpadded, target_ids[0])] == allowed
    assert 10 < len(allowed) < len(expected)


@each_search
def test_a_prefix_may_contain_what_is_forbidden(make):
    table = table_of(6, seed=7)
    table[2, 4] += [0, 9, 0, 0, 0, 0]  # behind the prefix, 1 is far ahead

    def found(sequences):
        target_ids, _, _ = run(
            make(forbidden_sequences=sequences),
            table_step(table),
            [START],
            [6],
            prefix_ids=ops.array([[5, 4, 0, 0, 0, 0]]),
        )
        assert (target_ids[0, :, :2] == [5, 4]).all()
        return target_ids[0, :, 2].tolist()

    assert set(found([(5, 4)])) == {1}
    assert 1 not in found([(5, 4), (4, 1)])


@each_search
def test_where_a_sequence_is_forbidden_there_may_be_no_target(make):
    search = make(forbidden_sequences=[[1], [END], [4], [5]])
    target_ids, scores, _ = run(search, table_step(table_of(2)), [START], [2])
    assert not target_ids.any() and (scores == -np.inf).all()


@pytest.mark.parametrize("lowest", [float("-inf"), -1e9])
@each_search
def test_a_constraint_of_a_user_may_leave_no_target(make, lowest):
    class Dead(type(make())):
        def constrain(self, logits, target_ids, position, problem):
            x = super().constrain(logits, target_ids, position, problem)
            return ops.where(position >= 2, lowest, x)

    search = Dead.from_config(make().get_config())
    table = table_of(9)
    table[:, :, END] = -50.0
    step = table_step(table)
    target_ids, scores, token_scores = run(search, step, [START], [9])
    assert not target_ids.any() and not token_scores.any()
    assert (scores == -np.inf).all()
    target_ids, scores, _ = run(search, step, [START], [2])
    assert target_ids.all() and np.isfinite(scores).all()


@pytest.mark.parametrize("kind", [kt.GreedySearch, kt.Sampling])
def test_a_prefix_is_kept_whatever_is_constrained(kind):
    class Narrow(kind):
        def constrain(self, logits, target_ids, position, problem):
            x = super().constrain(logits, target_ids, position, problem)
            return ops.where(ops.arange(V) == 1, x, float("-inf"))

    target_ids, scores, _ = run(
        Narrow(),
        table_step(table_of(4)),
        [START],
        [4],
        prefix_ids=ops.array([[5, 4, 0, 0]], "int32"),
    )
    assert target_ids[0, 0].tolist() == [5, 4, 1, 1]
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("kind", [kt.GreedySearch, kt.Sampling])
def test_logits_that_are_no_numbers_are_no_constraint(kind):
    table = table_of(4)
    table[:, :, END] = -50.0
    table[2] = np.nan
    options = {"forbidden_token_ids": (4,)}
    found = run_traced(kind, options, table, (START,), (4,))
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize("kind", [kt.GreedySearch, kt.Sampling])
def test_who_chooses_what_is_forbidden_finds_no_target(kind):
    class Ends(kind):
        def choose(self, logits, position, problem):
            chosen = super().choose(logits, position, problem)
            return ops.where(position == 1, self.token_id, chosen)

    search = Ends()
    table = table_of(4)
    table[:, :, END] = -50.0
    for token_id, least, is_found in (
        (END, 0, True),
        (END, 3, False),
        (0, 0, False),
    ):
        search.token_id = token_id
        target_ids, scores, _ = run(
            search,
            table_step(table),
            [START],
            [4],
            min_lengths=ops.array([least], "int32") if least else None,
        )
        assert np.isfinite(scores).all() == is_found
        assert len(unpadded(target_ids[0, 0])) == (2 if is_found else 0)


@pytest.mark.parametrize("ids", [[START], [START, 4], [4, 0]])
def test_a_sequence_that_no_target_has_is_refused(ids):
    search = kt.GreedySearch(forbidden_sequences=[[4, 5], ids])
    message = r"`forbidden_sequences` must not have .*are \[0, 2\].* \["
    with pytest.raises(ValueError, match=message):
        run(search, table_step(table_of(2)), [START], [2])


def test_ngrams_longer_than_a_target_block_nothing():
    logits = ops.ones((1, 1, V))
    target_ids = ops.ones((1, 1, 4), "int32")
    search = kt.GreedySearch(no_repeat_ngram_size=10**9)  # and cost nothing
    problem = Problem(ops.array([START]), ops.array([4]), 4, END)
    constrained = search.constrain(logits, target_ids, 3, problem)
    assert np.array_equal(constrained, logits)


def test_repetition_penalty_scales_the_log_probability_of_what_was():
    table = np.tile(np.log([1, 2, 1, 1, 3, 1.5]), (3, V, 1))
    target_ids, scores, _ = run(
        kt.GreedySearch(repetition_penalty=2.0),
        table_step(table),
        [START],
        [3],
        min_lengths=ops.array([3], "int32"),
    )
    # 4 comes first; its share of 3 in 9.5 then counts as the square of it.
    assert unpadded(target_ids[0, 0]) == (4, 1, 5)
    expected = np.log([3 / 9.5, 2 / 9.5, 1.5 / 9.5]).sum()
    np.testing.assert_allclose(scores[0, 0], expected, rtol=1e-5)


# Sampling.


def sampled(num_hypotheses, logits, **options):
    table = np.tile(logits, (1, V, 1))
    target_ids, _, _ = run(
        kt.Sampling(num_hypotheses=num_hypotheses, **options),
        table_step(table),
        [START],
        [1],
    )
    counts = np.bincount(target_ids.flatten(), minlength=V)
    return counts / num_hypotheses


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 0.1, 0, 0.2, 0.3, 0.4]),
        ({"top_k": 2}, [0, 0, 0, 0, 3 / 7, 4 / 7]),
        ({"top_p": 0.65}, [0, 0, 0, 0, 3 / 7, 4 / 7]),
        ({"top_p": 0.75}, [0, 0, 0, 2 / 9, 3 / 9, 4 / 9]),
        ({"top_p": 0.01}, [0, 0, 0, 0, 0, 1]),
        ({"top_k": 1}, [0, 0, 0, 0, 0, 1]),
        (
            {"temperature": 0.5},
            np.array([0, 0.01, 0, 0.04, 0.09, 0.16]) / 0.3,
        ),
        ({"temperature": 1e-4}, [0, 0, 0, 0, 0, 1]),
    ],
)
def test_samples_have_the_frequencies_of_the_distribution(options, expected):
    logits = np.log([1e-9, 0.1, 1e-9, 0.2, 0.3, 0.4])
    for seed in (0, 1):
        frequencies = sampled(4000, logits, seed=seed, **options)
        np.testing.assert_allclose(frequencies, expected, atol=0.03)
        assert (frequencies[np.equal(expected, 0)] == 0).all()


@pytest.mark.parametrize("size", [1023, 1024, 300_001])
def test_many_improbable_tokens_are_drawn_as_they_are_probable(size):
    """Also behind a large one, where each is a few steps of float32."""
    logits = np.zeros((1, 1, size), "float32")
    logits[..., 5] = np.log(9 * size)
    logits[..., 6:] -= 1.5
    mass = np.exp(logits[0, 0].astype("float64"))
    through = mass[:6].sum() / mass.sum()  # the large one
    shares = np.float32(through + np.array([-1, 1]) * 1e-4)
    search = kt.Sampling(num_hypotheses=2)
    found = search._draw(np.repeat(logits, 2, axis=1), shares[np.newaxis])
    [[large, small]] = ops.convert_to_numpy(found)
    assert large == 5 < small


def test_seeds_and_positions_draw_anew():
    table = np.zeros((40, V, V))
    table[:, :, END] = -99
    drawn = [
        run(
            kt.Sampling(num_hypotheses=2, seed=seed),
            table_step(table),
            [START],
            [40],
        )[0]
        for seed in (0, 0, 1, -7)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    rows = [row.tolist() for ids in drawn[1:] for row in ids[0]]
    for one, other in itertools.combinations(rows, 2):
        assert 0 < np.mean(np.equal(one, other)) < 0.7
    assert all(len(set(row)) == 3 for row in rows)


def test_scores_of_samples_are_those_of_the_model():
    table = table_of(4)
    target_ids, scores, _ = run(
        kt.Sampling(temperature=3.0, top_k=3, num_hypotheses=5),
        table_step(table),
        [START],
        [4],
    )
    known = {t: score for score, t in every_target(table, START, 4, 0.0)}
    np.testing.assert_allclose(
        scores[0], [known[unpadded(row)] for row in target_ids[0]], atol=1e-4
    )


@pytest.mark.parametrize("size", [40, 3001])
def test_a_share_of_all_tokens_ends_in_one_that_has_some(size):
    logits = np.random.default_rng(3).normal(size=size)
    logits[[0, 5, size - 1]] = IMPOSSIBLE
    masses = np.exp(logits / 0.8) * (logits > IMPOSSIBLE / 2)
    through = np.cumsum(masses) / masses.sum()
    tokens = [1, 4, 6, 30, size - 2]
    shares = [through[token] - through[token - 1] for token in tokens]
    shares = through[tokens] - np.array(shares) / 2
    # From the least to the most that is drawn.
    shares = np.array([0.0, *shares, 1 - 2.0**-23])
    search = kt.Sampling(0.8, num_hypotheses=len(shares))
    found = search._draw(
        ops.tile(ops.array(logits, "float32"), (1, len(shares), 1)),
        ops.array(shares[np.newaxis], "float32"),
    )
    found = ops.convert_to_numpy(found).tolist()
    assert found == [[1, *tokens, size - 2]]


def test_samples_of_a_large_vocabulary_are_those_of_a_sorted_one(monkeypatch):
    logits = np.random.default_rng(3).normal(size=(2, 7, 3001))
    problem = Problem(
        start_ids=ops.array([START, START], "int32"),
        max_lengths=ops.array([1, 1], "int32"),
        capacity=1,
        end_token_id=END,
    )

    def drawn():
        search = kt.Sampling(top_k=4, num_hypotheses=7)
        token_ids = search.choose(ops.array(logits, "float32"), 0, problem)
        return ops.convert_to_numpy(token_ids)

    by_chunks = drawn()
    monkeypatch.setattr(sampling, "top_k", ops.top_k)
    np.testing.assert_array_equal(by_chunks, drawn())


# All of them.


@pytest.mark.parametrize(
    "search",
    [
        kt.GreedySearch(forbidden_token_ids=[1]),
        kt.BeamSearch(5, 0.3, 2, 1.5, 1.2, 3, [1], "power", [[4], [5, 1]]),
        kt.Sampling(0.7, 5, 0.9, 2, 11, 1.2, 3, [1], np.array([[4, 5]])),
    ],
)
def test_searches_can_be_saved(search):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(search)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(search)
    assert again.get_config() == search.get_config()


@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("size", [40, 512, 2048, 3001])
def test_largest_by_chunks_are_the_largest(size, k):
    x = np.random.default_rng(k).normal(size=(2, 3, size)).astype("float32")
    x[0, 0, : size // 2] = -1e9  # as most tokens are after a prefix
    values, places = map(ops.convert_to_numpy, top_k(ops.array(x), k))
    expected = np.argsort(-x, axis=-1)[..., :k]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(
        values, np.take_along_axis(x, expected, axis=-1)
    )


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 7)])
def test_rows_of_each_sentence_are_taken_by_their_places(shape):
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    places = np.array([[4, 0, 4], [1, 2, 0]], "int32")
    found = ops.convert_to_numpy(take_rows(ops.array(x), ops.array(places)))
    expected = [row[chosen] for row, chosen in zip(x, places, strict=True)]
    np.testing.assert_array_equal(found, expected)


def test_log_normalizer_makes_probabilities():
    logits = np.array([[1.0, 2.0, -3.0], [0.0, 0.0, 90.0]], "float32")
    shares = ops.exp(ops.array(logits) - log_normalizer(ops.array(logits)))
    np.testing.assert_allclose(ops.sum(shares, axis=1), [1, 1], rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: kt.BeamSearch(0), ValueError, "`width` must be at least 1"),
        (lambda: kt.BeamSearch(1.5), TypeError, "`width` must be an integer"),
        (
            lambda: kt.BeamSearch(length_penalty=float("nan")),
            ValueError,
            "`length_penalty` must be finite. Received: length_penalty=nan",
        ),
        (
            lambda: kt.BeamSearch(length_penalty=float("inf")),
            ValueError,
            "`length_penalty` must be finite",
        ),
        (
            lambda: kt.BeamSearch(length_penalty=10**400),
            ValueError,
            "`length_penalty` must be finite",
        ),
        (
            lambda: kt.BeamSearch(length_penalty=-200),
            ValueError,
            r"`length_penalty` must be in \[-7, 7\]. Received: .*=-200",
        ),
        (
            lambda: kt.BeamSearch(length_penalty=fractions.Fraction(3, 5)),
            TypeError,
            "`length_penalty` must be a number",
        ),
        (
            lambda: kt.BeamSearch(length_penalty="0.6"),
            TypeError,
            "`length_penalty` must be a number",
        ),
        (
            lambda: kt.BeamSearch(length_penalty_form="wu"),
            ValueError,
            "`length_penalty_form` must be one of 'gnmt', 'power'. "
            "Received: length_penalty_form='wu'",
        ),
        (
            lambda: kt.BeamSearch(2, num_hypotheses=3),
            ValueError,
            "`num_hypotheses` must be at most `width`",
        ),
        (
            lambda: kt.BeamSearch(patience=0),
            ValueError,
            "`patience` must be greater than 0",
        ),
        (
            lambda: kt.GreedySearch(repetition_penalty=0),
            ValueError,
            "`repetition_penalty` must be greater than 0",
        ),
        (
            lambda: kt.GreedySearch(no_repeat_ngram_size=-1),
            ValueError,
            "`no_repeat_ngram_size` must not be negative",
        ),
        (
            lambda: kt.GreedySearch(forbidden_token_ids=3),
            TypeError,
            "`forbidden_token_ids` must be a sequence of ids",
        ),
        (
            lambda: kt.GreedySearch(forbidden_token_ids=[-1]),
            ValueError,
            "`forbidden_token_ids` must not be negative",
        ),
        (
            lambda: kt.BeamSearch(forbidden_sequences=np.array(5)),
            TypeError,
            "`forbidden_sequences` must be a sequence of sequences of ids",
        ),
        (
            lambda: kt.BeamSearch(forbidden_sequences=[4, 5]),
            TypeError,
            "`forbidden_sequences` must be a sequence of sequences of ids. "
            r"Received: forbidden_sequences\[0\]=4",
        ),
        (
            lambda: kt.Sampling(forbidden_sequences=["ab"]),
            TypeError,
            r"sequence of sequences of ids. Received: .*\[0\]='ab'",
        ),
        (
            lambda: kt.GreedySearch(forbidden_sequences=[[4], []]),
            ValueError,
            "`forbidden_sequences` must not have an empty sequence. Received: "
            "one at 1",
        ),
        (
            lambda: kt.GreedySearch(forbidden_sequences=[[4, -1]]),
            ValueError,
            r"`forbidden_sequences\[0\]` must not be negative",
        ),
        (lambda: kt.Sampling(0.0), ValueError, "`temperature` must be greater"),
        (
            lambda: kt.Sampling(1e-46),
            ValueError,
            "`temperature` must be a float32 that is not 0",
        ),
        (
            lambda: kt.Sampling(float("inf")),
            ValueError,
            "`temperature` must be finite",
        ),
        (lambda: kt.Sampling(top_k=0), ValueError, "`top_k` must be at least"),
        (
            lambda: kt.Sampling(top_p=0.0),
            ValueError,
            r"`top_p` must be in \(0, 1\]. Received: top_p=0.0",
        ),
        (
            lambda: kt.Sampling(top_p=1.5),
            ValueError,
            r"`top_p` must be in \(0, 1\]. Received: top_p=1.5",
        ),
        (
            lambda: kt.Sampling(num_hypotheses=0),
            ValueError,
            "`num_hypotheses` must be at least 1",
        ),
        (lambda: kt.Sampling(seed=0.5), TypeError, "`seed` must be an integer"),
    ],
)
def test_arguments_are_checked(make, error, message):
    with pytest.raises(error, match=message):
        make()

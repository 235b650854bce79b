"""Searches over logits of which most are approximate."""

import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.search import Problem
from keras_transformer.search import ScreenedLogits
from keras_transformer.search import screening
from keras_transformer.search.constraints import IMPOSSIBLE
from keras_transformer.search.logits import log_normalizer
from keras_transformer.search.screening import best_tokens

V = 300


def logits_of(seed, shape=(3, 2, V)):
    return np.random.default_rng(seed).normal(0, 2, shape).astype("float32")


def screened(exact, error, seed=0, all_exact=None):
    """Approximations that are off by up to `error`."""
    random = np.random.default_rng(seed)
    off = random.uniform(-error, error, exact.shape).astype("float32")
    logits = ops.array(exact)
    return ScreenedLogits(
        logits=ops.array(exact + off),
        most_error=ops.full((*exact.shape[:2], 1), error),
        of_tokens=lambda ids: ops.take_along_axis(logits, ids, axis=-1),
        of_all=lambda: logits if all_exact is None else ops.array(all_exact),
    )


def without_seven(logits):
    bias = np.zeros(V, "float32")
    bias[:7] = IMPOSSIBLE
    return logits + ops.array(bias)


@pytest.mark.parametrize("error", [0.0, 0.02, 0.5, 20.0])
@pytest.mark.parametrize("k", [1, 4, V])
def test_screened_tokens_are_the_best_ones(k, error):
    exact = logits_of(1)
    exact[:, :, 3] = 50  # forbidden
    values, ids = best_tokens(screened(exact, error), without_seven, k, False)
    expected = best_tokens(ops.array(exact), without_seven, k, False)
    possible = ops.convert_to_numpy(expected[0]) > IMPOSSIBLE / 2
    for found, wanted in zip((values, ids), expected, strict=True):
        found, wanted = (ops.convert_to_numpy(x) for x in (found, wanted))
        np.testing.assert_allclose(found[possible], wanted[possible], 1e-6)


def test_all_logits_are_computed_only_where_errors_matter():
    exact = logits_of(2)
    others = -exact  # what only computing all logits gives
    expected = ops.convert_to_numpy(ops.argmax(exact, axis=-1))

    def best(error):
        logits = screened(exact, error, all_exact=others)
        _, ids = best_tokens(logits, lambda x: x, 1, False)
        return ops.convert_to_numpy(ids)[:, :, 0]

    np.testing.assert_array_equal(best(0.01), expected)
    least = ops.convert_to_numpy(ops.argmin(exact, axis=-1))
    np.testing.assert_array_equal(best(20.0), least)


def test_a_token_that_errors_hide_is_found():
    exact = np.zeros((1, 1, V), "float32")
    exact[0, 0, 40 : 40 + screening.NUM_SPARE + 2] = 1.0
    approximate = exact.copy()
    exact[0, 0, 40], exact[0, 0, 200] = 1.05, 1.1
    approximate[0, 0, 200] = 0.9
    logits = screened(exact, 0.2)._replace(logits=ops.array(approximate))
    _, ids = best_tokens(logits, lambda x: x, 1, False)
    assert int(ids[0, 0, 0]) == 200
    # Which the approximation alone would not tell.
    logits = logits._replace(most_error=ops.zeros((1, 1, 1)))
    _, ids = best_tokens(logits, lambda x: x, 1, False)
    assert int(ids[0, 0, 0]) != 200


def test_log_probabilities_count_exact_logits():
    exact = logits_of(3)
    exact[:, :, 9:11] = 12.0, 11.0  # almost all of the probability
    logits = screened(exact, 0.1)
    gained, _ = best_tokens(logits, lambda x: x, 2)
    expected, _ = best_tokens(ops.array(exact), lambda x: x, 2)
    rough = ops.max(logits.logits, -1) - log_normalizer(logits.logits)[:, :, 0]
    gained, expected, rough = (
        ops.convert_to_numpy(x) for x in (gained, expected, rough)
    )
    np.testing.assert_allclose(gained, expected, atol=2e-3)
    # Of which approximations alone fall short.
    assert np.abs(rough - expected[:, :, 0]).max() > 2e-3


SEARCHES = [
    kt.GreedySearch(),
    kt.GreedySearch(forbidden_token_ids=(5,), no_repeat_ngram_size=2),
    kt.BeamSearch(4, num_hypotheses=3),
    kt.BeamSearch(2, patience=1, no_repeat_ngram_size=1),
    kt.BeamSearch(
        2, forbidden_sequences=[(n, m) for n in (4, 5) for m in (6, 7)]
    ),
]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("error", [0.01, 5.0])
def test_searches_find_the_same(search, error):
    table = logits_of(4, (V, V))

    def step(token_ids, position, cache, ancestry):
        return ops.take(ops.array(table), token_ids, axis=0), cache

    def screened_step(token_ids, position, cache, ancestry):
        exact = step(token_ids, position, cache, ancestry)[0]
        logits = ScreenedLogits(
            logits=exact + error * ops.sin(1e3 * exact),
            most_error=ops.full_like(exact[:, :, :1], error),
            of_tokens=lambda ids: ops.take_along_axis(exact, ids, axis=-1),
            of_all=lambda: exact,
        )
        return logits, cache

    problem = Problem(
        start_ids=ops.array([2, 7, 30], "int32"),
        max_lengths=ops.array([12, 3, 0], "int32"),
        capacity=12,
        end_token_id=3,
        min_lengths=ops.array([5, 0, 0], "int32"),
        forbidden_token_ids=(0, 2),
    )
    expected, found = (
        search(step, (), problem),
        search(screened_step, (), problem),
    )
    assert search.chooses_largest
    np.testing.assert_array_equal(
        ops.convert_to_numpy(found.target_ids),
        ops.convert_to_numpy(expected.target_ids),
    )
    for name in ("scores", "token_scores"):
        np.testing.assert_allclose(
            ops.convert_to_numpy(getattr(found, name)),
            ops.convert_to_numpy(getattr(expected, name)),
            atol=5e-3,
        )


def test_only_known_searches_without_penalty_choose_the_largest():
    class Own(kt.GreedySearch):
        def choose(self, logits, position, problem):
            return ops.cast(ops.argmin(logits, axis=-1), "int32")

    for search in (
        Own(),
        kt.Sampling(),
        kt.GreedySearch(repetition_penalty=1.2),
        kt.BeamSearch(repetition_penalty=1.2),
    ):
        assert not search.chooses_largest

"""Greedy search: the most probable token at each step."""

import keras
from keras import ops

from keras_transformer.search.search import Hypotheses
from keras_transformer.search.search import Problem
from keras_transformer.search.search import Search
from keras_transformer.search.search import log_normalizer
from keras_transformer.search.search import repeat_while
from keras_transformer.search.search import top_k
from keras_transformer.search.search import write_column
from keras_transformer.special_tokens import PAD_TOKEN_ID


@keras.saving.register_keras_serializable(package="keras_transformer")
class GreedySearch(Search):
    """Chooses the most probable token at each step.

    Stops when every sentence has ended. The score of a target is its
    natural-logarithm probability, the sum over its tokens, in nats.

    Args:
        repetition_penalty: Factor on the log-probability of tokens that the
            target has already; more than 1 discourages them.
        no_repeat_ngram_size: Length of the n-grams, in tokens, that may occur
            only once in a target; 0 for no such rule.
        forbidden_token_ids: Tokens never to choose, such as the unknown one.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If `repetition_penalty` is not greater than 0 and finite,
            or another argument is negative.

    Example:
    >>> def step(token_ids, position, cache, ancestry):  # counts to 3, the end
    ...     return keras.ops.one_hot(token_ids + 1, 5) * 9.0, cache
    >>> found = GreedySearch()(
    ...     step,
    ...     cache=(),
    ...     problem=Problem(
    ...         start_ids=keras.ops.array([0, 1]),
    ...         max_lengths=keras.ops.array([4, 4]),
    ...         capacity=4,
    ...         end_token_id=3,
    ...     ),
    ... )
    >>> keras.ops.convert_to_numpy(found.target_ids).tolist()
    [[[1, 2, 3, 0]], [[2, 3, 0, 0]]]
    """

    def __call__(self, step, cache, problem: Problem) -> Hypotheses:
        """Searches; see the package for `step` and `cache`."""
        return follow(self, choose_best, step, cache, problem)


def choose_best(logits, position):
    """Chooses the largest logits of `(B, W, V)`, and their tokens `(B, W)`."""
    values, token_ids = top_k(logits, 1)
    return ops.squeeze(values, 2), ops.squeeze(token_ids, 2)


def follow(search: Search, choose, step, cache, problem: Problem):
    """Makes `num_hypotheses` targets that know nothing of each other.

    Args:
        search: Whose constraints hold.
        choose: Function of logits `(B, W, V)` and the position to the logits
            and ids, `(B, W)` each, of the tokens that follow.
        step: The function that decodes one step.
        cache: What `step` wants to carry.
        problem: What to search for.

    Returns:
        The `Hypotheses`, in no order.
    """
    width = search.num_hypotheses
    batch_size = ops.shape(problem.start_ids)[0]
    shape = (batch_size, width, problem.capacity)
    max_lengths = ops.expand_dims(problem.max_lengths, 1)  # (B, 1)
    start_ids = ops.expand_dims(ops.cast(problem.start_ids, "int32"), 1)
    ancestry = None
    if width > 1:  # each hypothesis is its own ancestor
        slots = ops.reshape(ops.arange(width, dtype="int32"), (1, width, 1))
        ancestry = ops.zeros(shape, "int32") + slots

    def not_done(position, token_ids, done, target_ids, token_scores, cache):
        return ops.logical_and(
            ops.less(position, problem.capacity),
            ops.logical_not(ops.all(done)),
        )

    def advance(position, token_ids, done, target_ids, token_scores, cache):
        logits, cache = step(token_ids, position, cache, ancestry)
        allowed = search.constrain(logits, target_ids, position, problem)
        values, token_ids = choose(allowed, position)
        gained = values - ops.squeeze(log_normalizer(logits), 2)  # (B, W)

        token_ids = ops.where(done, PAD_TOKEN_ID, token_ids)
        gained = ops.where(done, 0.0, gained)
        target_ids = write_column(target_ids, position, token_ids)
        token_scores = write_column(token_scores, position, gained)
        position = position + 1
        ended = ops.logical_or(
            ops.equal(token_ids, problem.end_token_id),
            ops.greater_equal(position, max_lengths),
        )
        done = ops.logical_or(done, ended)
        return position, token_ids, done, target_ids, token_scores, cache

    state = repeat_while(
        not_done,
        advance,
        (
            ops.convert_to_tensor(0, dtype="int32"),
            ops.tile(start_ids, (1, width)),
            ops.tile(ops.less_equal(max_lengths, 0), (1, width)),
            ops.zeros(shape, dtype="int32"),
            ops.zeros(shape, dtype="float32"),
            cache,
        ),
    )
    target_ids, token_scores = state[3], state[4]
    return Hypotheses(target_ids, ops.sum(token_scores, axis=2), token_scores)

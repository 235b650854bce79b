"""Greedy search: the most probable token at each step."""

import keras
from keras import ops

from keras_transformer.checks import check_kind
from keras_transformer.search.independent import IndependentSearch
from keras_transformer.search.logits import top_k
from keras_transformer.search.search import Search


@keras.saving.register_keras_serializable(package="keras_transformer")
class GreedySearch(IndependentSearch):
    """Chooses the most probable token at each step.

    Stops when every sentence has ended. The score of a target is its
    natural-logarithm probability, the sum over its tokens, in nats. All tokens
    of the vocabulary share the probability, also those that are never chosen.

    Args:
        repetition_penalty: Factor on the log-probability of tokens that the
            target has already; more than 1 discourages them.
        no_repeat_ngram_size: Length of the n-grams, in tokens, that may occur
            only once in a target; 0 for no such rule.
        forbidden_token_ids: Tokens never to choose, such as the unknown one.
        forbidden_sequences: Sequences of ids, such as those of a word, that
            must not occur in a target, but in a prefix of it.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If `repetition_penalty` is not greater than 0 and finite,
            or another argument is negative.

    Example:
    >>> from keras_transformer.search import Problem
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

    @property
    def chooses_largest(self) -> bool:
        return type(self) is GreedySearch and self.repetition_penalty == 1

    def choose(self, logits, position, problem):
        """Chooses the tokens with the largest logits."""
        _, token_ids = top_k(logits, 1)
        return ops.squeeze(token_ids, 2)


def search_or_greedy(search) -> Search:
    """Returns the search given, `GreedySearch()` for `None`, or raises."""
    search = GreedySearch() if search is None else search
    check_kind("search", search, Search, "Pass one, such as `BeamSearch()`.")
    return search

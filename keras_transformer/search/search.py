"""The base of all searches: its steps, its problem and its results."""

import abc
import itertools
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_ids_in_range
from keras_transformer.checks import check_not_negative
from keras_transformer.checks import check_positive_number
from keras_transformer.checks import check_token_ids
from keras_transformer.checks import check_token_sequences
from keras_transformer.search.constraints import IMPOSSIBLE
from keras_transformer.search.constraints import block_ngrams
from keras_transformer.search.constraints import block_sequences
from keras_transformer.search.constraints import force_tokens
from keras_transformer.search.constraints import over_tokens
from keras_transformer.search.constraints import scale_used
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.tensors.slices import take
from keras_transformer.tensors.slices import write_slice


class Hypotheses(NamedTuple):
    """Targets that a search has found, `K` for each sentence.

    `K` is the search's `num_hypotheses`. They are sorted, the best first,
    except those of `Sampling`, which are in no order.

    Attributes:
        target_ids: Int32 tensor `(B, K, T)`, each target through its end
            token, then padding.
        scores: Float32 tensor `(B, K)`, in nats; what hypotheses are ranked
            by. Negative infinity where there was no further hypothesis.
        token_scores: Float32 tensor `(B, K, T)`, natural-logarithm
            probability of each token, 0 at padding. Those of `BeamSearch`,
            which ranks by them, have a repetition penalty in them.
    """

    target_ids: Any
    scores: Any
    token_scores: Any


class Search(abc.ABC):
    """Finds targets token by token, with a function that decodes one step.

    The base of all searches. To write your own, the least work is a subclass
    of `GreedySearch` with another `choose`, which is called for each token.
    `keras_transformer.search` describes what a search takes and returns: the
    function `step`, `Problem` and `Hypotheses`. LiteRT does not support some
    operations, such as `ops.argmax`; use `ops.top_k`. `generate` compiles a
    search for the attributes that it has: numbers, strings and arrays by their
    values, other objects by identity, and on JAX layers with the weights that
    they have by then.

    Args:
        repetition_penalty: Factor on the log-probability of tokens that the
            target has already; more than 1 discourages them
            ([Keskar et al., 2019](https://arxiv.org/abs/1909.05858), who divide
            logits by it, whatever their sign).
        no_repeat_ngram_size: Length of the n-grams, in tokens, that may occur
            only once in a target; 0 for no such rule
            ([Paulus et al., 2017](https://arxiv.org/abs/1705.04304)).
        forbidden_token_ids: Tokens never to choose, such as the unknown one;
            models forbid padding and the start token anyway.
        forbidden_sequences: Sequences of ids that must not occur in a target,
            but in a prefix of it. Models refuse those with padding or the start
            token, which no target has.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a penalty is not positive, a size or id negative, or a
            sequence empty.

    Attributes:
        num_hypotheses: Number of targets to return for each sentence.
        seed: Random seed, an integer, of a search that makes random choices.
            The seed of the problem takes its place if there is one, so that
            one compiled search serves all seeds.

    Example:
    >>> import keras_transformer as kt
    >>> class SecondBest(kt.GreedySearch):
    ...     def choose(self, logits, position, problem):
    ...         _, token_ids = keras.ops.top_k(logits, 2)
    ...         return token_ids[:, :, 1]
    >>> isinstance(SecondBest(), kt.Search)
    True
    >>> model = kt.Transformer(
    ...     13, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8
    ... )
    >>> target_ids, scores = model.generate(
    ...     [[4, 5, 3]], search=SecondBest(), max_length=4
    ... )
    """

    num_hypotheses: int = 1
    seed: int | None = None

    def __init__(
        self,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        forbidden_token_ids=(),
        forbidden_sequences=(),
    ):
        check_positive_number(repetition_penalty=repetition_penalty)
        check_not_negative(no_repeat_ngram_size=no_repeat_ngram_size)
        self.repetition_penalty = plain(repetition_penalty)
        self.no_repeat_ngram_size = plain(no_repeat_ngram_size)
        self.forbidden_token_ids = check_token_ids(
            "forbidden_token_ids", forbidden_token_ids
        )
        self.forbidden_sequences = check_token_sequences(
            "forbidden_sequences", forbidden_sequences
        )

    @property
    def num_slots(self) -> int:
        """Number `W` of hypotheses that a step decodes for each sentence."""
        return self.num_hypotheses

    @property
    def chooses_largest(self) -> bool:
        """Whether it takes `ScreenedLogits`, which have the same best tokens.

        True only of searches that choose the largest logits, and otherwise just
        forbid tokens; false of subclasses, which may do anything.
        """
        return False

    def __call__(self, step, cache, problem) -> Hypotheses:
        """Searches until every sentence is done.

        Args:
            step: As `help(keras_transformer.search)` says.
            cache: What its first call is given.
            problem: The `Problem`.
        """
        state = self.start(problem)
        _, state, _ = self.advance(step, cache, state, problem)
        return self.hypotheses(state)

    @abc.abstractmethod
    def start(self, problem):
        """Creates the state of a search before its first step.

        A named tuple of tensors with a row for each sentence, so that
        sentences can be taken out of it. It has `token_ids` `(B, W)`,
        the tokens chosen last, and `target_ids` `(B, W, T)`, all tokens so
        far, then padding, `T` the problem's capacity.
        """

    @abc.abstractmethod
    def extend(self, state, logits, position, problem):
        """Adds a token to each hypothesis, given logits `(B, W, V)`.

        Where `chooses_largest` is true, they may be `ScreenedLogits`.
        """

    @abc.abstractmethod
    def ancestry(self, state):
        """Returns the slots the hypotheses have been in, or `None`.

        Int32 `(B, W, T)`, as `help(keras_transformer.search)` says.
        """

    @abc.abstractmethod
    def done(self, state):
        """Marks the sentences `(B,)` whose result can no longer change."""

    @abc.abstractmethod
    def hypotheses(self, state) -> Hypotheses:
        """Returns the result in a state; final for sentences that are done."""

    def advance(
        self,
        step,
        cache,
        state,
        problem,
        position=0,
        end_position=None,
        enough_done=None,
    ):
        """Decodes step by step.

        Args:
            step: The function that decodes one step.
            cache: What `step` wants to carry.
            state: From `start`, or from here.
            problem: The `Problem`.
            position: The first position to decode.
            end_position: The position before which to stop; by default the
                problem's capacity.
            enough_done: Number of sentences with which to stop when they are
                done; by default all.

        Returns:
            The next position, the state, and the cache.
        """
        if end_position is None:
            end_position = problem.capacity
        if enough_done is None:
            enough_done = ops.shape(problem.max_lengths)[0]

        def goes_on(position, state, cache):
            num_done = ops.sum(ops.cast(self.done(state), "int32"))
            return ops.logical_and(
                ops.less(position, end_position),
                ops.less(num_done, enough_done),
            )

        def decode(position, state, cache):
            logits, cache = step(
                state.token_ids, position, cache, self.ancestry(state)
            )
            state = self.extend(state, logits, position, problem)
            return position + 1, state, cache

        position = ops.convert_to_tensor(position, dtype="int32")
        return repeat_while(goes_on, decode, (position, state, cache))

    def get_config(self):
        """Returns the arguments."""
        return {
            "repetition_penalty": self.repetition_penalty,
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
            "forbidden_token_ids": list(self.forbidden_token_ids),
            "forbidden_sequences": [*map(list, self.forbidden_sequences)],
        }

    @classmethod
    def from_config(cls, config):
        """Makes the search from `get_config`."""
        return cls(**config)

    def check_vocabulary(self, size: int, never=()):
        """Raises `ValueError` if no target has a token that is forbidden.

        Args:
            size: Size `V` of the vocabulary.
            never: Ids in it that no target has, such as padding; they are
                checked for in sequences, which then would forbid nothing.
        """
        check_ids_in_range(
            "forbidden_token_ids", self.forbidden_token_ids, size
        )
        ids = [*itertools.chain(*self.forbidden_sequences)]
        check_ids_in_range("forbidden_sequences", ids, size)
        for sequence in self.forbidden_sequences:
            if not {*sequence}.isdisjoint(never):
                raise ValueError(
                    "`forbidden_sequences` must not have ids that no target "
                    f"has, which are {[*never]}. Received: "
                    f"forbidden_sequences with {[*sequence]}."
                )

    def constrain(self, logits, target_ids, position, problem):
        """Lowers the logits of tokens that must not follow.

        By a billion, or to negative infinity: a target whose tokens all are so
        low is not found.

        Args:
            logits: Float32 tensor `(B, W, V)`.
            target_ids: Int32 tensor `(B, W, T)`, chosen so far, then padding.
            position: How many were chosen, scalar int32 tensor.
            problem: The `Problem`.

        Returns:
            Float32 tensor `(B, W, V)`.

        Raises:
            ValueError: If a forbidden token is not in the vocabulary, or a
                sequence has one that no target has.
        """
        size = logits.shape[-1]
        self.check_vocabulary(size, problem.forbidden_token_ids)
        x = logits
        if self.repetition_penalty != 1:
            x = scale_used(x, target_ids, self.repetition_penalty)
        if self.no_repeat_ngram_size:
            x = block_ngrams(x, target_ids, position, self.no_repeat_ngram_size)
        if self.forbidden_sequences:
            x = block_sequences(
                x, target_ids, position, self.forbidden_sequences
            )
        # All in a single addition over the vocabulary.
        x = x + self._forbidden(size, position, problem)
        if problem.prefix_ids is not None:
            forced = over_tokens(problem.forced_ids(position))  # (B, 1, 1)
            is_free = ops.equal(forced, PAD_TOKEN_ID)
            x = ops.where(is_free, x, force_tokens(logits, forced))
        return x

    def _forbidden(self, size, position, problem):
        """What to add to the logits for tokens that may not follow."""
        never = [*problem.forbidden_token_ids, *self.forbidden_token_ids]
        check_ids_in_range(
            "forbidden_token_ids", problem.forbidden_token_ids, size
        )
        bias = np.zeros(size, "float32")
        bias[never] = IMPOSSIBLE
        bias = ops.convert_to_tensor(bias)
        if problem.min_lengths is None:
            return bias
        is_end = np.zeros(size, "float32")
        is_end[problem.end_token_id] = IMPOSSIBLE
        too_early = ops.less(position, problem.min_lengths)  # (B,)
        too_early = ops.cast(over_tokens(too_early), "float32")
        return bias + ops.multiply(too_early, is_end)  # (B, 1, V)


class Problem(NamedTuple):
    """What to search for.

    Attributes:
        start_ids: Int32 tensor `(B,)`, the tokens before the first step.
        max_lengths: Int32 tensor `(B,)`, most tokens of each target with the
            end token; 0 for a sentence that has nothing to decode.
        capacity: Length `T` of the result, at least every `max_lengths`.
        end_token_id: The token that ends a target.
        min_lengths: Int32 tensor `(B,)`, fewest tokens of each target before
            its end token; or `None`.
        prefix_ids: Int32 tensor `(B, T)`, tokens that each target begins
            with, then padding; or `None`.
        forbidden_token_ids: Tokens never to choose.
        search_seeds: Int32 tensor `(B,)`, the seed of the search for each
            sentence; by default the search's own.
        sentence_seeds: Int32 tensor `(B,)`, in which random choices for one
            sentence differ from those for another; by default the row's number.
        needs_scores: Whether the scores of tokens are needed. If not, a search
            that does not rank by them leaves them, and the scores of targets,
            at 0.
    """

    start_ids: Any
    max_lengths: Any
    capacity: Any
    end_token_id: int
    min_lengths: Any = None
    prefix_ids: Any = None
    forbidden_token_ids: tuple[int, ...] = ()
    search_seeds: Any = None
    sentence_seeds: Any = None
    needs_scores: bool = True

    def forced_ids(self, position):
        """The prefixes' tokens `(B,)` at a position, then padding."""
        forced = take(self.prefix_ids, position, axis=1)
        return ops.cast(forced, "int32")


def repeat_while(condition, body, state):
    """Runs `ops.while_loop` over a body that may forget sizes.

    A reshape to `(-1, ...)` forgets a known size, such as a batch of one
    sentence, which TensorFlow does not allow in a loop.
    """

    def same_sizes(*state):
        return keras.tree.map_structure(_sized_like, state, body(*state))

    return ops.while_loop(condition, same_sizes, state)


def plain(number):
    """A number of NumPy's as one of Python's, which JSON takes."""
    return number.item() if isinstance(number, np.generic) else number


def write_column(x, position, column):
    """Writes `(B, W)` at a position of `(B, W, T)`."""
    return write_slice(x, position, ops.expand_dims(column, 2))


def _sized_like(x, new):
    if tuple(x.shape) == tuple(new.shape):
        return new
    return ops.reshape(new, ops.shape(x))

"""Beam search with a length penalty, section 6.1."""

from typing import Any
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.checks import check_choice
from keras_transformer.checks import check_finite
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_positive_number
from keras_transformer.search.constraints import IMPOSSIBLE
from keras_transformer.search.constraints import is_possible
from keras_transformer.search.screening import best_tokens
from keras_transformer.search.search import Hypotheses
from keras_transformer.search.search import Search
from keras_transformer.search.search import plain
from keras_transformer.search.search import write_column
from keras_transformer.tensors.slices import largest
from keras_transformer.tensors.slices import numbered
from keras_transformer.tensors.slices import take_rows

LENGTH_PENALTY_FORMS = ("gnmt", "power")

# Beyond it, what "gnmt" divides by overflows float32 for the longest targets;
# what "power" does, for those of more than 300,000 tokens already. Useful
# values are 0 to 2.
MOST_LENGTH_PENALTY = 7


@keras.saving.register_keras_serializable(package="keras_transformer")
class BeamSearch(Search):
    """Keeps the `width` most probable targets at each step.

    Section 6.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762):
    width 4 and length penalty 0.6. A hypothesis is ranked by its
    natural-logarithm probability over a length penalty, that of
    [Wu et al., 2016](https://arxiv.org/abs/1609.08144), equation 14, or the
    steeper one of fairseq
    ([Ott et al., 2019](https://aclanthology.org/N19-4009)) and CTranslate2,
    with which 1 ranks by the mean over tokens:

    - `"gnmt"`: `score(Y) = log P(Y | X) / ((5 + |Y|) / 6)^alpha`
    - `"power"`: `score(Y) = log P(Y | X) / |Y|^alpha`

    where `|Y|` counts the end token, and `Y` begins with the prefix, if one is
    given. As in `GreedySearch`, all tokens share the probability, also those
    that are not to be chosen, such as the end token before `min_length`. A
    hypothesis that has ended keeps its place among the `width`; the others go
    on until none is left, or none can become better than those to return.

    Args:
        width: Number `W` of hypotheses kept at each step. 1 finds what greedy
            search finds.
        length_penalty: Exponent `alpha`; 0 ranks by probability, more than 0
            prefers longer targets.
        num_hypotheses: Number of targets to return for each sentence, at most
            `width`.
        patience: By default a hypothesis that has ended takes one of the
            `width` places. A number lets `width` hypotheses go on beside those
            that have ended, until `width * patience` have ended, or
            `num_hypotheses` if more
            ([Kasai et al., 2022](https://arxiv.org/abs/2204.05424)). With 1,
            the best hypothesis is that of fairseq, and of CTranslate2 where
            there is a length penalty.
        repetition_penalty: Factor on the log-probability of tokens that the
            target has already; more than 1 discourages them.
        no_repeat_ngram_size: Length of the n-grams, in tokens, that may occur
            only once in a target; 0 for no such rule.
        forbidden_token_ids: Tokens never to choose, such as the unknown one.
        length_penalty_form: `"gnmt"`, as in the paper, or `"power"`.
        forbidden_sequences: Sequences of ids, such as those of a word, that
            must not occur in a target, but in a prefix of it.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a size is not positive, `length_penalty` not in [-7, 7],
            `num_hypotheses` greater than `width`, a factor not positive, or
            there is no such form.

    Example:
    >>> search = BeamSearch(width=4, length_penalty=0.6)
    >>> search.num_hypotheses
    1
    """

    def __init__(
        self,
        width: int = 4,
        length_penalty: float = 0.6,
        num_hypotheses: int = 1,
        patience: float | None = None,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        forbidden_token_ids=(),
        length_penalty_form: str = "gnmt",
        forbidden_sequences=(),
    ):
        super().__init__(
            repetition_penalty,
            no_repeat_ngram_size,
            forbidden_token_ids,
            forbidden_sequences,
        )
        check_positive(width=width, num_hypotheses=num_hypotheses)
        check_finite(length_penalty=length_penalty)
        if abs(length_penalty) > MOST_LENGTH_PENALTY:
            raise ValueError(
                f"`length_penalty` must be in [-{MOST_LENGTH_PENALTY}, "
                f"{MOST_LENGTH_PENALTY}]. Received: length_penalty="
                f"{length_penalty}."
            )
        if patience is not None:
            check_positive_number(patience=patience)
        check_choice(
            LENGTH_PENALTY_FORMS, length_penalty_form=length_penalty_form
        )
        if num_hypotheses > width:
            raise ValueError(
                "`num_hypotheses` must be at most `width`. Received: "
                f"num_hypotheses={num_hypotheses}, width={width}."
            )
        self.width = plain(width)
        self.length_penalty = plain(length_penalty)
        self.patience = plain(patience)
        self.length_penalty_form = length_penalty_form
        self.num_hypotheses = plain(num_hypotheses)

    @property
    def num_slots(self) -> int:
        return self.width

    @property
    def chooses_largest(self) -> bool:
        return type(self) is BeamSearch and self.repetition_penalty == 1

    def get_config(self):
        """Returns the arguments."""
        return {
            "width": self.width,
            "length_penalty": self.length_penalty,
            "num_hypotheses": self.num_hypotheses,
            "patience": self.patience,
            "length_penalty_form": self.length_penalty_form,
            **super().get_config(),
        }

    def start(self, problem):
        """One hypothesis for each sentence; the others are impossible."""
        batch_size = ops.shape(problem.start_ids)[0]
        shape = (batch_size, self.width, problem.capacity)
        slots = ops.arange(self.width, dtype="int32")
        start_ids = ops.cast(problem.start_ids, "int32")
        zero = ops.cast(0.0, "float32")  # 0.0 alone would be of `floatx`
        scores = ops.where(slots > 0, IMPOSSIBLE, zero)  # (W,)
        alive = _Candidates(
            scores=ops.tile(ops.expand_dims(scores, 0), (batch_size, 1)),
            token_ids=ops.tile(ops.expand_dims(start_ids, 1), (1, self.width)),
            target_ids=ops.zeros(shape, dtype="int32"),
            token_scores=ops.zeros(shape, dtype="float32"),
            ancestry=ops.zeros(shape, dtype="int32")
            + ops.expand_dims(slots, 1),
        )
        return _Beam(
            alive,
            finished=self._nothing_finished(problem),
            num_finished=ops.zeros_like(problem.max_lengths, dtype="int32"),
            done=ops.less_equal(problem.max_lengths, 0),
        )

    def extend(self, state, logits, position, problem):
        def constrain(logits):
            return self.constrain(logits, state.target_ids, position, problem)

        candidates = self._candidates(state.alive, logits, constrain, position)
        is_last = ops.greater_equal(position + 1, problem.max_lengths)
        ended = ops.logical_or(
            ops.equal(candidates.token_ids, problem.end_token_id),
            ops.expand_dims(is_last, 1),
        )
        finishes = ops.logical_and(
            ended, self._win_places(candidates, state.num_finished)
        )
        is_open = ops.expand_dims(ops.logical_not(state.done), 1)
        finishes = ops.logical_and(finishes, is_open)
        finished = self._finish(
            state.finished, candidates, finishes, position + 1
        )
        # JAX sums int32 to int64 where it has that.
        finishing = ops.sum(ops.cast(finishes, "int32"), axis=1)
        num_finished = state.num_finished + ops.cast(finishing, "int32")
        alive = self._go_on(candidates, ended, num_finished, position)
        settled = self._none_can_win(
            alive, finished, position, problem.max_lengths
        )
        if self.patience is not None:
            enough = max(self.width * self.patience, self.num_hypotheses)
            have_ended = ops.cast(num_finished, "float32")
            settled = ops.logical_or(
                settled, ops.greater_equal(have_ended, enough)
            )
        done = ops.logical_or(state.done, ops.logical_or(is_last, settled))
        return _Beam(alive, finished, num_finished, done)

    def ancestry(self, state):
        return state.alive.ancestry

    def done(self, state):
        return state.done

    def hypotheses(self, state) -> Hypotheses:
        return state.finished

    def penalty(self, length):
        """Computes what the log-probability of a target is divided by."""
        length = ops.cast(length, "float32")
        if self.length_penalty_form == "gnmt":
            length = (5.0 + length) / 6.0
        return ops.power(length, self.length_penalty)

    def _nothing_finished(self, problem):
        batch_size = ops.shape(problem.start_ids)[0]
        shape = (batch_size, self.num_hypotheses, problem.capacity)
        # A sentence with nothing to decode has the empty target, for certain.
        empty = ops.expand_dims(ops.less_equal(problem.max_lengths, 0), 1)
        first = ops.equal(ops.arange(self.num_hypotheses, dtype="int32"), 0)
        zero = ops.cast(0.0, "float32")  # 0.0 alone would be of `floatx`
        return Hypotheses(
            target_ids=ops.zeros(shape, dtype="int32"),
            scores=ops.where(
                ops.logical_and(empty, first), zero, float("-inf")
            ),
            token_scores=ops.zeros(shape, dtype="float32"),
        )

    def _candidates(self, alive, logits, constrain, position):
        """The best `2 W` continuations of all hypotheses of a sentence.

        Twice as many as are kept, because `W` of them can end.
        """
        vocabulary_size = logits.shape[-1]
        # Best of each hypothesis first: one short list instead of W V tokens.
        per_slot = min(2 * self.width, vocabulary_size)
        gained, token_ids = best_tokens(logits, constrain, per_slot)
        scores = ops.expand_dims(alive.scores, 2) + gained  # (B, W, 2 W)
        scores, order = largest(
            ops.reshape(scores, (-1, self.width * per_slot)),
            min(2 * self.width, self.width * per_slot),
        )

        def chosen(x):
            return take_rows(ops.reshape(x, (-1, self.width * per_slot)), order)

        token_ids = chosen(token_ids)
        parents = order // per_slot  # (B, 2 W)
        return _Candidates(
            scores=scores,
            token_ids=token_ids,
            target_ids=write_column(
                take_rows(alive.target_ids, parents), position, token_ids
            ),
            token_scores=write_column(
                take_rows(alive.token_scores, parents), position, chosen(gained)
            ),
            ancestry=take_rows(alive.ancestry, parents),
        )

    def _places(self, num_finished):
        """How many hypotheses go on: `(B, 1)`, or one number for all."""
        if self.patience is not None:
            return self.width
        return self.width - ops.expand_dims(num_finished, 1)

    def _win_places(self, candidates, num_finished):
        """Whether a candidate is among the best for which there is a place.

        One that ends outside of them has not won a place to keep.
        """
        ranks = ops.arange(candidates.scores.shape[1], dtype="int32")
        return ops.logical_and(
            ops.less(ranks, self._places(num_finished)),
            is_possible(candidates.scores),
        )

    def _finish(self, finished, candidates, finishes, length):
        """Keeps the best of what had finished and what finishes now."""
        scores = candidates.scores / self.penalty(length)
        scores = ops.where(finishes, scores, float("-inf"))
        ended = Hypotheses(
            candidates.target_ids, scores, candidates.token_scores
        )
        both = Hypotheses(
            *(
                ops.concatenate(pair, axis=1)
                for pair in zip(finished, ended, strict=True)
            )
        )
        scores, order = largest(both.scores, self.num_hypotheses)
        return Hypotheses(
            take_rows(both.target_ids, order),
            scores,
            take_rows(both.token_scores, order),
        )

    def _go_on(self, candidates, ended, num_finished, position):
        """The best candidates that have not ended, on the places left."""
        scores = ops.where(ended, IMPOSSIBLE, candidates.scores)
        scores, order = largest(scores, self.width)
        alive = _Candidates(*(take_rows(x, order) for x in candidates))
        slots = ops.arange(self.width, dtype="int32")
        has_place = ops.less(slots, self._places(num_finished))
        positions = numbered(alive.ancestry, axis=2)
        return alive._replace(
            scores=ops.where(has_place, scores, IMPOSSIBLE),
            # From now on each is in a slot of its own.
            ancestry=ops.where(
                ops.less_equal(positions, position),
                alive.ancestry,
                ops.expand_dims(slots, 1),
            ),
        )

    def _none_can_win(self, alive, finished, position, max_lengths):
        """Whether none that goes on can be among those to return.

        Probabilities only fall. The penalty grows with the length, or falls
        where `alpha` is negative: the best a hypothesis can become is at the
        end of its possible lengths.
        """
        best = ops.max(alive.scores, axis=1)
        bound = ops.maximum(
            best / self.penalty(position + 2), best / self.penalty(max_lengths)
        )
        bound = ops.where(is_possible(best), bound, float("-inf"))
        return ops.greater_equal(finished.scores[:, -1], bound)


class _Candidates(NamedTuple):
    """Hypotheses that may go on, `M` for each sentence.

    Attributes:
        scores: Natural-logarithm probabilities `(B, M)`.
        token_ids: The tokens chosen last, `(B, M)`.
        target_ids: All tokens so far, `(B, M, T)`.
        token_scores: Their natural-logarithm probabilities, `(B, M, T)`.
        ancestry: In which slot the hypothesis is at each position,
            `(B, M, T)`: was, up to the one chosen last, and will be.
    """

    scores: Any
    token_ids: Any
    target_ids: Any
    token_scores: Any
    ancestry: Any


class _Beam(NamedTuple):
    """A search under way.

    Attributes:
        alive: The hypotheses that go on, `W` for each sentence.
        finished: The `K` best of those that have ended, the best first, with
            scores divided by the length penalty.
        num_finished: How many have ended, `(B,)`.
        done: Whether nothing can change the result any more, `(B,)`.
    """

    alive: _Candidates
    finished: Hypotheses
    num_finished: Any
    done: Any

    @property
    def token_ids(self):
        """The tokens chosen last, `(B, W)`."""
        return self.alive.token_ids

    @property
    def target_ids(self):
        """All tokens so far, `(B, W, T)`."""
        return self.alive.target_ids

"""Searches whose targets do not depend on each other."""

import abc
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_axes
from keras_transformer.checks import check_same_sizes
from keras_transformer.search.constraints import MOST_IMPOSSIBLE
from keras_transformer.search.logits import log_probabilities
from keras_transformer.search.screening import ScreenedLogits
from keras_transformer.search.screening import best_tokens
from keras_transformer.search.search import Hypotheses
from keras_transformer.search.search import Search
from keras_transformer.search.search import write_column
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.tensors.slices import pick


class IndependentSearch(Search):
    """Extends each target by the token that `choose` returns, until all end.

    Takes the arguments of `Search`.
    """

    @abc.abstractmethod
    def choose(self, logits, position, problem):
        """Chooses a token for each target.

        Args:
            logits: Float32 tensor `(B, W, V)`.
            position: The position of the token, scalar int32 tensor.
            problem: The `Problem`.

        Returns:
            The ids of the tokens, int32 `(B, W)`, in `[0, V)`, which is not
            checked; another dtype is a `TypeError`, another shape a
            `ValueError`. A target that gets a token which it may not have, such
            as padding, is not found.
        """

    def start(self, problem):
        num_hypotheses = self.num_hypotheses
        batch_size = ops.shape(problem.start_ids)[0]
        shape = (batch_size, num_hypotheses, problem.capacity)
        start_ids = ops.expand_dims(ops.cast(problem.start_ids, "int32"), 1)
        done = ops.expand_dims(ops.less_equal(problem.max_lengths, 0), 1)
        done = ops.tile(done, (1, num_hypotheses))
        # An empty source has one target, which is empty too.
        is_first = ops.equal(ops.arange(num_hypotheses, dtype="int32"), 0)
        return _Targets(
            token_ids=ops.tile(start_ids, (1, num_hypotheses)),
            done=done,
            exists=ops.logical_or(ops.logical_not(done), is_first),
            target_ids=ops.zeros(shape, dtype="int32"),
            token_scores=ops.zeros(shape, dtype="float32"),
        )

    def extend(self, state, logits, position, problem):
        def constrain(logits):
            return self.constrain(logits, state.target_ids, position, problem)

        token_ids, value, gained = self._chosen(
            logits, constrain, position, problem
        )
        done, exists = state.done, state.exists
        if self._may_run_out(problem):
            # Not by the opposite, which is false for NaN: that goes on, and
            # `generate` finds it.
            has_failed = ops.logical_and(
                ops.logical_not(done), ops.less_equal(value, MOST_IMPOSSIBLE)
            )
            exists = ops.logical_and(exists, ops.logical_not(has_failed))
            done = ops.logical_or(done, has_failed)
        token_scores = state.token_scores
        if problem.needs_scores:
            token_scores = write_column(
                token_scores, position, ops.where(done, 0.0, gained)
            )
        token_ids = ops.where(done, PAD_TOKEN_ID, token_ids)
        ended = ops.logical_or(
            ops.equal(token_ids, problem.end_token_id),
            ops.expand_dims(
                ops.greater_equal(position + 1, problem.max_lengths), 1
            ),
        )
        return _Targets(
            token_ids=token_ids,
            done=ops.logical_or(done, ended),
            exists=exists,
            target_ids=write_column(state.target_ids, position, token_ids),
            token_scores=token_scores,
        )

    def ancestry(self, state):
        if self.num_hypotheses == 1:
            return None
        slots = ops.arange(self.num_hypotheses, dtype="int32")
        return ops.zeros_like(state.target_ids) + ops.reshape(slots, (1, -1, 1))

    def done(self, state):
        return ops.all(state.done, axis=1)

    def hypotheses(self, state) -> Hypotheses:
        exists = ops.expand_dims(state.exists, 2)
        target_ids = ops.where(exists, state.target_ids, PAD_TOKEN_ID)
        token_scores = ops.where(exists, state.token_scores, 0.0)
        scores = ops.where(state.exists, ops.sum(token_scores, axis=2), -np.inf)
        return Hypotheses(target_ids, scores, token_scores)

    def _chosen(self, logits, constrain, position, problem):
        """Chooses tokens `(B, W)`, with logits and log-probabilities."""
        if isinstance(logits, ScreenedLogits):  # to choose the best
            scored = problem.needs_scores
            value, token_ids = best_tokens(logits, constrain, 1, scored)
            value, token_ids = value[:, :, 0], token_ids[:, :, 0]
            return token_ids, value, value
        logits = ops.cast(logits, "float32")
        allowed = constrain(logits)
        chosen = self.choose(allowed, position, problem)
        token_ids = _as_ids(chosen, allowed.shape[:2])
        value = pick(allowed, token_ids)
        # Whatever a `choose` or a `constrain` of one's own makes of it.
        if problem.prefix_ids is not None:
            forced = ops.expand_dims(problem.forced_ids(position), 1)
            is_free = ops.equal(forced, PAD_TOKEN_ID)
            token_ids = ops.where(is_free, token_ids, forced)
            value = ops.where(is_free, value, 0.0)
        gained = None
        if problem.needs_scores:
            gained = log_probabilities(logits, token_ids)
        return token_ids, value, gained

    def _may_run_out(self, problem):
        """Whether a target may get a token that it may not have.

        Where the constraints leave no other, or a subclass chooses it.
        """
        return (
            not self.chooses_largest
            or self.no_repeat_ngram_size > 0
            or len(self.forbidden_token_ids) > 0
            or len(self.forbidden_sequences) > 0
            or problem.min_lengths is not None
        )


def _as_ids(chosen, shape):
    """What `choose` has returned, as int32 of a shape `(B, W)`, or raises."""
    chosen = ops.convert_to_tensor(chosen)
    dtype = keras.backend.standardize_dtype(chosen.dtype)
    if not keras.backend.is_int_dtype(dtype):
        raise TypeError(
            f"`choose` must return ids, int32 (B, W). Received: {dtype}."
        )
    check_axes("choose(...)", chosen, (2,), "(B, W)")
    check_same_sizes("choose(...)", chosen.shape, tuple(shape))
    return ops.cast(chosen, "int32")


class _Targets(NamedTuple):
    """Targets under way.

    Attributes:
        token_ids: The tokens chosen last, `(B, W)`.
        done: Whether the target has ended, `(B, W)`.
        exists: Whether there is a target, `(B, W)`; `False` for all but the
            first of an empty source, and where there was no token to go on.
        target_ids: All tokens so far, `(B, W, T)`.
        token_scores: Their natural-logarithm probabilities, `(B, W, T)`; 0
            unless the problem needs them.
    """

    token_ids: Any
    done: Any
    exists: Any
    target_ids: Any
    token_scores: Any

"""Choosing tokens by logits of which most are only approximate.

Logits of all tokens are the largest product of a decoding step, and a search
needs few of them: the largest. A product of rounded numbers costs less and
tells which those can be; they alone are then computed exactly. The tokens found
are those of exact logits: where the error that rounding may have made leaves
that open, all are computed exactly. Their log-probabilities are not exact, as
the rounded logits of all other tokens go into the normalizer: of beams with
almost the same score, another may go on.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from keras import ops

from keras_transformer.search.constraints import is_possible
from keras_transformer.search.logits import log_normalizer
from keras_transformer.search.logits import top_k
from keras_transformer.search.search import repeat_while
from keras_transformer.tensors.slices import largest
from keras_transformer.tensors.slices import take_rows

# Tokens of which exact logits are computed, beside twice those that are wanted.
# With fewer, more often one that was left out could be among the best.
NUM_SPARE = 8


class ScreenedLogits(NamedTuple):
    """Approximate logits, and how to compute exact ones.

    Attributes:
        logits: Float32 tensor `(B, W, V)`.
        most_error: Float32 tensor `(B, W, 1)`, how far from the exact ones
            they are at most.
        of_tokens: Function of token ids `(B, W, M)` to their exact logits.
        of_all: Function without arguments to the exact logits `(B, W, V)`.
    """

    logits: Any
    most_error: Any
    of_tokens: Callable
    of_all: Callable

    @property
    def shape(self):
        """The shape of the logits."""
        return self.logits.shape


def best_tokens(logits, constrain, k, scored=True):
    """Finds the `k` most probable tokens, after constraints.

    Args:
        logits: Float32 tensor `(B, W, V)`, or `ScreenedLogits`.
        constrain: Function of logits `(B, W, V)` to those after constraints,
            if screened, either leaves a logit as it is or makes it
            `IMPOSSIBLE`.
        k: Number of tokens.
        scored: Whether to subtract the `log_normalizer` of all logits before
            constraints.

    Returns:
        Log-probabilities `(B, W, k)`, or logits if not `scored`, the largest
        first, and the int32 ids of the tokens.
    """
    if not isinstance(logits, ScreenedLogits):
        logits = ops.cast(logits, "float32")
        values, token_ids = top_k(constrain(logits), k)
        return values - log_normalizer(logits) if scored else values, token_ids
    is_certain, *screened = _screened(logits, constrain, k, scored)

    def exact(*_):
        found = best_tokens(logits.of_all(), constrain, k, scored)
        return (ops.convert_to_tensor(True), *found)

    # An `if`, as a loop of one turn or none: LiteRT would hand the weights to a
    # branch at each step.
    _, *found = repeat_while(
        lambda is_certain, *_: ops.logical_not(is_certain),
        exact,
        (is_certain, *screened),
    )
    return tuple(found)


def _screened(screen, constrain, k, scored):
    """As `best_tokens`, and whether the tokens are certain, scalar bool."""
    vocabulary_size = screen.logits.shape[-1]
    num_exact = min(2 * k + NUM_SPARE, vocabulary_size)
    values, token_ids = top_k(constrain(screen.logits), num_exact)
    exact = ops.where(is_possible(values), screen.of_tokens(token_ids), values)
    best, best_ids = _sorted(exact, token_ids, k)
    if num_exact < vocabulary_size:
        left_out = values[:, :, -1:] + screen.most_error
        is_certain = ops.all(ops.less(left_out, best[:, :, -1:]))
    else:
        is_certain = ops.convert_to_tensor(True)
    if not scored:
        return is_certain, best, best_ids
    normalizer = log_normalizer(screen.logits)
    more = ops.exp(exact - normalizer) - ops.exp(values - normalizer)
    normalizer += ops.log(1.0 + ops.sum(more, axis=-1, keepdims=True))
    return is_certain, best - normalizer, best_ids


def _sorted(values, token_ids, k):
    """The `k` largest of values `(B, W, M)`, and their tokens."""
    shape = (*ops.shape(values)[:2], k)
    size = values.shape[-1]
    values, order = largest(ops.reshape(values, (-1, size)), k)
    token_ids = take_rows(ops.reshape(token_ids, (-1, size)), order)
    return ops.reshape(values, shape), ops.reshape(token_ids, shape)

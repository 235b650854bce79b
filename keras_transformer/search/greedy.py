"""Greedy search: the most probable token at each step."""

import keras
from keras import ops

from keras_transformer.special_tokens import PAD_TOKEN_ID

# What a score becomes that must not be chosen; finite, so that sums stay so.
FORBIDDEN_SCORE = -1e9


@keras.saving.register_keras_serializable(package="keras_transformer")
class GreedySearch:
    """Chooses the most probable token at each step.

    Stops when every sentence has ended. The token ids that come back hold
    what was chosen, through the end token, then padding; the scores are
    natural-logarithm probabilities of the whole target, in nats.

    Example:
    >>> def step(token_ids, position, cache):  # counts up to 3, which ends
    ...     return keras.ops.one_hot(token_ids + 1, 5) * 9.0, cache
    >>> target_ids, scores = GreedySearch()(
    ...     step,
    ...     cache=(),
    ...     start_ids=keras.ops.array([0, 1]),
    ...     max_lengths=keras.ops.array([4, 4]),
    ...     capacity=4,
    ...     end_token_id=3,
    ... )
    >>> keras.ops.convert_to_numpy(target_ids).tolist()
    [[1, 2, 3, 0], [2, 3, 0, 0]]
    """

    def __call__(
        self,
        step,
        cache,
        start_ids,
        max_lengths,
        capacity,
        end_token_id: int,
        min_length: int = 0,
        forbidden_token_ids: tuple[int, ...] = (),
    ):
        """Searches one target for each start id.

        Args:
            step: The function that decodes one step; see the package.
            cache: What `step` wants to carry.
            start_ids: Int32 tensor `(B,)`, the tokens before the first step.
            max_lengths: Int32 tensor `(B,)`, most tokens of each target with
                the end token; 0 for a sentence that has nothing to decode.
            capacity: Length `T` of the result, at least every `max_lengths`.
            end_token_id: The token that ends a target.
            min_length: Least tokens of a target before the end token.
            forbidden_token_ids: Tokens never to choose.

        Returns:
            Target ids `(B, T)` int32 and scores `(B,)` float32.
        """
        batch_size = ops.shape(start_ids)[0]

        def not_done(position, token_ids, done, target_ids, scores, cache):
            return ops.logical_and(
                ops.less(position, capacity),
                ops.logical_not(ops.all(done)),
            )

        def advance(position, token_ids, done, target_ids, scores, cache):
            logits, cache = step(token_ids, position, cache)
            logits = forbid(logits, forbidden_token_ids)
            if min_length:
                ended = forbid(logits, (end_token_id,))
                logits = ops.where(position < min_length, ended, logits)
            best, token_ids = ops.top_k(logits, 1)  # argmax is no LiteRT op
            token_ids = ops.cast(ops.squeeze(token_ids, 1), "int32")
            gained = ops.squeeze(best, 1) - ops.logsumexp(logits, axis=-1)

            scores = scores + ops.where(done, 0.0, gained)
            token_ids = ops.where(done, PAD_TOKEN_ID, token_ids)
            target_ids = ops.slice_update(
                target_ids, (0, position), ops.expand_dims(token_ids, 1)
            )
            position = position + 1
            done = ops.logical_or(
                ops.logical_or(done, ops.equal(token_ids, end_token_id)),
                ops.greater_equal(position, max_lengths),
            )
            return position, token_ids, done, target_ids, scores, cache

        state = ops.while_loop(
            not_done,
            advance,
            (
                ops.convert_to_tensor(0, dtype="int32"),
                ops.cast(start_ids, "int32"),
                ops.less_equal(max_lengths, 0),
                ops.zeros((batch_size, capacity), dtype="int32"),
                ops.zeros((batch_size,), dtype="float32"),
                cache,
            ),
        )
        target_ids, scores = state[3], state[4]
        return target_ids, scores

    def get_config(self):
        """Returns the arguments, none."""
        return {}

    @classmethod
    def from_config(cls, config):
        """Makes the search from `get_config`."""
        return cls(**config)


def forbid(logits, token_ids):
    """Lowers the logits `(B, V)` of tokens that must not be chosen."""
    if not token_ids:
        return logits
    vocabulary = ops.arange(logits.shape[-1])
    hit = ops.any(
        ops.equal(
            ops.expand_dims(vocabulary, 0),
            ops.expand_dims(ops.convert_to_tensor(token_ids, "int32"), 1),
        ),
        axis=0,
    )  # (V,)
    return ops.where(hit, FORBIDDEN_SCORE, logits)

"""Sampling: targets drawn at random."""

import math

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_integer
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_positive_number
from keras_transformer.checks import check_positive_share
from keras_transformer.masking import padding_mask
from keras_transformer.search.constraints import is_possible
from keras_transformer.search.independent import IndependentSearch
from keras_transformer.search.logits import top_k
from keras_transformer.search.search import plain
from keras_transformer.tensors.slices import numbered
from keras_transformer.tensors.slices import pick

# float32 rounds anything smaller to 0, which nothing can be divided by.
LEAST_TEMPERATURE = float(np.finfo("float32").tiny)

# Fewest numbers whose running sums are taken in parts: fewer are exact enough.
LEAST_IN_PARTS = 1024


@keras.saving.register_keras_serializable(package="keras_transformer")
class Sampling(IndependentSearch):
    """Draws each token from the probabilities the model gives.

    What is drawn for a sentence depends only on `seed` and its source, not on
    the batch it is in, nor on its place there: the same seed gives the same
    text on the same backend.

    The score of a target is its natural-logarithm probability at temperature
    1 among all tokens, whatever its tokens were drawn from.

    Args:
        temperature: Divides the logits; less than 1 prefers what is probable.
        top_k: Number of most probable tokens to draw from; `None` for all.
        top_p: Draws from the fewest most probable tokens whose probabilities
            sum up to at least this, in `(0, 1]`
            ([Holtzman et al., 2019](https://arxiv.org/abs/1904.09751)).
        num_hypotheses: Number of targets for each sentence, drawn
            independently and in no order.
        seed: Random seed, an integer, of which the lowest 32 bits count. Calls
            with the same seed draw the same for a sentence, also with the
            default; so do all calls of a compiled function of your own that
            calls `Transformer.search`, as the seed is a part of it. A loop that
            needs other draws at each step calls `generate` with other seeds.
        repetition_penalty: Factor on the log-probability of tokens that the
            target has already; more than 1 discourages them.
        no_repeat_ngram_size: Length of the n-grams, in tokens, that may occur
            only once in a target; 0 for no such rule.
        forbidden_token_ids: Tokens never to choose, such as the unknown one.
        forbidden_sequences: Sequences of ids, such as those of a word, that
            must not occur in a target, but in a prefix of it.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If `temperature` is not greater than 0 and finite, `top_p`
            not in `(0, 1]`, or a size not positive.

    Example:
    >>> search = Sampling(temperature=0.8, top_k=10, num_hypotheses=3, seed=7)
    >>> search.num_hypotheses
    3
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        num_hypotheses: int = 1,
        seed: int = 0,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        forbidden_token_ids=(),
        forbidden_sequences=(),
    ):
        super().__init__(
            repetition_penalty,
            no_repeat_ngram_size,
            forbidden_token_ids,
            forbidden_sequences,
        )
        check_positive_number(temperature=temperature)
        check_positive_share(top_p=top_p)
        check_positive(num_hypotheses=num_hypotheses)
        check_integer(seed=seed)
        if top_k is not None:
            check_positive(top_k=top_k)
        if temperature < LEAST_TEMPERATURE:
            raise ValueError(
                "`temperature` must be a float32 that is not 0. Received: "
                f"temperature={temperature}. For 0, use `GreedySearch`."
            )
        self.temperature = plain(temperature)
        self.top_k = plain(top_k)
        self.top_p = plain(top_p)
        self.seed = plain(seed)
        self.num_hypotheses = plain(num_hypotheses)

    def get_config(self):
        """Returns the arguments."""
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "num_hypotheses": self.num_hypotheses,
            "seed": self.seed,
            **super().get_config(),
        }

    def choose(self, logits, position, problem):
        """Draws, by the sentence's seed, the sample and the position."""
        of_sentences, of_search = problem.sentence_seeds, problem.search_seeds
        if of_sentences is None:
            of_sentences = numbered(problem.start_ids, axis=0)
        if of_search is None:
            of_search = wrap_int32(self.seed)
        seeds = _mixed(ops.expand_dims(of_sentences + of_search, 1))
        samples = ops.arange(self.num_hypotheses, dtype="int32")
        bits = _mixed(_mixed(_mixed(seeds + samples) + position))  # (B, W)
        # 23 bits, as many as a float32 below 1 keeps apart.
        share = ops.cast(_shifted(bits, 9), "float32") * 2.0**-23
        return self._draw(logits, share)

    def _draw(self, logits, share):
        """Finds the token in which a share in `[0, 1)` of the mass ends.

        Args:
            logits: Float32 tensor `(B, W, V)`.
            share: Float32 tensor `(B, W)`.

        Returns:
            The ids of the tokens, int32 `(B, W)`.
        """
        size = logits.shape[-1]
        is_sorted = self.top_k is not None or self.top_p < 1
        if is_sorted:
            size = size if self.top_k is None else min(self.top_k, size)
            logits, token_ids = top_k(logits, size)
        highest = ops.max(logits, axis=-1, keepdims=True)
        mass = ops.exp((logits - highest) / self.temperature)
        mass = ops.where(is_possible(logits), mass, 0.0)
        mass = mass / ops.sum(mass, axis=-1, keepdims=True)
        if self.top_p < 1:
            before = _running_sums(mass) - mass
            mass = ops.where(ops.less(before, self.top_p), mass, 0.0)
        # A token without mass is never chosen, however sums are rounded.
        through = ops.where(ops.greater(mass, 0.0), _running_sums(mass), 0.0)
        wanted = ops.expand_dims(share, 2) * ops.max(
            through, axis=-1, keepdims=True
        )
        # The first; of equal numbers `top_k` finds that.
        ends = ops.cast(ops.greater(through, wanted), "float32")
        index = ops.squeeze(top_k(ends, 1)[1], 2)  # (B, W)
        return pick(token_ids, index) if is_sorted else index


def _running_sums(x):
    """Sums of the last axis up to each place, `(B, W, V)`.

    In parts, and then of the parts. TensorFlow adds one number after another on
    a CPU: after a large one, many small ones would each be rounded alike.
    """
    size = x.shape[-1]
    if size < LEAST_IN_PARTS:
        return ops.cumsum(x, axis=-1)
    width = math.isqrt(size)
    count = -(-size // width)
    x = ops.pad(x, ((0, 0), (0, 0), (0, count * width - size)))
    x = ops.reshape(x, (-1, x.shape[1], count, width))
    sums = ops.cumsum(x, axis=-1)
    of_parts = ops.cumsum(sums[:, :, :-1, -1], axis=-1)
    before = ops.pad(of_parts, ((0, 0), (0, 0), (1, 0)))
    sums = sums + ops.expand_dims(before, -1)
    return ops.reshape(sums, (-1, x.shape[1], count * width))[:, :, :size]


def seeds_of(ids):
    """Hashes each row of ids `(B, S)`, except padding, to a number: `(B,)`.

    For `Problem.sentence_seeds`: rows with the same ids have the same number,
    however they are padded.
    """
    positions = ops.arange(ops.shape(ids)[1], dtype="int32")
    mixed = _mixed(ids + _mixed(positions + 1))
    found = ops.sum(ops.where(padding_mask(ids), mixed, 0), axis=1)
    return ops.cast(found, "int32")  # JAX sums to int64 where it has that


def _mixed(x):
    """Spreads int32 numbers over all int32 numbers, one to one.

    The "lowbias32" hash of https://github.com/skeeto/hash-prospector, whose
    products wrap around.
    """
    x = ops.bitwise_xor(x, _shifted(x, 16))
    x = x * wrap_int32(0x7FEB352D)
    x = ops.bitwise_xor(x, _shifted(x, 15))
    x = x * wrap_int32(0x846CA68B)
    return ops.bitwise_xor(x, _shifted(x, 16))


def _shifted(x, bits):
    """Shifts int32 right and fills with zeros.

    Without `ops.bitwise_and`, for which LiteRT has no operation.
    """
    is_negative = ops.cast(ops.less(x, 0), "int32")  # filled with ones
    return ops.right_shift(x, bits) + is_negative * (1 << (32 - bits))


def wrap_int32(number):
    """The int32 number with the lowest 32 bits of a whole number."""
    return (int(number) + 2**31) % 2**32 - 2**31

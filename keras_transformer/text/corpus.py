"""Pairs of sentences as ids, and the batches they make."""

import dataclasses
import functools
import itertools

import numpy as np
import tensorflow as tf

from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID
from keras_transformer.text.segmentation import seed_or_random

# Batches assembled at a time, and batches that wait for `fit`: a batch takes
# milliseconds, less than a training step.
ASSEMBLED_AT_ONCE = 2

# From this share on, unknown tokens are reported: a rare sign is no news.
REPORTED_UNKNOWN = 0.01


def length_buckets(max_length: int) -> list[int]:
    """The lengths that batches are padded to.

    At first they are 4 apart; later each is about a quarter longer.

    Example:
    >>> length_buckets(64)
    [8, 12, 16, 20, 24, 28, 32, 40, 48, 60, 64]
    """
    lengths = []
    length = 8
    while length < max_length:
        lengths.append(length)
        length += max(length // 16 * 4, 4)
    return [*lengths, max_length]


@dataclasses.dataclass
class Corpus:
    """Ids of all pairs, and an empty pair at the end for rows of padding.

    A pair has a row for each of its segmentations, the most probable first, one
    after another.

    Attributes:
        source: Rows of ids, each through its end token.
        target: Rows of ids, each from its start through its end token.
        lengths: Int64 array `(pairs,)`, tokens of each pair's longest row, with
            the end token.
        num_empty: Pairs that were dropped as empty.
        num_long: Pairs that were dropped as too long.
        tokens_per_batch: Most tokens of a batch on each side, with padding.
        max_length: Most tokens of a row that was kept, with the end token.
        segmentations: Rows of each pair.
        num_devices: Devices among which the rows of a batch are split.
        num_parts: Parts of each batch, all of as many rows.
        part: Number of the part to make, from 0.
    """

    source: tf.RaggedTensor
    target: tf.RaggedTensor
    lengths: np.ndarray
    num_empty: int
    num_long: int
    tokens_per_batch: int
    max_length: int
    segmentations: int = 1
    num_devices: int = 1
    num_parts: int = 1
    part: int = 0

    def __len__(self):
        return len(self.lengths)

    def num_batches(self) -> int:
        """The number of batches of one pass over the pairs."""
        _, bucket_of_pair, rows_of_bucket = self._buckets
        pairs = np.bincount(bucket_of_pair, minlength=len(rows_of_bucket))
        return int(np.sum(-(-pairs // rows_of_bucket)))

    def stretch(self, seed: int, start: int, count: int) -> tf.data.Dataset:
        """A range of the batches of an endless series of passes.

        Each pass has its own order, and draws its own segmentations.

        Args:
            seed: The same seed gives the same orders.
            start: Number of the first batch, from 0.
            count: Number of batches.
        """
        of_pass = self.num_batches()
        passes = tf.data.Dataset.range(
            start // of_pass, -(-(start + count) // of_pass)
        )

        def make_generator(*seeds):
            return np.random.default_rng(seeds)

        batches = passes.flat_map(
            lambda number: self._pass(make_generator, seed, number)
        )
        return self._assembled(batches.skip(start % of_pass).take(count), count)

    def shuffled(
        self, seed: int | None = None, initial_epoch: int = 0
    ) -> tf.data.Dataset:
        """The batches, in a new order each time they are iterated.

        Args:
            seed: The same seed gives the same orders, which are those of
                `stretch`; with `None`, that of `keras.utils.set_random_seed`
                does.
            initial_epoch: How many orders to leave out at first.

        Raises:
            TypeError: If the seed is not an integer.
        """
        seed = seed_or_random(seed)
        epochs = itertools.count(initial_epoch)

        def make_generator():
            return np.random.default_rng((seed, next(epochs)))

        return self._assembled(
            tf.data.Dataset.range(1).flat_map(
                lambda _: self._pass(make_generator)
            ),
            self.num_batches(),
        )

    def _pass(self, make_generator, *inputs):
        """The rows of each batch of one pass over the pairs, shuffled.

        Args:
            make_generator: Function of the inputs to a NumPy generator.
            *inputs: Int64 tensors.
        """

        def grouped(*inputs):
            return self._grouped(make_generator(*inputs))

        found = tf.numpy_function(grouped, inputs, [tf.int64] * 3)
        for x in found:
            x.set_shape([None])
        return _slices(*found)

    def in_order(self) -> tf.data.Dataset:
        """The batches in the order of their first pairs, not shuffled."""
        return self._assembled(_slices(*self._grouped()), self.num_batches())

    def _grouped(self, generator=None):
        """Groups pairs of similar length into batches.

        Pairs are shuffled first, then batches: so the few batches that are not
        full, in which a pair counts for more, may come anywhere.

        Args:
            generator: NumPy generator of random numbers; `None` for no
                shuffling, and the first row of each pair.

        Returns:
            Int64 arrays: the rows of one batch after another, one for each
            pair, and where each batch begins and ends.
        """
        _, bucket_of_pair, rows_of_bucket = self._buckets
        pairs = np.arange(len(self))
        if generator is not None:
            generator.shuffle(pairs)
        pairs = pairs[np.argsort(bucket_of_pair[pairs], kind="stable")]
        bucket = bucket_of_pair[pairs]
        first = np.searchsorted(bucket, bucket)  # of the same bucket
        place = np.arange(len(self)) - first
        starts = np.flatnonzero(place % rows_of_bucket[bucket] == 0)
        ends = np.append(starts[1:], len(self))
        if generator is None:
            order = np.argsort(pairs[starts])
        else:
            order = generator.permutation(len(starts))
        rows = pairs * self.segmentations
        if generator is not None and self.segmentations > 1:
            rows += generator.integers(self.segmentations, size=len(self))
        return rows, starts[order], ends[order]

    def _assembled(self, batches, count):
        """Makes the dataset for `fit` from one of the rows of each batch."""
        buckets, bucket_of_pair, rows_of_bucket = (
            tf.constant(array, tf.int64) for array in self._buckets
        )
        filler = len(self) * self.segmentations  # the empty pair

        def assemble(rows):
            bucket = bucket_of_pair[rows[0] // self.segmentations]
            length = buckets[bucket]
            size = rows_of_bucket[bucket]
            size += -size % self.num_devices  # the same number for each
            missing = size - tf.size(rows, tf.int64)
            rows = tf.pad(rows, [[0, missing]], constant_values=filler)
            rows = rows[self.part :: self.num_parts]
            source_ids = tf.gather(self.source, rows)
            target = tf.gather(self.target, rows)
            shape = tf.stack([-1, length])
            labels = target[:, 1:].to_tensor(shape=shape)
            inputs = {
                "source_ids": source_ids.to_tensor(shape=shape),
                "target_ids": target[:, :-1].to_tensor(shape=shape),
            }
            return inputs, labels, tf.cast(labels != PAD_TOKEN_ID, tf.float32)

        return (
            batches.map(assemble, num_parallel_calls=ASSEMBLED_AT_ONCE)
            .apply(tf.data.experimental.assert_cardinality(count))
            .prefetch(ASSEMBLED_AT_ONCE)
            .with_options(_without_autotuning())
        )

    @functools.cached_property
    def _buckets(self):
        """Length of each bucket, bucket of each pair, rows of its batches."""
        longest = min(self.max_length, self.tokens_per_batch)
        buckets = np.asarray(length_buckets(longest))
        return (
            buckets,
            np.searchsorted(buckets, self.lengths),
            self.tokens_per_batch // buckets,
        )

    def report(self, name) -> str:
        """How many pairs of a text, called `name`, were kept or dropped.

        And whether many tokens are unknown to the vocabularies.
        """
        total = len(self) + self.num_empty + self.num_long
        text = f"{name}: {total:,} pairs, {len(self):,} kept"
        if self.num_empty:
            text += f", {self.num_empty:,} dropped as empty"
        if self.num_long:
            text += (
                f", {self.num_long:,} dropped as longer than "
                f"{self.max_length} tokens with the end token"
            )
        for side, rows in (("source", self.source), ("target", self.target)):
            ids = rows.flat_values.numpy()
            share = np.sum(ids == UNKNOWN_TOKEN_ID) / max(len(ids), 1)
            if share >= REPORTED_UNKNOWN:
                text += (
                    f"; {share:.0%} of the {side}'s tokens are unknown to its "
                    "vocabulary"
                )
        return text


def _slices(x, starts, ends):
    """A dataset of slices of a vector."""
    x = tf.convert_to_tensor(x)
    places = tf.data.Dataset.from_tensor_slices((starts, ends))
    return places.map(lambda start, end: x[start:end])


def _without_autotuning():
    """Makes options of a dataset whose iterators end as soon as released.

    The thread that tunes a running pipeline sleeps for up to a minute at a
    time, and the end of an iterator, so of an epoch of `fit`, can wait until it
    wakes (seen with TensorFlow 2.21).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options

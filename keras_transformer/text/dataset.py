"""Batches of sentence pairs for `fit`, as a `tf.data.Dataset`."""

import dataclasses
import functools
import itertools
import sys

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check_integer
from keras_transformer.checks import check_kind
from keras_transformer.checks import check_positive
from keras_transformer.lines import chunks
from keras_transformer.lines import line_pairs
from keras_transformer.lines import name_of
from keras_transformer.progress import tracked
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.text.tokenizer import Tokenizer

# Lines to split into ids at a time: enough for all cores, little memory.
CHUNK_LINES = 20_000

# Batches assembled at a time, and as many that wait for `fit`: a batch takes
# milliseconds, its step more.
ASSEMBLED_AT_ONCE = 2


def translation_dataset(
    source,
    target=None,
    tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    tokens_per_batch: int = 4096,
    max_length: int = 256,
    shuffle: bool = True,
    seed: int | None = None,
    verbose: int = 1,
) -> tf.data.Dataset:
    """Makes batches for `Transformer.fit` from sentence pairs.

    The text is split into ids once, here, and kept in memory (4 bytes a token,
    about 100 a pair). Pairs of like length share a batch, as in section 5.1,
    and are padded to the same few lengths, so that a compiled model sees few
    shapes: a batch of length `L` always has `tokens_per_batch // L` rows, one
    of each length filled up with rows of padding, which have no weight.

    Args:
        source: A path, paths, or lines of source text; or a `tf.data.Dataset`
            of pairs of strings, as tensorflow-datasets gives them.
        target: The same for the target text, line by line its translation;
            nothing where `source` is a dataset of pairs.
        tokenizer: Splits the source, and the target where it has no own.
        target_tokenizer: Splits the target.
        tokens_per_batch: Most tokens of a batch on each side, padding
            included.
        max_length: Longest source and target to keep, in tokens with the end
            token. Longer pairs are dropped, empty ones too.
        shuffle: Whether each epoch has an order of its own.
        seed: Makes the orders the same again.
        verbose: 0 is silent, 1 shows progress and how many pairs were
            dropped.

    Returns:
        A dataset of `({"source_ids": (B, S), "target_ids": (B, T)}, labels
        (B, T), weights (B, T))`. Targets begin with the start token, labels
        end with the end token, weights are 1 at labels and 0 at padding. Its
        cardinality is known. Autotuning is off, also of what is added to it;
        end steps of your own with `.prefetch(2)`.

    Raises:
        FileNotFoundError: If a path is no file.
        TypeError: If the arguments are of the wrong kind.
        ValueError: If source and target have unequal numbers of lines, no
            pair is left, or a size is out of range.

    Example:
    >>> lines = ["the cat sees the dog", "the dog sees the cat"] * 10
    >>> tokenizer = Tokenizer.train(lines, vocabulary_size=16, verbose=0)
    >>> dataset = translation_dataset(lines, lines, tokenizer, verbose=0)
    >>> inputs, labels, weights = next(iter(dataset))
    >>> sorted(inputs), labels.shape == weights.shape
    (['source_ids', 'target_ids'], True)
    """
    if seed is not None:
        check_integer(seed=seed)
    corpus = read_corpus(
        source,
        target,
        tokenizer,
        target_tokenizer,
        tokens_per_batch=tokens_per_batch,
        max_length=max_length,
        verbose=verbose,
    )
    return corpus.shuffled(seed) if shuffle else corpus.in_order()


def read_corpus(
    source,
    target=None,
    tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    tokens_per_batch: int = 4096,
    max_length: int = 256,
    verbose: int = 1,
) -> "Corpus":
    """Splits sentence pairs into ids; arguments of `translation_dataset`."""
    check_budget(tokens_per_batch, max_length)
    if isinstance(target, Tokenizer):
        raise TypeError(
            "`target` must be text, or None where `source` is a dataset of "
            "pairs. Received: a Tokenizer. Pass it as `tokenizer=`."
        )
    tokenizers = tokenizer, target_tokenizer or tokenizer
    for name, value in zip(
        ("tokenizer", "target_tokenizer"), tokenizers, strict=True
    ):
        check_kind(name, value, Tokenizer)
    pairs, name = _string_pairs(source, target)
    corpus = _read(pairs, tokenizers, tokens_per_batch, max_length, verbose)
    if verbose:
        print(corpus.report(name), file=sys.stderr)
    if not len(corpus):
        raise ValueError(
            f"No pair of sentences is left. Received: {corpus.report(name)}."
        )
    return corpus


def check_budget(tokens_per_batch, max_length):
    """Checks the sizes of batches and of the sentences in them, in tokens."""
    check_positive(tokens_per_batch=tokens_per_batch, max_length=max_length)
    if tokens_per_batch < max_length:
        raise ValueError(
            "`tokens_per_batch` must be at least `max_length`, so that every "
            f"pair fits a batch. Received: tokens_per_batch={tokens_per_batch},"
            f" max_length={max_length}."
        )


def length_buckets(max_length: int) -> list[int]:
    """The lengths that batches are padded to: steps of 4, then of a quarter.

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
    """Ids of all pairs, with an empty pair at the end for rows of padding."""

    source: tf.RaggedTensor  # through the end token
    target: tf.RaggedTensor  # from the start through the end token
    lengths: np.ndarray  # of the longer side, with its end token
    num_empty: int
    num_long: int
    tokens_per_batch: int
    max_length: int
    num_devices: int = 1  # that the rows of a batch are split among
    num_parts: int = 1  # of each batch, as many rows in each
    part: int = 0  # the one to make

    def __len__(self):
        return len(self.lengths)

    def num_batches(self) -> int:
        """Batches of one pass over the pairs."""
        _, bucket_of_pair, rows_of_bucket = self._buckets
        pairs = np.bincount(bucket_of_pair, minlength=len(rows_of_bucket))
        return int(np.sum(-(-pairs // rows_of_bucket)))

    def stretch(self, seed: int, start: int, count: int) -> tf.data.Dataset:
        """Some of the batches of one pass after another, without end.

        Each pass has an order of its own.

        Args:
            seed: Orders of the same seed are the same.
            start: Number of the first batch, from 0.
            count: How many.
        """
        of_pass = self.num_batches()
        passes = tf.data.Dataset.range(
            start // of_pass, -(-(start + count) // of_pass)
        )
        batches = passes.flat_map(lambda number: self._pass(seed, number))
        return self._assembled(batches.skip(start % of_pass).take(count), count)

    def shuffled(self, seed: int | None = None) -> tf.data.Dataset:
        """The batches, in an order of its own each time they are iterated."""
        numbers = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
        return self._assembled(
            numbers.take(1).flat_map(self._pass), self.num_batches()
        )

    def _pass(self, *seeds):
        """The pairs of each batch, in an order that follows from numbers."""

        def grouped(*seeds):
            return self._grouped(np.random.default_rng(seeds))

        found = tf.numpy_function(grouped, seeds, [tf.int64] * 3)
        for x in found:
            x.set_shape([None])
        return _slices(*found)

    def in_order(self) -> tf.data.Dataset:
        """The batches by their first pairs, which are in order themselves."""
        return self._assembled(_slices(*self._grouped()), self.num_batches())

    def _grouped(self, generator=None):
        """Groups pairs of like length into batches.

        Shuffled pairs first, then the batches: the few that are not full, in
        which a pair counts for more, come anywhere.

        Args:
            generator: Of random numbers, from NumPy; none to shuffle nothing.

        Returns:
            Int64 arrays: the pairs of one batch after another, and where each
            batch begins and ends.
        """
        _, bucket_of_pair, rows_of_bucket = self._buckets
        pairs = np.arange(len(self))
        if generator is not None:
            generator.shuffle(pairs)
        pairs = pairs[np.argsort(bucket_of_pair[pairs], kind="stable")]
        bucket = bucket_of_pair[pairs]
        place = np.arange(len(self)) - np.searchsorted(bucket, bucket)
        starts = np.flatnonzero(place % rows_of_bucket[bucket] == 0)
        ends = np.append(starts[1:], len(self))
        if generator is None:
            order = np.argsort(pairs[starts])
        else:
            order = generator.permutation(len(starts))
        return pairs, starts[order], ends[order]

    def _assembled(self, batches, count):
        """Makes what `fit` takes of a dataset of the pairs of each batch."""
        buckets, bucket_of_pair, rows_of_bucket = (
            tf.constant(array, tf.int64) for array in self._buckets
        )
        filler = len(self)  # the empty pair

        def assemble(pairs):
            bucket = bucket_of_pair[pairs[0]]
            length = buckets[bucket]
            rows = rows_of_bucket[bucket]
            rows += -rows % self.num_devices  # as many rows for each
            missing = rows - tf.size(pairs, tf.int64)
            pairs = tf.pad(pairs, [[0, missing]], constant_values=filler)
            pairs = pairs[self.part :: self.num_parts]
            source_ids = tf.gather(self.source, pairs)
            target = tf.gather(self.target, pairs)
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
        """Length of each bucket, the bucket of each pair, rows of a batch."""
        buckets = np.asarray(length_buckets(self.max_length))
        return (
            buckets,
            np.searchsorted(buckets, self.lengths),
            self.tokens_per_batch // buckets,
        )

    def report(self, name):
        total = len(self) + self.num_empty + self.num_long
        text = f"{name}: {total:,} pairs, {len(self):,} kept"
        if self.num_empty:
            text += f", {self.num_empty:,} dropped as empty"
        if self.num_long:
            text += (
                f", {self.num_long:,} dropped as longer than "
                f"{self.max_length} tokens"
            )
        return text


def _slices(x, starts, ends):
    """A dataset of parts of a vector."""
    x = tf.convert_to_tensor(x)
    places = tf.data.Dataset.from_tensor_slices((starts, ends))
    return places.map(lambda start, end: x[start:end])


def _without_autotuning():
    """Makes options of a dataset whose iterators end when they are let go.

    What tunes a pipeline as it runs sleeps for up to a minute at a time, and
    the end of an iterator, so of an epoch of `fit`, can wait until it wakes
    (seen with TensorFlow 2.21).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def _string_pairs(source, target):
    """Gives an iterator over pairs of strings, and what to call them."""
    if isinstance(source, tf.data.Dataset):
        if target is not None:
            raise TypeError(
                "`target` must be None where `source` is a dataset of pairs. "
                f"Received: target of type {type(target).__name__}."
            )
        return _dataset_pairs(source), "dataset"
    if target is None:
        raise TypeError(
            "`target` must be given where `source` is no `tf.data.Dataset` of "
            "pairs. Received: target=None. Of a list of pairs: `source, target "
            "= zip(*pairs)`."
        )
    names = [name_of(text) for text in (source, target)]
    return line_pairs(source, target), ", ".join(dict.fromkeys(names))


def _dataset_pairs(dataset):
    spec = dataset.element_spec
    are_strings = (
        isinstance(spec, tuple)
        and len(spec) == 2
        and all(
            isinstance(part, tf.TensorSpec)
            and part.dtype == tf.string
            and part.shape.rank == 0
            for part in spec
        )
    )
    if not are_strings:
        raise TypeError(
            "`source` must be a dataset of pairs of scalar strings. Received: "
            f"elements of {spec}."
        )
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "`source` must end. Received: an infinite dataset. Use "
            "`dataset.take(n)`."
        )
    for number, pair in enumerate(dataset.as_numpy_iterator(), start=1):
        try:
            yield tuple(text.decode("utf-8") for text in pair)
        except UnicodeDecodeError:
            raise ValueError(
                f"Text must be UTF-8. Received: pair {number} of the dataset."
            ) from None


def _read(pairs, tokenizers, tokens_per_batch, max_length, verbose):
    ids = ([], [])  # one array a chunk, for each side
    row_lengths = ([], [])
    lengths = []
    num_empty = num_long = 0
    for chunk in tracked(chunks(pairs, CHUNK_LINES), "Splitting text", verbose):
        kept = []
        sides = (
            tokenizer.encode([pair[side] for pair in chunk])
            for side, tokenizer in enumerate(tokenizers)
        )
        for source, target in zip(*sides, strict=True):
            length = max(len(source), len(target)) + 1
            if not source or not target:
                num_empty += 1
            elif length > max_length:
                num_long += 1
            else:
                lengths.append(length)
                kept.append(
                    (
                        [*source, END_TOKEN_ID],
                        [START_TOKEN_ID, *target, END_TOKEN_ID],
                    )
                )
        for side in (0, 1):
            rows = [pair[side] for pair in kept]
            row_lengths[side].extend(map(len, rows))
            flat = itertools.chain.from_iterable(rows)
            ids[side].append(np.fromiter(flat, dtype="int32"))
    return Corpus(
        *(_ragged(ids[side], row_lengths[side]) for side in (0, 1)),
        lengths=np.asarray(lengths, dtype="int64"),
        num_empty=num_empty,
        num_long=num_long,
        tokens_per_batch=tokens_per_batch,
        max_length=max_length,
    )


def _ragged(parts, row_lengths):
    return tf.RaggedTensor.from_row_lengths(
        np.concatenate([*parts, np.zeros((0,), "int32")]), [*row_lengths, 0]
    )

"""Batches of sentence pairs for `fit`, as a `tf.data.Dataset`."""

import dataclasses
import functools
import itertools
import sys

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check_flag
from keras_transformer.checks import check_kind
from keras_transformer.checks import check_not_negative
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_positive_share
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.system.progress import tracked
from keras_transformer.tensorflow_only.devices import leave_gpus_to_keras
from keras_transformer.text.corpus import Corpus
from keras_transformer.text.lines import chunks
from keras_transformer.text.lines import line_pairs
from keras_transformer.text.lines import name_of
from keras_transformer.text.segmentation import generator_of
from keras_transformer.text.tokenizer import Tokenizer

# Lines to split into ids at a time: enough for all cores, and little memory.
CHUNK_LINES = 20_000


def translation_dataset(
    source,
    target=None,
    tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    tokens_per_batch: int = 4096,
    max_length: int = 256,
    segmentations: int = 1,
    segmentation_alpha: float = 0.1,
    shuffle: bool = True,
    seed: int | None = None,
    initial_epoch: int = 0,
    num_devices: int = 1,
    verbose: int = 1,
) -> tf.data.Dataset:
    """Makes batches for `Transformer.fit` from sentence pairs.

    The text is split into ids once, here, and kept in memory (4 bytes a token,
    about 100 a pair). Pairs of similar length share a batch, as in section 5.1,
    and are padded to one of a few lengths, so that a compiled model sees few
    shapes: a batch of length `L` always has `tokens_per_batch // L` rows,
    rounded up to a multiple of `num_devices`. One batch of each length is
    filled up with rows of padding, which have no weight.

    Args:
        source: A path, paths, or lines of source text; or a `tf.data.Dataset`
            of pairs of strings, as from tensorflow-datasets.
        target: The same for the target text, its translation line by line;
            `None` if `source` is a dataset of pairs.
        tokenizer: Splits the source, and the target unless it has its own.
        target_tokenizer: Splits the target.
        tokens_per_batch: Most tokens of a batch on each side, padding
            included; at least those of the longest sentence.
        max_length: Longest source and target to keep, in tokens with the end
            token. Longer pairs are dropped, and so are pairs with an empty
            side.
        segmentations: Ways in which each sentence is split into pieces. The
            first is that of `Tokenizer.encode`, the others are drawn as by
            `Tokenizer.sample`, and each epoch takes one of them at random. This
            is regularization for small data; memory grows with the number.
        segmentation_alpha: The `alpha` of `Tokenizer.sample`.
        shuffle: Whether each epoch has a new order.
        seed: The same seed gives the same orders and segmentations.
        initial_epoch: With `shuffle`, the dataset begins with the order that
            it would have after so many epochs of the same seed, for a `fit`
            that resumes with this `initial_epoch`. Whatever iterates it, such
            as `evaluate`, counts as an epoch.
        num_devices: Devices among which `keras.distribution` splits the rows of
            a batch. Those beyond `tokens_per_batch` are padding.
        verbose: 0 is silent, 1 shows progress and how many pairs were
            dropped.

    Returns:
        A dataset of `({"source_ids": (B, S), "target_ids": (B, T)}, labels
        (B, T), weights (B, T))`. Targets begin with the start token, labels
        end with the end token, weights are 1 at labels and 0 at padding. Its
        cardinality is known. Autotuning is off, also for transformations that
        you add; end these with `.prefetch(2)`.

    Raises:
        FileNotFoundError: If a path is not a file, or if all of a few strings
            look like names of files; for such lines, pass `iter(lines)`.
        TypeError: If the arguments are of the wrong kind.
        ValueError: If source and target differ in their number of lines, no
            pair is left, one does not fit a batch, or a size is out of range.

    Example:
    >>> lines = ["the cat sees the dog", "the dog sees the cat"] * 10
    >>> tokenizer = Tokenizer.train(lines, vocabulary_size=16, verbose=0)
    >>> dataset = translation_dataset(lines, lines, tokenizer, verbose=0)
    >>> inputs, labels, weights = next(iter(dataset))
    >>> sorted(inputs), labels.shape == weights.shape
    (['source_ids', 'target_ids'], True)
    """
    check_flag(shuffle=shuffle)
    check_not_negative(initial_epoch=initial_epoch)
    check_positive(num_devices=num_devices)
    if segmentations != 1 and not shuffle:
        raise ValueError(
            "`segmentations` must be 1 without `shuffle`, which draws one. "
            f"Received: segmentations={segmentations}, shuffle=False."
        )
    corpus = read_corpus(
        source,
        target,
        tokenizer,
        target_tokenizer,
        tokens_per_batch=tokens_per_batch,
        max_length=max_length,
        segmentations=segmentations,
        segmentation_alpha=segmentation_alpha,
        seed=seed,
        verbose=verbose,
    )
    corpus = dataclasses.replace(corpus, num_devices=num_devices)
    if not shuffle:
        return corpus.in_order()
    return corpus.shuffled(seed, initial_epoch)


def read_corpus(
    source,
    target=None,
    tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    tokens_per_batch: int = 4096,
    max_length: int = 256,
    segmentations: int = 1,
    segmentation_alpha: float = 0.1,
    seed: int | None = None,
    verbose: int = 1,
) -> Corpus:
    """Splits sentence pairs into ids; arguments as `translation_dataset`."""
    check_positive(tokens_per_batch=tokens_per_batch, max_length=max_length)
    check_segmentations(segmentations, segmentation_alpha)
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
    leave_gpus_to_keras()
    pairs, name = _string_pairs(source, target)
    # Not the stream that orders the batches.
    [generator] = generator_of(seed).spawn(1)
    longest = min(max_length, tokens_per_batch)
    splits = [
        functools.partial(
            each.segmentations,
            number=segmentations,
            alpha=segmentation_alpha,
            generator=generator,
            max_length=longest - 1,
        )
        for each in tokenizers
    ]
    corpus = Corpus(
        **_read(pairs, splits, max_length, verbose),
        tokens_per_batch=tokens_per_batch,
        max_length=max_length,
        segmentations=segmentations,
    )
    if verbose:
        print(corpus.report(name), file=sys.stderr)
    if not len(corpus):
        raise ValueError(
            f"No pair of sentences is left. Received: {corpus.report(name)}."
        )
    longest = np.max(corpus.lengths)
    if longest > tokens_per_batch:
        raise ValueError(
            "`tokens_per_batch` must be at least the length of every sentence. "
            f"Received: tokens_per_batch={tokens_per_batch}, {name} with one "
            f"of {longest} tokens with its end token. Raise it, or lower "
            "`max_length` to drop longer pairs."
        )
    return corpus


def check_segmentations(segmentations, alpha):
    """Checks how many segmentations are drawn, and how freely."""
    check_positive(segmentations=segmentations)
    check_positive_share(segmentation_alpha=alpha)


def _string_pairs(source, target):
    """Returns an iterator over pairs of strings, and what to call them."""
    if isinstance(source, tf.data.Dataset):
        if target is not None:
            raise TypeError(
                "`target` must be None where `source` is a dataset of pairs. "
                f"Received: target of type {type(target).__name__}."
            )
        _check_string_pairs(source)
        return _dataset_pairs(source), "dataset"
    if target is None:
        raise TypeError(
            "`target` must be given unless `source` is a `tf.data.Dataset` of "
            "pairs. Received: target=None. For a list of pairs, write `source, "
            "target = zip(*pairs)`."
        )
    names = [name_of(text) for text in (source, target)]
    return line_pairs(source, target), ", ".join(dict.fromkeys(names))


def _check_string_pairs(dataset):
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


def _dataset_pairs(dataset):
    for number, pair in enumerate(dataset.as_numpy_iterator(), start=1):
        try:
            yield tuple(text.decode("utf-8") for text in pair)
        except UnicodeDecodeError:
            raise ValueError(
                f"Text must be UTF-8. Received: pair {number} of the dataset."
            ) from None


def _read(pairs, splits, max_length, verbose):
    """Reads the fields of a `Corpus` that hold text, and counts it.

    Args:
        pairs: Iterable of pairs of strings.
        splits: For each side, a function from strings to the segmentations of
            each, the most probable one first.
        max_length: Longest row to keep, in tokens.
        verbose: Whether to show progress.
    """
    ids = ([], [])  # one array per chunk, for each side
    row_lengths = ([], [])
    lengths = []
    num_empty = num_long = 0
    pairs = tracked(pairs, "Splitting text", verbose)
    for chunk in chunks(pairs, CHUNK_LINES):
        kept = []
        sides = (
            split([pair[side] for pair in chunk])
            for side, split in enumerate(splits)
        )
        for sources, targets in zip(*sides, strict=True):
            best = sources[0], targets[0]
            if not all(best):
                num_empty += 1
                continue
            if max(map(len, best)) >= max_length:
                num_long += 1
                continue
            lengths.append(max(map(len, (*sources, *targets))) + 1)
            kept += [
                (
                    [*source, END_TOKEN_ID],
                    [START_TOKEN_ID, *target, END_TOKEN_ID],
                )
                for source, target in zip(sources, targets, strict=True)
            ]
        for side in (0, 1):
            rows = [pair[side] for pair in kept]
            row_lengths[side].extend(map(len, rows))
            flat = itertools.chain.from_iterable(rows)
            ids[side].append(np.fromiter(flat, dtype="int32"))
    return {
        "source": _ragged(ids[0], row_lengths[0]),
        "target": _ragged(ids[1], row_lengths[1]),
        "lengths": np.asarray(lengths, dtype="int64"),
        "num_empty": num_empty,
        "num_long": num_long,
    }


def _ragged(parts, row_lengths):
    return tf.RaggedTensor.from_row_lengths(
        np.concatenate([*parts, np.zeros((0,), "int32")]), [*row_lengths, 0]
    )

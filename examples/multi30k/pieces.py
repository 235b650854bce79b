"""Batches and translations of text that is already split into pieces.

White space separates the pieces, and `@@` ends each piece that the next one
continues, as [subword-nmt](https://github.com/rsennrich/subword-nmt) writes
them.
"""

import itertools
import re

import keras
import numpy as np
import tensorflow as tf

SENTENCES_AT_ONCE = 100  # to translate
UNKNOWN, START, END = 1, 2, 3  # 0 is padding; the ids of pieces follow


def make_vocabulary(lines):
    """The id of each piece in the lines, which white space separates."""
    pieces = sorted({piece for line in lines for piece in line.split()})
    return {piece: number for number, piece in enumerate(pieces, END + 1)}


def size(vocabulary):
    """The number of ids, including the four special ones."""
    return len(vocabulary) + END + 1


def make_ids(lines, vocabulary):
    """Ids of the pieces of each line, then the end token."""
    return [
        [*(vocabulary.get(piece, UNKNOWN) for piece in line.split()), END]
        for line in lines
    ]


def pad_rows(rows):
    """An int32 array of rows of ids, padded with 0."""
    return keras.utils.pad_sequences(rows, padding="post", dtype="int32")


def make_batches(source, target, tokens_per_batch):
    """Groups pairs of similar length, and pads each group to its longest."""
    lengths = [*map(len, source)], [*map(len, target)]
    pairs = sorted(zip(*lengths, range(len(source)), strict=True))
    groups = [[]]
    longest = 0
    for *sides, pair in pairs:
        longest = max(longest, *sides)
        full = longest * (len(groups[-1]) + 1) > tokens_per_batch
        if groups[-1] and full:
            groups.append([])
            longest = max(sides)
        groups[-1].append(pair)
    batches = []
    for group in groups:
        labels = pad_rows([target[pair] for pair in group])
        inputs = {
            "source_ids": pad_rows([source[pair] for pair in group]),
            "target_ids": pad_rows([[START, *target[p][:-1]] for p in group]),
        }
        batches.append((inputs, labels, (labels != 0).astype("float32")))
    return batches


def make_dataset(source, target, tokens_per_batch, seed, first_epoch=0):
    """Batches of ids for `fit`, in a new order each epoch."""
    batches = make_batches(source, target, tokens_per_batch)
    epochs = itertools.count(first_epoch)

    def epoch():
        generator = np.random.default_rng([seed, next(epochs)])
        for number in generator.permutation(len(batches)):
            yield batches[number]

    ids = tf.TensorSpec((None, None), tf.int32)
    weights = tf.TensorSpec((None, None), tf.float32)
    signature = ({"source_ids": ids, "target_ids": ids}, ids, weights)
    options = tf.data.Options()
    options.autotune.enabled = False  # it can delay the end of an epoch
    return (
        tf.data.Dataset.from_generator(epoch, output_signature=signature)
        .apply(tf.data.experimental.assert_cardinality(len(batches)))
        .prefetch(2)
        .with_options(options)
    )


def translate(model, lines, vocabulary, search):
    """Translates segmented lines; the pieces come back as words."""
    pieces = {number: piece for piece, number in vocabulary.items()}
    rows = make_ids(lines, vocabulary)
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    translations = [""] * len(rows)
    for first in range(0, len(order), SENTENCES_AT_ONCE):
        chosen = order[first : first + SENTENCES_AT_ONCE]
        found, _ = model.generate(pad_rows([rows[i] for i in chosen]), search)
        for row, ids in zip(chosen, found.tolist(), strict=True):
            text = " ".join(pieces[i] for i in ids if i > END)
            translations[row] = re.sub("@@( |$)", "", text)
    return translations

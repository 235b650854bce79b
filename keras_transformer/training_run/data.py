"""The text of a training, in files and in batches."""

import dataclasses
import math
import os

import tensorflow as tf

from keras_transformer.system.paths import check_file
from keras_transformer.system.paths import fingerprint
from keras_transformer.text.corpus import Corpus
from keras_transformer.text.dataset import read_corpus
from keras_transformer.text.lines import line_pairs
from keras_transformer.text.lines import read_lines
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.options import TrainingOptions


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """The files of a training's text.

    Attributes:
        text: A pair of paths, source and target.
        validation: A pair of paths, or `None`.
        digests: Fingerprints of all files, by role: `"source"`, `"target"`,
            `"validation source"`, `"validation target"`.
    """

    text: tuple[str, str]
    validation: tuple[str, str] | None
    digests: dict[str, str]

    @classmethod
    def of(cls, source, target, validation=None):
        """Checks that they are files, and takes their fingerprints.

        Raises:
            FileNotFoundError: If one is missing.
            ValueError: If one is not a file, but a pipe, a device or an
                address such as `gs://`.
        """
        pairs = {"": (source, target)}
        if validation:
            pairs["validation "] = validation
        paths = {
            f"{kind}{side}": check_file(path)
            for kind, pair in pairs.items()
            for side, path in zip(("source", "target"), pair, strict=True)
        }
        for path in paths.values():
            if not os.path.isfile(path):
                raise ValueError(
                    "Text to train on must be a file, which is read several "
                    f"times. Received: {path!r}, a pipe or a device."
                )
        source, target, *validation = paths.values()
        digests = {name: fingerprint(path) for name, path in paths.items()}
        return cls((source, target), tuple(validation) or None, digests)

    def check_pairs(self):
        """Raises `ValueError` if a side has more lines, or no pair has text."""
        for files in filter(None, (self.text, self.validation)):
            has_text = False
            for pair in line_pairs(*files):
                has_text = has_text or all(map(str.strip, pair))
            if not has_text:
                raise ValueError(
                    "Text must not be empty. Received: no pair of lines with "
                    f"text in {', '.join(files)}."
                )


@dataclasses.dataclass
class TrainingData:
    """The data to train on and to validate with.

    Attributes:
        digests: Fingerprints of the files.
        corpus: The corpus; this process makes its part of each batch.
        num_batches: Batches of an epoch.
        num_epochs: Epochs until training ends.
        num_updates: Updates until then.
        validation: Batches to validate with, or `None`.
        validation_lines: The same as lines of source and target, or `None`.
    """

    digests: dict[str, str]
    corpus: Corpus
    num_batches: int
    num_epochs: int
    num_updates: int
    validation: tf.data.Dataset | None = None
    validation_lines: list[list[str]] | None = None

    @classmethod
    def read(
        cls,
        options: TrainingOptions,
        files: TextFiles,
        tokenizers,
        distribution: Distribution,
    ):
        """Reads the text, and splits it into ids.

        Args:
            options: The options of the training.
            files: The files of its text.
            tokenizers: The tokenizers of source and target.
            distribution: Says which part of each batch this process makes.
        """

        def read(pair, **segmentations):
            corpus = read_corpus(
                *pair,
                *tokenizers,
                tokens_per_batch=options.tokens_per_batch,
                max_length=options.max_length,
                verbose=int(distribution.is_chief),
                **segmentations,
            )
            return dataclasses.replace(
                corpus,
                num_devices=distribution.num_devices,
                num_parts=distribution.num_processes,
                part=distribution.process,
            )

        drawing = {}
        if options.segmentations != 1:
            drawing = {
                "segmentations": options.segmentations,
                "segmentation_alpha": options.segmentation_alpha,
            }
        corpus = read(files.text, seed=options.seed, **drawing)
        num_batches = corpus.num_batches()
        if options.updates_per_epoch is not None:
            num_batches = options.updates_per_epoch * options.accumulate
        num_epochs = options.epochs
        if options.updates is not None:
            batches = options.updates * options.accumulate
            num_epochs = math.ceil(batches / num_batches)
        num_updates = num_epochs * num_batches // options.accumulate
        data = cls(files.digests, corpus, num_batches, num_epochs, num_updates)
        if files.validation:
            data.validation = read(files.validation).in_order()
            data.validation_lines = [
                [*read_lines(path)] for path in files.validation
            ]
        return data

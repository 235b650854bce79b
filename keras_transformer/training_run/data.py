"""The text of a training, in batches."""

import dataclasses
import math

import tensorflow as tf

from keras_transformer.lines import read_lines
from keras_transformer.text.dataset import Corpus
from keras_transformer.text.dataset import read_corpus
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.options import TrainingOptions


@dataclasses.dataclass
class TrainingData:
    """What is trained and validated on.

    Attributes:
        corpus: Of which this process makes its part of each batch.
        num_batches: Batches of an epoch.
        num_epochs: Epochs until training ends.
        num_updates: Updates until then.
        validation: Batches to validate with, or `None`.
        validation_lines: The same as lines of source and target, or `None`.
    """

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
        text,
        validation,
        tokenizers,
        distribution: Distribution,
    ):
        """Reads text, and splits it into ids.

        Args:
            options: What the training is told.
            text: A pair of files, source and target.
            validation: A pair of files, or `None`.
            tokenizers: Those of source and target.
            distribution: Which part of each batch this process makes.
        """

        def read(pair):
            corpus = read_corpus(
                *pair,
                *tokenizers,
                tokens_per_batch=options.tokens_per_batch,
                max_length=options.max_length,
                verbose=int(distribution.is_chief),
            )
            return dataclasses.replace(
                corpus,
                num_devices=distribution.num_devices,
                num_parts=distribution.num_processes,
                part=distribution.process,
            )

        corpus = read(text)
        num_batches = corpus.num_batches()
        if options.updates_per_epoch is not None:
            num_batches = options.updates_per_epoch * options.accumulate
        num_epochs = options.epochs
        if options.updates is not None:
            batches = options.updates * options.accumulate
            num_epochs = math.ceil(batches / num_batches)
        num_updates = num_epochs * num_batches // options.accumulate
        data = cls(corpus, num_batches, num_epochs, num_updates)
        if validation:
            data.validation = read(validation).in_order()
            data.validation_lines = [[*read_lines(path)] for path in validation]
        return data

"""What `keras-transformer train` does: from two text files to a translator."""

import os
import sys

import keras

from keras_transformer.atomic import check_absent
from keras_transformer.checks import check_positive
from keras_transformer.text import Tokenizer
from keras_transformer.text import translation_dataset
from keras_transformer.text.lines import lines_of
from keras_transformer.training import LabelSmoothedCrossentropy
from keras_transformer.training import WarmupSchedule
from keras_transformer.transformer import Transformer
from keras_transformer.translator import Translator


class TrainingRun:
    """Trains a translator into a folder, epoch by epoch.

    The folder is a translator's (`Translator.load` reads it) with a folder
    `training` beside: what is needed to go on, and a log.

    Args:
        output: The folder.
        preset: Size of the model.
        vocabulary_size: Pieces of the vocabulary that both sides share.
        model_type: Kind of vocabulary, `"unigram"` or `"bpe"`.
        tokens_per_batch: Tokens of a batch on each side, with padding.
        max_length: Longest sentence to keep, in tokens.
        learning_rate: Peak learning rate; equation 3's by default.
        warmup_steps: Updates until the peak.
        dropout: Share to drop; the preset's by default.
        label_smoothing: Share of the label to spread.
        dtype: Keras dtype policy.
        seed: Makes weights, order and dropout repeatable.
    """

    def __init__(
        self,
        output,
        preset: str,
        vocabulary_size: int,
        model_type: str,
        tokens_per_batch: int,
        max_length: int,
        learning_rate: float | None,
        warmup_steps: int,
        dropout: float | None,
        label_smoothing: float,
        dtype: str,
        seed: int,
    ):
        self.output = os.fspath(output)
        self.preset = preset
        self.vocabulary_size = vocabulary_size
        self.model_type = model_type
        self.data = {
            "tokens_per_batch": tokens_per_batch,
            "max_length": max_length,
            "seed": seed,
        }
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.overrides = {} if dropout is None else {"dropout": dropout}
        self.overrides["dtype"] = dtype
        self.loss = LabelSmoothedCrossentropy(label_smoothing)
        self.seed = seed
        self.epochs_done = 0

    def prepare(self, source, target, validation, resume, overwrite):
        """Checks everything and makes data and model, before anything runs."""
        keras.utils.set_random_seed(self.seed)
        self.validation_data = self.sample = None
        if resume:
            translator = Translator.load(self.output)
            tokenizer = translator.tokenizer
        else:
            check_absent(self.output, overwrite)
            translator = None
            tokenizer = Tokenizer.train(
                [os.fspath(source), os.fspath(target)],
                vocabulary_size=self.vocabulary_size,
                model_type=self.model_type,
            )
        self.train_data = translation_dataset(
            source, target, tokenizer, **self.data
        )
        if validation:
            self.validation_data = translation_dataset(
                *validation, tokenizer, shuffle=False, **self.data
            )
        self.sample = next(
            line for line in lines_of((validation or [source])[0]) if line
        )
        self.translator = translator or Translator(
            Transformer.from_preset(
                self.preset, tokenizer.vocabulary_size, **self.overrides
            ),
            tokenizer,
        )
        model = self.translator.model
        schedule = WarmupSchedule(
            hidden_dim=None if self.learning_rate else model.hidden_dim,
            warmup_steps=self.warmup_steps,
            peak_learning_rate=self.learning_rate,
        )
        # Section 5.3. Text has many shapes, which XLA would each compile.
        model.compile(
            optimizer=keras.optimizers.Adam(
                schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9
            ),
            loss=self.loss,
            jit_compile=keras.backend.backend() == "jax",
        )
        self.resume = resume

    def fit(self, epochs: int):
        """Trains until `epochs` passes over the text are done."""
        check_positive(epochs=epochs)
        folder = os.path.join(self.output, "training")
        if not self.resume:
            self.translator.save(self.output, overwrite=True)
        os.makedirs(folder, exist_ok=True)
        self.translator.model.fit(
            self.train_data,
            validation_data=self.validation_data,
            epochs=epochs,
            verbose=1 if sys.stdout.isatty() else 2,
            callbacks=[
                keras.callbacks.BackupAndRestore(
                    os.path.join(folder, "backup"), delete_checkpoint=False
                ),
                keras.callbacks.CSVLogger(
                    os.path.join(folder, "log.csv"), append=self.resume
                ),
                _EpochEnd(self),
            ],
        )

    def state(self) -> str:
        """Says what is on disk."""
        if not self.epochs_done:
            return "No epoch has ended, so no trained model is on disk."
        return (
            f"The translator after epoch {self.epochs_done} is in "
            f"{self.output}."
        )


class _EpochEnd(keras.callbacks.Callback):
    """Saves the translator and shows a sample translation."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def on_epoch_end(self, epoch, logs=None):
        self.run.translator.save(self.run.output, overwrite=True)
        self.run.epochs_done = epoch + 1
        translation = self.run.translator([self.run.sample])[0]
        print(f"  {self.run.sample}\n  -> {translation}", flush=True)

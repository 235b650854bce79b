"""What `keras-transformer train` does: from two text files to a translator."""

import dataclasses
import os
import shutil
import sys
from pathlib import Path

import keras

from keras_transformer.atomic import check_absent
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_share
from keras_transformer.text import Tokenizer
from keras_transformer.text import translation_dataset
from keras_transformer.text.lines import lines_of
from keras_transformer.training import LabelSmoothedCrossentropy
from keras_transformer.training import WarmupSchedule
from keras_transformer.transformer import Transformer
from keras_transformer.translator import Translator


@dataclasses.dataclass
class TrainingRun:
    """Trains a translator into a folder, epoch by epoch.

    The folder is a translator's (`Translator.load` reads it), with a folder
    `training` in it: what is needed to go on, and a log.

    Attributes:
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
        average_decay: Decay of the exponential mean of the weights, which is
            validated and saved in place of the last weights; 0 for none.
        dtype: Keras dtype policy.
        seed: Makes weights, order and dropout repeatable.
    """

    output: str
    preset: str
    vocabulary_size: int
    model_type: str
    tokens_per_batch: int
    max_length: int
    learning_rate: float | None
    warmup_steps: int
    dropout: float | None
    label_smoothing: float
    average_decay: float
    dtype: str
    seed: int

    def prepare(
        self, source, target, validation, resume=False, overwrite=False
    ):
        """Reads the text and makes the model, or finds out what is wrong.

        Args:
            source: Text file.
            target: Its translation.
            validation: A pair of files like them, or `None`.
            resume: Whether to go on with the translator in the folder.
            overwrite: Whether to replace the translator in the folder.
        """
        check_share(average_decay=self.average_decay)
        keras.utils.set_random_seed(self.seed)
        self.resume = resume
        self.epochs_done = 0
        if resume:
            self.translator = Translator.load(self.output)
        else:
            check_absent(self.output, overwrite)
            self.translator = self._new_translator(source, target)
        data = {
            "tokenizer": self.translator.tokenizer,
            "tokens_per_batch": self.tokens_per_batch,
            "max_length": self.max_length,
        }
        self.train_data = translation_dataset(
            source, target, seed=self.seed, **data
        )
        self.validation_data = None
        if validation:
            self.validation_data = translation_dataset(
                *validation, shuffle=False, **data
            )
        watched = validation[0] if validation else source
        self.sample = next(line for line in lines_of(watched) if line.strip())
        self._compile()

    def fit(self, epochs: int):
        """Trains until `epochs` passes over the text are done."""
        check_positive(epochs=epochs)
        folder = os.path.join(self.output, "training")
        if not self.resume:
            shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder, exist_ok=True)
        # In this order: the backup keeps the weights that training goes on
        # with, then the mean takes their place until the next epoch begins.
        callbacks = [
            keras.callbacks.BackupAndRestore(
                os.path.join(folder, "backup"), delete_checkpoint=False
            ),
            keras.callbacks.CSVLogger(
                os.path.join(folder, "log.csv"), append=self.resume
            ),
        ]
        if self.average_decay:
            callbacks.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
        callbacks.append(_EpochEnd(self))
        self.translator.model.fit(
            self.train_data,
            validation_data=self.validation_data,
            epochs=epochs,
            verbose=1 if sys.stdout.isatty() else 2,
            callbacks=callbacks,
        )

    def state(self) -> str:
        """Says what is on disk."""
        if self.epochs_done:
            return (
                f"The translator after epoch {self.epochs_done} is in "
                f"{self.output}."
            )
        if self.resume:
            return f"No further epoch has ended; {self.output} is as it was."
        return "No epoch has ended, so no trained translator is on disk."

    def _new_translator(self, source, target):
        tokenizer = Tokenizer.train(
            [Path(source), Path(target)],
            vocabulary_size=self.vocabulary_size,
            model_type=self.model_type,
        )
        overrides = {} if self.dropout is None else {"dropout": self.dropout}
        model = Transformer.from_preset(
            self.preset,
            tokenizer.vocabulary_size,
            dtype=self.dtype,
            **overrides,
        )
        return Translator(model, tokenizer)

    def _compile(self):
        """Section 5.3. Text has many lengths, which XLA would each compile."""
        model = self.translator.model
        schedule = WarmupSchedule(
            hidden_dim=None if self.learning_rate else model.hidden_dim,
            warmup_steps=self.warmup_steps,
            peak_learning_rate=self.learning_rate,
        )
        model.compile(
            optimizer=keras.optimizers.Adam(
                schedule,
                beta_1=0.9,
                beta_2=0.98,
                epsilon=1e-9,
                use_ema=self.average_decay > 0,
                ema_momentum=self.average_decay,
            ),
            loss=LabelSmoothedCrossentropy(self.label_smoothing),
            jit_compile=keras.backend.backend() == "jax",
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
        print(f"\n  {self.run.sample}\n  -> {translation}", flush=True)

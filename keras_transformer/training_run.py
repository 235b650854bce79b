"""What `keras-transformer train` does: from two text files to a translator."""

import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import keras

from keras_transformer.atomic import check_absent
from keras_transformer.atomic import write_file
from keras_transformer.checks import check_file
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_share
from keras_transformer.text import Tokenizer
from keras_transformer.text import translation_dataset
from keras_transformer.text.lines import lines_of
from keras_transformer.training import LabelSmoothedCrossentropy
from keras_transformer.training import Perplexity
from keras_transformer.training import WarmupSchedule
from keras_transformer.transformer import PRESETS
from keras_transformer.transformer import Transformer
from keras_transformer.translator import Translator

SETTINGS = "settings.json"


@dataclasses.dataclass
class TrainingRun:
    """Trains a translator into a folder, epoch by epoch.

    The folder is a translator's (`Translator.load` reads it), with a folder
    `training` in it: what is needed to go on, and a log.

    Attributes:
        output: The folder.
        epochs: Passes over the text.
        preset: Size of the model.
        vocabulary_size: Pieces of the vocabulary that both sides share.
        model_type: Kind of vocabulary, `"unigram"` or `"bpe"`.
        tokens_per_batch: Tokens of a batch on each side, with padding.
        max_length: Longest sentence to keep, in tokens.
        learning_rate: Peak learning rate; equation 3's by default.
        warmup_steps: Updates until the peak.
        dropout: Share to drop; the preset's by default.
        normalize_first: Whether to normalise before each sublayer.
        label_smoothing: Share of the label to spread.
        average_decay: Decay of the exponential mean of the weights, which is
            validated and saved in place of the last weights; 0 for none.
        dtype: Keras dtype policy.
        seed: Makes weights, order and dropout repeatable.
    """

    output: str
    epochs: int
    preset: str
    vocabulary_size: int
    model_type: str
    tokens_per_batch: int
    max_length: int
    learning_rate: float | None
    warmup_steps: int
    dropout: float | None
    normalize_first: bool
    label_smoothing: float
    average_decay: float
    dtype: str
    seed: int

    def prepare(
        self, source, target, validation, resume=False, overwrite=False
    ):
        """Finds out what is wrong, then reads the text and makes the model.

        Args:
            source: Text file.
            target: Its translation.
            validation: A pair of files like them, or `None`.
            resume: Whether to go on with the run in the folder.
            overwrite: Whether to replace the run in the folder.
        """
        check_positive(epochs=self.epochs)
        check_share(average_decay=self.average_decay)
        for path in (source, target, *(validation or ())):
            check_file(path)
        self.loss = LabelSmoothedCrossentropy(self.label_smoothing)
        self.schedule = WarmupSchedule(
            hidden_dim=(
                PRESETS[self.preset]["hidden_dim"]
                if self.learning_rate is None
                else None
            ),
            warmup_steps=self.warmup_steps,
            peak_learning_rate=self.learning_rate,
        )
        keras.utils.set_random_seed(self.seed)
        self.resume = resume
        self.epochs_done = 0
        if resume:
            self._check_settings()
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

    def fit(self):
        """Trains until `epochs` passes over the text are done."""
        if not self.resume:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder, exist_ok=True)
        # In this order: the backup keeps the weights that training goes on
        # with, then the mean takes their place until the next epoch begins.
        callbacks = [
            keras.callbacks.BackupAndRestore(
                os.path.join(self.folder, "backup"),
                double_checkpoint=True,
                delete_checkpoint=False,
            ),
            keras.callbacks.CSVLogger(
                os.path.join(self.folder, "log.csv"), append=self.resume
            ),
        ]
        if self.average_decay:
            callbacks.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
        callbacks += [_EpochEnd(self), interrupt := _Interrupt()]
        try:
            with interrupt:
                self.translator.model.fit(
                    self.train_data,
                    validation_data=self.validation_data,
                    epochs=self.epochs,
                    verbose=1 if sys.stdout.isatty() else 2,
                    callbacks=callbacks,
                )
        finally:
            if not self.epochs_done and not self.resume:
                shutil.rmtree(self.folder)  # nothing to go on with

    def state(self) -> str:
        """Says what is on disk."""
        if self.epochs_done:
            return (
                f"The translator after epoch {self.epochs_done} is in "
                f"{self.output}."
            )
        if self.resume:
            return f"No further epoch has ended; {self.output} is as it was."
        return "No epoch has ended, and nothing was written."

    @property
    def folder(self) -> str:
        """Where the run keeps what it needs to go on, and its log."""
        return os.path.join(self.output, "training")

    def save(self):
        """Writes the translator, and the settings of the run beside it."""
        settings = {**dataclasses.asdict(self)}
        del settings["output"], settings["epochs"]
        write_file(
            os.path.join(self.folder, SETTINGS),
            json.dumps(settings, indent=2).encode(),
        )
        self.translator.save(self.output, overwrite=True)

    def _check_settings(self):
        """Raises unless the folder holds a run with the same settings."""
        path = os.path.join(self.folder, SETTINGS)
        try:
            with open(path, encoding="utf-8") as file:
                settings = json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(
                f"There is no training to go on with in {self.output}. Leave "
                "out `--resume`."
            ) from None
        for name, value in settings.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"`{name}` must be what training began with, {value}. "
                    f"Received: {name}={getattr(self, name)}."
                )

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
            normalize_first=self.normalize_first,
            dtype=self.dtype,
            **overrides,
        )
        return Translator(model, tokenizer)

    def _compile(self):
        """Section 5.3. Text has many lengths, which XLA would each compile."""
        self.translator.model.compile(
            optimizer=keras.optimizers.Adam(
                self.schedule,
                beta_1=0.9,
                beta_2=0.98,
                epsilon=1e-9,
                use_ema=self.average_decay > 0,
                ema_momentum=self.average_decay,
            ),
            loss=self.loss,
            weighted_metrics=[Perplexity()],
            jit_compile=keras.backend.backend() == "jax",
        )


class _Interrupt(keras.callbacks.Callback):
    """Makes sure that Ctrl-C ends training.

    Python raises `KeyboardInterrupt` wherever it is, and where that is a
    destructor the exception is lost. So it is raised again after the batch.
    """

    def __init__(self):
        super().__init__()
        self.interrupted = False

    def __enter__(self):
        # Python lets the main thread alone handle signals.
        self.handles = threading.current_thread() is threading.main_thread()
        if self.handles:
            self.handler = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *error):
        if self.handles:
            signal.signal(signal.SIGINT, self.handler)

    def on_train_batch_end(self, batch, logs=None):
        if self.interrupted:
            raise KeyboardInterrupt

    def _on_signal(self, number, frame):
        self.interrupted = True
        raise KeyboardInterrupt


class _EpochEnd(keras.callbacks.Callback):
    """Saves the translator and shows a sample translation."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def on_epoch_end(self, epoch, logs=None):
        self.run.save()
        self.run.epochs_done = epoch + 1
        translation = self.run.translator([self.run.sample])[0]
        print(f"\n  {self.run.sample}\n  -> {translation}", flush=True)

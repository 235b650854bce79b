"""What happens between batches and at the end of epochs."""

import contextlib
import datetime
import math
import sys
import time

import keras

from keras_transformer.batches import first_of
from keras_transformer.bleu_callback import BleuCallback
from keras_transformer.checkpoint import Checkpoint
from keras_transformer.event_log import EventLog
from keras_transformer.system.atomic import write_file
from keras_transformer.system.picture import can_draw
from keras_transformer.system.progress import batch_bar
from keras_transformer.system.progress import print_sample
from keras_transformer.training import WeightAveraging
from keras_transformer.training_run.curves import draw_curves
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.folder import CHECKPOINTS
from keras_transformer.training_run.folder import CURVES
from keras_transformer.training_run.folder import LOG
from keras_transformer.training_run.folder import TENSORBOARD
from keras_transformer.training_run.folder import RunFolder
from keras_transformer.training_run.history import History
from keras_transformer.training_run.interrupt import Interrupt
from keras_transformer.training_run.interrupt import Stopped
from keras_transformer.translator import Translator
from keras_transformer.weights import check_finite_model

# Where there is no terminal, a log shows in this time that training goes on.
SECONDS_BETWEEN_LINES = 60


class OneTraining(keras.callbacks.CallbackList):
    """Callbacks that see one training in which `fit` is called often.

    `fit` runs one epoch at a time, as the first may begin in its middle. Each
    call says that training begins and ends, but the callbacks hear it once.
    """

    def begin(self):
        """Says that training begins."""
        super().on_train_begin()

    def end(self):
        """Says that training ends."""
        super().on_train_end()

    def on_train_begin(self, logs=None):
        pass

    def on_train_end(self, logs=None):
        pass


class BatchProgress(keras.callbacks.Callback):
    """Shows how far an epoch is: a bar in a terminal, else a line a minute.

    Keras's own bar does not fit into 80 columns: there, each of its updates is
    a new line. And it does not count what came before a resumed epoch.

    Args:
        num_batches: Batches of an epoch.
        is_shown: Whether this process shows it.
    """

    def __init__(self, num_batches: int, is_shown: bool):
        super().__init__()
        self.num_batches = num_batches
        self.is_shown = is_shown

    @contextlib.contextmanager
    def of_epoch(self, done: int):
        """Shows the bar of an epoch of which some batches are done."""
        with batch_bar(self.is_shown) as self.bar:
            self.task = self.bar.add_task(
                "Training", completed=done, total=self.num_batches, results=""
            )
            self.skipped = done
            self.began = self.printed = time.monotonic()
            yield

    def on_train_batch_end(self, batch, logs=None):
        results = ", ".join(
            f"{name} {value:.4g}" for name, value in logs.items()
        )
        self.bar.update(self.task, advance=1, results=results)
        if self.bar.finished:
            self.bar.stop()  # before the epoch's results are printed
            return
        now = time.monotonic()
        is_due = now - self.printed >= SECONDS_BETWEEN_LINES
        if self.is_shown and self.bar.disable and is_due:
            self.printed = now
            done = self.skipped + batch + 1
            left = (now - self.began) / (batch + 1) * (self.num_batches - done)
            print(
                f"{done:,} of {self.num_batches:,} batches, "
                f"{datetime.timedelta(seconds=round(left))} left in the epoch: "
                f"{results}",
                file=sys.stderr,
                flush=True,
            )


class Bleu(BleuCallback):
    """Writes samples only where the run's folder is what was locked.

    Args:
        translator: As for `BleuCallback`.
        sources: Likewise.
        references: Likewise.
        folder: The `RunFolder`.
        **kwargs: For `BleuCallback`.
    """

    def __init__(self, translator, sources, references, folder, **kwargs):
        super().__init__(translator, sources, references, **kwargs)
        self.folder = folder

    def _write(self, samples, epoch):
        self.folder.check_in_place()
        super()._write(samples, epoch)


class Results(keras.callbacks.Callback):
    """Adds each epoch to the history, which later callbacks read.

    Weights and losses that are not finite end training here, before anything is
    written.

    Args:
        history: The `History`.
    """

    def __init__(self, history: History):
        super().__init__()
        self.history = history

    def on_epoch_end(self, epoch, logs=None):
        check_finite_model(self.model)
        values = {name: float(value) for name, value in logs.items()}
        _check_losses(values, self.history.rows)
        self.history.rows.append({"epoch": epoch, **values})


class SaveTranslator(keras.callbacks.Callback):
    """Saves the translator after each epoch that is to be kept.

    It comes after `Checkpoints`, so that what it replaces is of an epoch that
    training does not go back to, and before `Logs`: if an epoch has a
    checkpoint and is not logged, training ended before its translator was
    certainly saved, which is made up for at the next start.

    Args:
        checkpoint: The `Checkpoint` that training goes on from.
        history: The `History`, which already has the epoch.
        translator: The `Translator` that is trained.
        averaging: The `WeightAveraging`, or `None`.
        folder: The `RunFolder`.
        distribution: Its chief writes.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        history: History,
        translator: Translator,
        averaging: WeightAveraging | None,
        folder: RunFolder,
        distribution: Distribution,
    ):
        super().__init__()
        self.checkpoint = checkpoint
        self.history = history
        self.translator = translator
        self.averaging = averaging
        self.folder = folder
        self.distribution = distribution

    def on_train_begin(self, logs=None):
        epochs = len(self.history.rows)
        logged = self.distribution.by_chief(self.folder.epochs_logged)
        if logged >= epochs or self.checkpoint.batch:
            return
        if self.averaging:
            self.averaging.apply()
        self._save(epochs - 1)
        if self.averaging:
            self.averaging.restore()

    def on_epoch_end(self, epoch, logs=None):
        self._save(epoch)

    def _save(self, epoch):
        if self.history.epoch_to_save() != epoch:
            return
        if self.distribution.is_chief:
            self.folder.check_in_place()
            self.translator.save(self.folder.output, overwrite=True)
        self.history.saved = epoch


class Logs(keras.callbacks.Callback):
    """Writes the results of epochs: as CSV, for TensorBoard, as a picture.

    It comes last of what writes: an epoch that is logged has all else.

    Args:
        history: The `History`, which already has the epoch.
        folder: The `RunFolder`.
    """

    def __init__(self, history: History, folder: RunFolder):
        super().__init__()
        self.history = history
        self.folder = folder
        self.event_logs = {
            part: EventLog(folder.path(TENSORBOARD, part))
            for part in ("train", "validation")
        }

    def on_train_begin(self, logs=None):
        # Training may have been killed between a checkpoint and its log.
        if self.folder.epochs_logged() < len(self.history.rows):
            self._write(self.folder.epochs_logged())

    def on_epoch_end(self, epoch, logs=None):
        self._write(epoch)

    def _write(self, epoch):
        """Writes what came after the first `epoch` epochs."""
        self.folder.check_in_place()
        for row in self.history.rows[epoch:]:
            self._write_events(**row)
        write_file(self.folder.path(LOG), self.history.table().encode())
        if can_draw():
            draw_curves(self.folder.path(CURVES), self.history.rows)

    def _write_events(self, epoch, **values):
        for part, log in self.event_logs.items():
            of_part = {
                name.removeprefix("val_"): value
                for name, value in values.items()
                if name.startswith("val_") == (part == "validation")
            }
            if of_part:
                log.write(epoch, of_part)


class Sample(keras.callbacks.Callback):
    """Translates a sentence after each epoch.

    Args:
        translator: The `Translator` that is trained.
        sentence: What to translate.
        prints: Whether to print it; all processes translate together.
    """

    def __init__(self, translator: Translator, sentence: str, prints: bool):
        super().__init__()
        self.translator = translator
        self.sentence = sentence
        self.prints = prints

    def on_epoch_end(self, epoch, logs=None):
        translation = first_of(self.translator([self.sentence]))[0]
        if self.prints:
            print_sample(self.sentence, translation)


class EarlyStopping(keras.callbacks.EarlyStopping):
    """Also counts the epochs that ended before training was resumed.

    Args:
        history: The `History`.
        patience: Epochs to wait for a better value.
    """

    def __init__(self, history: History, patience: int):
        options = history.options
        super().__init__(
            options.monitor,
            patience=patience,
            mode="max" if options.more_is_better else "min",
        )
        self.history = history
        self.worst = -math.inf if options.more_is_better else math.inf

    def on_epoch_end(self, epoch, logs=None):
        # Keras would compare all others with what is no number.
        if math.isnan((logs or {}).get(self.monitor, 0.0)):
            logs = {**logs, self.monitor: self.worst}
        super().on_epoch_end(epoch, logs)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        for row in self.history.rows:
            if self.monitor in row:
                # An epoch that others follow did not end the training,
                # whatever the patience is now.
                self.model.stop_training = False
                self.on_epoch_end(row["epoch"], row)


class Checkpoints(keras.callbacks.Callback):
    """Writes checkpoints to go on from, and stops within epochs if asked to.

    Args:
        checkpoint: The `Checkpoint` that training goes on from.
        history: The `History`, which already has an epoch at its end.
        averaging: The `WeightAveraging`, or `None`.
        num_batches: Batches of an epoch.
        every: Batches between two checkpoints within an epoch; 0 for none.
        folder: The `RunFolder`.
        distribution: Its chief writes.
        interrupt: Says whether to stop; at an epoch's end, `Fitting` does.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        history: History,
        averaging: WeightAveraging | None,
        num_batches: int,
        every: int,
        folder: RunFolder,
        distribution: Distribution,
        interrupt: Interrupt,
    ):
        super().__init__()
        self.checkpoint = checkpoint
        self.history = history
        self.averaging = averaging
        self.num_batches = num_batches
        self.every = every
        self.folder = folder
        self.distribution = distribution
        self.interrupt = interrupt

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.skipped = 0
        if epoch == self.checkpoint.epoch and self.checkpoint.batch:
            self.skipped = self.checkpoint.batch
            self.checkpoint.assign_metrics(self.model)
        self.checkpoint.tensors.clear()  # three times the model's size

    def on_train_batch_end(self, batch, logs=None):
        done = self.skipped + batch + 1
        if done == self.num_batches:
            return  # the epoch's end is next
        stops = self.distribution.agrees_to_stop(
            bool(self.interrupt.requested), self.epoch * self.num_batches + done
        )
        if stops or (self.every and done % self.every == 0):
            self._write(self.epoch, done)
        if stops:
            raise Stopped(self.interrupt.requested)

    def on_epoch_end(self, epoch, logs=None):
        self._write(epoch + 1, 0)

    def _write(self, epoch, batch):
        # `self.model`: on JAX, this property of a callback brings into the
        # model the state that an epoch keeps elsewhere.
        checkpoint = Checkpoint.of(
            self.model, epoch, self.averaging, batch, self.history.rows
        )
        checkpoint.check_finite()
        if self.distribution.is_chief:
            self.folder.check_in_place()
            checkpoint.write(self.folder.path(CHECKPOINTS))


def _check_losses(values, rows):
    """Raises `ValueError` if losses show that training has diverged.

    In float16 weights stay finite even then, as updates that overflow are
    skipped. But one skipped update is harmless, and makes the mean loss of its
    epoch NaN. So a second loss must not be finite either: that of validation
    or, without it, that of the epoch before.

    Args:
        values: Results of the epoch, by name.
        rows: Results of the epochs before.
    """
    loss, other = values["loss"], values.get("val_loss")
    if other is None:
        other = rows[-1]["loss"] if rows else 0.0
    if not (math.isfinite(loss) or math.isfinite(other)):
        raise ValueError(
            "Losses must be finite numbers to go on. Received: "
            f"{loss} in training, {other} in validation or the epoch before. "
            "Training has diverged: train again with a lower "
            "`learning_rate`, more `warmup_steps` or `clip_norm`."
        )

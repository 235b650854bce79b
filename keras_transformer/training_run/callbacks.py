"""What happens between the batches and at the end of the epochs."""

import csv
import io
import os
import signal
import sys

import keras

from keras_transformer.atomic import write_file
from keras_transformer.checkpoint import Checkpoint
from keras_transformer.event_log import EventLog
from keras_transformer.signals import signals_handled
from keras_transformer.training_run.curves import can_draw
from keras_transformer.training_run.curves import draw_curves
from keras_transformer.training_run.folder import CHECKPOINTS
from keras_transformer.training_run.folder import CURVES
from keras_transformer.training_run.folder import LOG
from keras_transformer.training_run.folder import TENSORBOARD
from keras_transformer.translator import first_of
from keras_transformer.weights import check_finite_model


class OneTraining(keras.callbacks.CallbackList):
    """Callbacks that see one training, in which `fit` is called often.

    `fit` runs one epoch at a time, as the first may begin in its middle; with
    each call it says that training begins and ends, which is heard once.
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


class Stopped(KeyboardInterrupt):
    """Training stops as it was asked to, in all processes and saved.

    Args:
        number: That of the signal which asked for it; jax hides its SIGTERM.
    """

    def __init__(self, number: int | None):
        super().__init__()
        self.number = number or signal.SIGTERM


class Interrupt:
    """Makes the first Ctrl-C, SIGTERM or SIGHUP wait until all is saved.

    Python raises `KeyboardInterrupt` wherever it is, and where that is a
    destructor the exception is lost; a request is not.

    Args:
        shared: Whether other processes are to stop with this one. SIGTERM is
            then left to jax, which tells them; SIGHUP would stop one alone.

    Attributes:
        requested: Number of the signal that has come, `None` before.
    """

    def __init__(self, shared: bool = False):
        self.shared = shared
        self.requested = None

    def __enter__(self):
        numbers = [signal.SIGINT]
        if not self.shared:
            numbers += [signal.SIGTERM, signal.SIGHUP]
        self._handled = signals_handled(self._on_signal, *numbers)
        self._handled.__enter__()
        return self

    def __exit__(self, *error):
        self._handled.__exit__(*error)

    def _on_signal(self, number, frame):
        if self.requested:
            raise KeyboardInterrupt
        self.requested = number
        print(
            "\nStopping when this batch, or this epoch's end, is saved. Once "
            "more to stop now.",
            file=sys.stderr,
            flush=True,
        )
        if self.shared:
            os.kill(os.getpid(), signal.SIGTERM)


class Report(keras.callbacks.Callback):
    """Saves the translator and shows how training goes, at an epoch's end.

    Args:
        run: The `TrainingRun`.
        sample: A sentence to translate and print, or `None`.
    """

    def __init__(self, run, sample=None):
        super().__init__()
        self.run = run
        self.sample = sample
        self.logs = {
            part: EventLog(run.folder.path(TENSORBOARD, part))
            for part in ("train", "validation")
        }

    def on_epoch_end(self, epoch, logs=None):
        check_finite_model(self.model)
        values = {name: float(value) for name, value in logs.items()}
        history = self.run.history
        history.append({"epoch": epoch, **values})
        is_chief = self.run.distribution.is_chief
        if self.run.saved_epoch() == epoch:
            if is_chief:
                self.run.translator.save(
                    self.run.options.output, overwrite=True
                )
            self.run.saved = epoch
        if is_chief:
            self._write_logs(epoch, values)
        if self.sample:
            translation = first_of(self.run.translator([self.sample]))[0]
            if is_chief:
                print(f"\n  {self.sample}\n  -> {translation}", flush=True)

    def _write_logs(self, epoch, values):
        folder = self.run.folder
        history = self.run.history
        write_file(folder.path(LOG), _table(history).encode())
        for part, log in self.logs.items():
            of_part = {
                name.removeprefix("val_"): value
                for name, value in values.items()
                if name.startswith("val_") == (part == "validation")
            }
            if of_part:
                log.write(epoch, of_part)
        if can_draw():
            draw_curves(folder.path(CURVES), history)


class Checkpoints(keras.callbacks.Callback):
    """Writes what training goes on from, and stops it when asked to.

    Args:
        run: The `TrainingRun`.
        checkpoint: The `Checkpoint` that training goes on from.
        interrupt: An `Interrupt`.
    """

    def __init__(self, run, checkpoint, interrupt):
        super().__init__()
        self.run = run
        self.checkpoint = checkpoint
        self.interrupt = interrupt
        self.every = run.options.save_every * run.options.accumulate  # batches

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.skipped = 0
        if epoch == self.checkpoint.epoch and self.checkpoint.batch:
            self.skipped = self.checkpoint.batch
            self.checkpoint.assign_metrics(self.model)
        self.checkpoint.tensors.clear()  # as large as the model thrice

    def on_train_batch_end(self, batch, logs=None):
        done = self.skipped + batch + 1
        if done == self.run.data.num_batches:
            return  # the epoch's end is next
        stops = self._stops(done)
        if stops or (self.every and done % self.every == 0):
            self._write(self.epoch, done)
        if stops:
            raise Stopped(self.interrupt.requested)

    def on_epoch_end(self, epoch, logs=None):
        self._write(epoch + 1, 0)
        if self._stops(self.run.data.num_batches):
            raise Stopped(self.interrupt.requested)

    def _write(self, epoch, batch):
        # `self.model`, as on JAX a callback's brings into the model what an
        # epoch keeps elsewhere.
        checkpoint = Checkpoint.of(
            self.model, epoch, self.run.averaging, batch, self.run.history
        )
        checkpoint.check_finite()
        if self.run.distribution.is_chief:
            checkpoint.write(self.run.folder.path(CHECKPOINTS))

    def _stops(self, done):
        return self.run.distribution.agrees_to_stop(
            bool(self.interrupt.requested),
            self.epoch * self.run.data.num_batches + done,
        )


def _table(history):
    names = dict.fromkeys(name for row in history for name in row)
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return file.getvalue()

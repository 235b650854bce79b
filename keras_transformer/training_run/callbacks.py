"""What happens within epochs: between batches, and in validation."""

import contextlib
import datetime
import sys
import time

import keras

from keras_transformer.bleu_callback import BleuCallback
from keras_transformer.checkpoint import Checkpoint
from keras_transformer.system.progress import batch_bar
from keras_transformer.training import WeightAveraging
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.folder import CHECKPOINTS
from keras_transformer.training_run.folder import RunFolder
from keras_transformer.training_run.history import History
from keras_transformer.training_run.interrupt import Interrupt
from keras_transformer.training_run.interrupt import Stopped

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


class Checkpoints(keras.callbacks.Callback):
    """Writes checkpoints, by itself within epochs, and stops there if asked to.

    Args:
        checkpoint: The `Checkpoint` that training goes on from.
        history: The `History`.
        averaging: The `WeightAveraging`, or `None`.
        num_batches: Batches of an epoch.
        every: Batches between two checkpoints within an epoch; 0 for none.
        folder: The `RunFolder`.
        distribution: Its chief writes.
        interrupt: Says whether to stop.
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
            self.write(self.epoch, done)
        if stops:
            raise Stopped(self.interrupt.requested)

    def write(self, epoch, batch=0):
        """Writes one, after so many epochs and batches of the next one."""
        # `self.model`: on JAX, this property of a callback brings into the
        # model the state that an epoch keeps elsewhere.
        checkpoint = Checkpoint.of(
            self.model, epoch, self.averaging, batch, self.history.rows
        )
        checkpoint.check_finite()
        if self.distribution.is_chief:
            self.folder.check_in_place()
            checkpoint.write(self.folder.path(CHECKPOINTS))

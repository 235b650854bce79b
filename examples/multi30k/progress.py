"""How far a training is: when it ends, and where it goes on from."""

import itertools
import math
import time

import keras

import keras_transformer as kt


class Progress(keras.callbacks.Callback):
    """Writes checkpoints to go on from, and decides when training ends.

    Put it last: it sees the epoch as the other callbacks leave it.

    Args:
        start: The `Checkpoint` that training begins with.
        folder: Folder of the checkpoints.
        averaging: The `WeightAveraging`.
        patience: Epochs without a lower validation loss after which training
            ends; `None` for no such limit.
        minutes: Training time after which no further epoch begins; `None`
            for no limit.
    """

    def __init__(self, start, folder, averaging, patience, minutes):
        super().__init__()
        self.history = start.history
        self.folder = folder
        self.averaging = averaging
        self.patience = math.inf if patience is None else patience
        self.minutes = math.inf if minutes is None else minutes

    def minutes_so_far(self):
        """Training time, including that before an interruption."""
        return sum(row["seconds"] for row in self.history) / 60

    def is_over(self):
        """Whether validation no longer improves, or time is up."""
        if self.minutes_so_far() >= self.minutes:
            return True
        losses = [row["val_loss"] for row in self.history]
        best = min(losses, default=math.inf)
        since = itertools.takewhile(lambda loss: loss != best, losses[::-1])
        return len([*since]) >= self.patience

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.perf_counter() - self.began
        if not math.isfinite(logs["val_loss"]):
            raise ValueError(
                "Training has diverged: the validation loss must be a finite "
                f"number. Received: {logs['val_loss']} in epoch {epoch + 1}."
            )
        self.history.append({"epoch": epoch, "seconds": seconds, **logs})
        kt.Checkpoint.of(
            self.model, epoch + 1, self.averaging, history=self.history
        ).write(self.folder)
        self.model.stop_training = self.is_over()

"""Trains several times, each time until it is killed.

Each in a process; these are forked to import TensorFlow once.
"""

import json
import os
import signal
import sys

from keras_transformer import transformer
from keras_transformer.training_run import callbacks
from keras_transformer.training_run.fitting import Fitting
from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.training_run.run import TrainingRun


def kill():
    print("killed", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)


def killed_before(function, condition):
    def wrapper(*arguments, **options):
        if condition(*arguments):
            kill()
        return function(*arguments, **options)

    return wrapper


def kill_at(moment):
    if moment == "while a checkpoint is renamed":
        later = [False, True]  # of the checkpoints in the first epoch
        os.replace = killed_before(
            os.replace,
            lambda old, new: (
                os.path.basename(new).startswith("epoch-00000") and later.pop(0)
            ),
        )
    elif moment == "between two batches":
        callbacks.Checkpoints.on_train_batch_end = killed_before(
            callbacks.Checkpoints.on_train_batch_end,
            lambda self, batch: (
                self.epoch == 1 and self.num_batches - self.skipped - batch == 4
            ),
        )
    elif moment == "between checkpoint and translator":
        Fitting._save = killed_before(
            Fitting._save, lambda self, history: len(history.rows) == 3
        )


jobs, small, files = json.loads(sys.argv[1])
transformer.PRESETS["tiny"] = small
for settings, moment, log in jobs:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    with open(log, "w") as file:
        os.dup2(file.fileno(), 2)
    kill_at(moment)
    TrainingRun(TrainingOptions(**settings)).train(*files, validation=files)
    print("ended", file=sys.stderr)
    break

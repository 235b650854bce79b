"""Trains, and says how many threads an operation has then."""

import json
import os
import sys

os.sched_setaffinity(0, [*os.sched_getaffinity(0)][:2])

import tensorflow as tf

from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.training_run.run import TrainingRun

folder, settings, *text = sys.argv[1:]
TrainingRun(TrainingOptions(folder, **json.loads(settings))).train(*text)
print("threads", tf.config.threading.get_intra_op_parallelism_threads())

"""Runs an export where XLA is off.

As TensorFlow Serving does when it starts, unless it is told otherwise.
"""

import ctypes
import json
import os
import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401  its operations are in the graph

folder = os.path.dirname(tf.__file__)
library = ctypes.CDLL(os.path.join(folder, "libtensorflow_cc.so.2"))
library._ZN10tensorflow21DisableXlaCompilationEv()
signatures = tf.saved_model.load(sys.argv[1]).signatures
texts = tf.constant(json.loads(sys.argv[2]))
found = signatures["serving_default"](text=texts)["translation"].numpy()
print(json.dumps([text.decode() for text in found]))
signatures["translate_compiled"](text=texts)

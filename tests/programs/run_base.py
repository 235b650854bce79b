"""Translates a sentence with it; prints the most memory that took."""

import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from keras_transformer.serving.run_export import peak_bytes

run = Interpreter(sys.argv[1]).get_signature_runner("serving_default")
ids = np.arange(4, 34, dtype="int32")[None]
assert run(source_ids=ids)["target_ids"].shape[1] > 0
print(peak_bytes())

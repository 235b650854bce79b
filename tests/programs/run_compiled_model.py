"""Runs a file on the runtime that asks for buffers beforehand."""

import json
import sys

import numpy as np
from ai_edge_litert.compiled_model import CompiledModel

loaded = CompiledModel.from_file(sys.argv[1])
index = loaded.get_signature_index("translate_ids")
names = loaded.get_signature_list()["translate_ids"]["outputs"]
inputs = loaded.create_input_buffers(index)
outputs = dict(zip(names, loaded.create_output_buffers(index), strict=True))
results = []
for row in json.load(sys.stdin):
    ids = np.zeros(64, "int32")
    ids[: len(row)] = row
    inputs[0].write(ids)
    loaded.run_by_index(index, inputs, [outputs[name] for name in names])
    results.append(outputs["target_ids"].read(114, np.int32).tolist())
json.dump(results, sys.stdout)

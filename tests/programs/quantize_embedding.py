"""Converts an embedding that is looked up and multiplied with.

Large enough that the converter would quantise it and one number for each row,
and looked up outside and inside of loops.
"""

import sys

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from tensorflow.lite.python import schema_py_generated as schema

import keras_transformer as kt
from keras_transformer.decoding import DecodingLoop
from keras_transformer.serving.litert import convert_function
from keras_transformer.serving.litert_weights import Weights

V, D, L = 1101, 32, 50
quantization, *kinds = sys.argv[1:]
model = kt.Transformer(
    V,
    num_layers=1,
    num_heads=2,
    hidden_dim=D,
    intermediate_dim=64,
    positional_encoding="learned",
    max_length=L,
)
embeddings = model.target_embedding.embeddings
embeddings[7].assign(tf.zeros(D))
embeddings[9].assign(1000 * embeddings[9])
positions = model.source_positions.position_embeddings
positions[3].assign(1000 * positions[3])
# Halves of int8's steps.
embeddings[8].assign(tf.concat([[127.0], tf.range(31.0) - 15.5], axis=0))
look_up = model.target_embedding.look_up


def translate_ids(source_ids):
    decode = DecodingLoop(model, kt.GreedySearch())
    found = decode.in_segments({"source_ids": source_ids})
    return {
        "target_ids": found.target_ids,
        "rows": model.target_embedding.look_up(source_ids),
        "positions": model.source_positions.look_up(source_ids[0] - 1),
    }


ids = tf.TensorSpec([None, None], tf.int32, name="source_ids")
content = convert_function(Weights(model, quantization), translate_ids, ids)
assert model.target_embedding.look_up == look_up
file = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content))
tables = [
    (tensor.type, tensor.buffer)
    for graph in file.subgraphs
    for tensor in graph.tensors
    if tensor.shape is not None
    and np.prod(tensor.shape) == V * D
    and file.buffers[tensor.buffer].data is not None
]
kinds = {getattr(schema.TensorType, name) for name in kinds}
assert {kind for kind, _ in tables} == kinds, tables
assert len({buffer for _, buffer in tables}) == 1, tables

# Each row is rounded by itself, whatever the others are.
run = Interpreter(model_content=content).get_signature_runner()
found = run(source_ids=np.arange(1, V, dtype="int32").reshape(-1, L))
for name, table in {"rows": embeddings[1:], "positions": positions}.items():
    largest = np.abs(table).max(axis=1, keepdims=True)
    most_error = largest / 254 if quantization == "int8" else largest / 2**11
    error = np.abs(found[name].reshape(-1, D) - table)
    assert (error <= 1.001 * most_error).all(), name

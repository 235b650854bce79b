"""Converts an embedding that is looked up and multiplied with.

Large enough to be quantised, and looked up outside and inside of loops.
"""

import sys

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

import keras_transformer as kt
from keras_transformer.decoding import DecodingLoop
from keras_transformer.serving.litert import convert_function
from keras_transformer.serving.litert_weights import Weights

model = kt.Transformer(
    640, num_layers=1, num_heads=2, hidden_dim=32, intermediate_dim=64
)
embeddings = model.target_embedding.embeddings
embeddings[7].assign(tf.zeros(32))
# Halves of int8's steps.
embeddings[8].assign(tf.concat([[127.0], tf.range(31.0) - 15.5], axis=0))
look_up = model.target_embedding.look_up


def translate_ids(source_ids):
    decode = DecodingLoop(model, kt.GreedySearch())
    found = decode.in_segments({"source_ids": source_ids})
    return {"target_ids": found.target_ids}


ids = tf.TensorSpec([None, None], tf.int32, name="source_ids")
content = convert_function(Weights(model, sys.argv[1]), translate_ids, ids)
assert model.target_embedding.look_up == look_up
file = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content))
tables = [
    (tensor.type, tensor.buffer)
    for graph in file.subgraphs
    for tensor in graph.tensors
    if tensor.shape is not None
    and np.prod(tensor.shape) == 640 * 32
    and file.buffers[tensor.buffer].data is not None
]
kinds = {getattr(schema.TensorType, name) for name in sys.argv[2:]}
assert {kind for kind, _ in tables} == kinds, tables
assert len({buffer for _, buffer in tables}) == 1, tables

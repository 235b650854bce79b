"""Converts a signature of base size; prints the most memory it took."""

import sys

import tensorflow as tf

import keras_transformer as kt
from keras_transformer.decoding import DecodingLoop
from keras_transformer.serving.litert import convert_function
from keras_transformer.serving.litert_weights import Weights
from keras_transformer.serving.run_export import peak_bytes

model = kt.Transformer.from_preset("base", 32_000)


def translate_ids(source_ids):
    decode = DecodingLoop(model, kt.GreedySearch())
    found = decode.in_segments({"source_ids": source_ids})
    return {"target_ids": found.target_ids}


ids = tf.TensorSpec([None, None], tf.int32, name="source_ids")
content = convert_function(Weights(model, "int8"), translate_ids, ids)
open(sys.argv[1], "wb").write(content)
print(peak_bytes())

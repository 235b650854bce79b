"""Decodes with a past that is apart from the cache.

Targets end early, late, and at the end of a cache.
"""

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import keras_transformer as kt
from keras_transformer import decoding
from keras_transformer.serving.litert import convert_function
from keras_transformer.serving.litert_weights import Weights

model = kt.Transformer(
    97,
    num_layers=2,
    num_heads=2,
    hidden_dim=decoding.LEAST_DIM_WITH_PAST,
    intermediate_dim=32,
)
for variable in model.trainable_variables:
    if variable.ndim == 2:
        variable.assign(2 * variable.numpy())
source_ids = np.random.default_rng(3).integers(4, 97, (9, 12), "int32")
lengths = np.array([50, 3, 17, 33, 16, 1, 32, 49, 48], "int32")
limits = {"min_lengths": lengths, "max_lengths": lengths}


def translate_ids(source_ids, lengths):
    limits = {"min_lengths": lengths, "max_lengths": lengths}
    found = decode.in_segments({"source_ids": source_ids, **limits})
    return {"target_ids": found.target_ids, "scores": found.scores}


for search in (kt.GreedySearch(), kt.BeamSearch(3, num_hypotheses=2)):
    decode = decoding.DecodingLoop(model, search)
    ids = tf.TensorSpec([None, None], tf.int32, name="source_ids")
    vector = tf.TensorSpec([None], tf.int32, name="lengths")
    content = convert_function(Weights(model), translate_ids, ids, vector)
    run = Interpreter(model_content=content).get_signature_runner()
    found = run(source_ids=source_ids, lengths=lengths)
    expected = decode.whole({"source_ids": source_ids, **limits})
    np.testing.assert_array_equal(found["target_ids"], expected.target_ids)
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-4)

"""Decodes with a past that is apart from the cache.

Targets end early, late, and at the end of a cache.
"""

import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import keras_transformer as kt
from keras_transformer import decoding
from keras_transformer.serving.litert import convert_function
from keras_transformer.serving.litert_weights import Weights


class Climbing(kt.DecoderLayer):
    """A layer that computes with the position."""

    def call(self, inputs, *arguments, training=None, **masks):
        positions = keras.ops.arange(inputs.shape[1], dtype="float32") / 50
        inputs = inputs + positions[:, None]
        return super().call(inputs, *arguments, training=training, **masks)

    def step(self, inputs, position, *arguments):
        inputs = inputs + keras.ops.cast(position, "float32") / 50
        return super().step(inputs, position, *arguments)


class ClimbingDecoder(kt.Decoder):
    layer_class = Climbing


class ClimbingTransformer(kt.Transformer):
    decoder_class = ClimbingDecoder

    def embed_targets(self, target_ids, start_position=0):
        x = super().embed_targets(target_ids, start_position)
        return x + keras.ops.cast(start_position, "float32") / 50


source_ids = np.random.default_rng(3).integers(4, 97, (9, 12), "int32")
lengths = np.array([50, 3, 17, 33, 16, 1, 32, 49, 48], "int32")
limits = {"min_lengths": lengths, "max_lengths": lengths}


def make_model(kind):
    model = kind(
        97,
        num_layers=2,
        num_heads=2,
        hidden_dim=decoding.LEAST_DIM_WITH_PAST,
        intermediate_dim=32,
    )
    for variable in model.trainable_variables:
        if variable.ndim == 2:
            variable.assign(2 * variable.numpy())
    return model


def translate_ids(source_ids, lengths):
    limits = {"min_lengths": lengths, "max_lengths": lengths}
    found = decode.in_segments({"source_ids": source_ids, **limits})
    return {"target_ids": found.target_ids, "scores": found.scores}


plain, climbing = map(make_model, (kt.Transformer, ClimbingTransformer))
for model, search in (
    (plain, kt.GreedySearch()),
    (plain, kt.BeamSearch(3, num_hypotheses=2)),
    (climbing, kt.GreedySearch()),
):
    decode = decoding.DecodingLoop(model, search)
    ids = tf.TensorSpec([None, None], tf.int32, name="source_ids")
    vector = tf.TensorSpec([None], tf.int32, name="lengths")
    content = convert_function(Weights(model), translate_ids, ids, vector)
    run = Interpreter(model_content=content).get_signature_runner()
    found = run(source_ids=source_ids, lengths=lengths)
    expected = decode.whole({"source_ids": source_ids, **limits})
    np.testing.assert_array_equal(found["target_ids"], expected.target_ids)
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-4)

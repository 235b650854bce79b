"""A linear layer is that of Keras, by way of two matrices."""

import gc

import keras
import numpy as np
import pytest

from keras_transformer.dense import Dense

SHAPES = [(2, 5, 8), (2, 8), (0, 5, 8), (2, 0, 8), (1, 1, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("use_bias", [True, False])
def test_it_is_the_dense_of_keras(shape, use_bias):
    x = np.random.default_rng(3).normal(size=shape).astype("float32")
    ours, theirs = (
        kind(3, activation="gelu", use_bias=use_bias)
        for kind in (Dense, keras.layers.Dense)
    )
    theirs.build(shape)
    ours.build(shape)
    ours.set_weights(theirs.get_weights())
    found, expected = ours(x), theirs(x)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_it_can_be_quantised(monkeypatch):
    # Keras collects garbage for each layer it quantises.
    monkeypatch.setattr(gc, "collect", lambda: 0)
    x = np.random.default_rng(3).normal(size=(2, 5, 8)).astype("float32")
    layer = Dense(3)
    expected = layer(x)
    layer.quantize("int8")
    found = layer(x)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=0.1)
    assert np.abs(found - expected).max() > 0


def test_lengths_may_be_unknown():
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, Dense(3)(inputs))
    assert model.output_shape == (None, None, 3)
    for length in (1, 5):
        assert tuple(model(np.ones((2, length, 8))).shape) == (2, length, 3)

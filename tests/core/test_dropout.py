"""Dropout from half the random bits."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.dropout import Dropout

from .compiled import gradient
from .compiled import xla

SHAPE = (50, 40, 64)


def dropped(rate, shape=SHAPE, seed=3, dtype="float32"):
    layer = Dropout(rate, seed=seed, dtype=dtype)
    return ops.convert_to_numpy(
        ops.cast(layer(ops.ones(shape), training=True), "float32")
    )


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.999, 0.999999])
@pytest.mark.parametrize("shape", [SHAPE, (50, 40, 63)], ids=["even", "odd"])
def test_drops_its_share_and_scales_the_rest(rate, shape):
    output = dropped(rate, shape)
    kept = output != 0
    deviation = (rate * (1 - rate) / kept.size) ** 0.5
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    np.testing.assert_allclose(output[kept], 1 / (1 - rate), rtol=0.01)


def test_entries_of_one_number_are_independent():
    kept = dropped(0.3) != 0
    each = kept.reshape(-1, 2).mean(axis=0)
    np.testing.assert_allclose(each, [0.7, 0.7], atol=0.01)
    both = kept.reshape(-1, 2).all(axis=1).mean()
    np.testing.assert_allclose(both, 0.49, atol=0.01)


def test_each_call_draws_anew_and_a_seed_repeats_them():
    layers = [Dropout(0.3, seed=5) for _ in range(2)]
    x = ops.ones(SHAPE)
    first, second = [
        [np.asarray(layer(x, training=True)) for layer in layers]
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*first)
    np.testing.assert_array_equal(*second)
    assert (first[0] != second[0]).any()


def test_gradient_is_that_of_what_is_kept():
    layer = Dropout(0.3, seed=5)
    x = np.ones(SHAPE, "float32")
    state = layer.seed_generator.state
    start = ops.convert_to_numpy(state)
    expected = np.asarray(layer(x, training=True))
    state.assign(start)
    slope = gradient(lambda z: ops.sum(layer(z, training=True)))(x)
    np.testing.assert_allclose(slope, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "error"), [("bfloat16", 2**-7), ("float16", 2**-10)]
)
def test_half_precision(dtype, error):
    output = dropped(0.3, dtype=dtype)
    kept = output != 0
    np.testing.assert_allclose(kept.mean(), 0.7, atol=0.01)
    np.testing.assert_allclose(output[kept], 1 / 0.7, rtol=error)


def test_nothing_is_dropped_unless_training():
    x = np.ones(SHAPE, "float32")
    np.testing.assert_array_equal(Dropout(0.3)(x), x)
    np.testing.assert_array_equal(Dropout(0.0)(x, training=True), x)


def test_compiled():
    layer = Dropout(0.3, seed=5)
    kept = np.asarray(xla(lambda x: layer(x, training=True))(ops.ones(SHAPE)))
    np.testing.assert_allclose((kept != 0).mean(), 0.7, atol=0.01)


def test_a_noise_shape_is_honoured():
    layer = Dropout(0.5, noise_shape=(50, 1, 64), seed=5)
    output = np.asarray(layer(ops.ones(SHAPE), training=True))
    assert (output == output[:, :1]).all()


def test_can_be_saved():
    layer = Dropout(0.3, seed=5)
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    assert isinstance(again, Dropout)
    assert (again.rate, again.seed) == (0.3, 5)

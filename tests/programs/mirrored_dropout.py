"""What dropout drops on two devices, also where it is computed again."""

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.dropout import Dropout
from keras_transformer.tensors.rematerialization import rematerialized

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    layer = Dropout(0.5)


@tf.function
def dropped():
    one, two = strategy.run(
        lambda: layer(keras.ops.ones((9, 100)), training=True)
    ).values
    return one, two


first, second = (np.asarray(x) == 0 for x in dropped())
again, _ = (np.asarray(x) == 0 for x in dropped())
assert 0.4 < first.mean() < 0.6
for other in (second, again):
    assert 0.4 < (first == other).mean() < 0.6

with strategy.scope():
    layer = kt.EncoderLayer(
        num_heads=2, hidden_dim=8, intermediate_dim=16, dropout=0.5
    )
    layer.build((None, None, 8))
inputs = keras.random.normal((2, 3, 8), seed=1)


@tf.function
def slopes(call):
    def of_a_device():
        with tf.GradientTape() as tape:
            loss = keras.ops.sum(call(inputs, training=True) ** 3)
        kernel = layer.feed_forward.outer.kernel
        return tape.gradient(loss, kernel.value)

    return strategy.run(of_a_device).values


states = layer.non_trainable_variables
before = [keras.ops.copy(state) for state in states]
once = slopes(layer)
for state, value in zip(states, before, strict=True):
    state.assign(value)
again = slopes(rematerialized(layer))
for x, expected in zip(again, once, strict=True):
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
assert np.abs(once[0] - once[1]).max() > 0.1

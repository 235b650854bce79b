"""Updates on two devices, of which one has an overflow."""

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.training import LossScaleOptimizer

keras.config.set_dtype_policy("mixed_float16")
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    optimizer = LossScaleOptimizer(kt.Adam(0.1), initial_scale=1024.0)
    model.compile(optimizer, "mse", jit_compile=False)
before = model.get_weights()


def scale():
    return float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))


# The half of the second device overflows.
inputs = np.array([[1.0], [1.0], [1e4], [1e4]])
model.fit(inputs, 0 * inputs, batch_size=4, shuffle=False, verbose=0)
assert scale() == 512
for weight, other in zip(model.get_weights(), before, strict=True):
    np.testing.assert_array_equal(weight, other)
inputs = np.ones((4, 1))
model.fit(inputs, 0 * inputs, batch_size=4, shuffle=False, verbose=0)
assert scale() == 512
assert np.abs(model.get_weights()[0] - before[0]).max() > 0.05

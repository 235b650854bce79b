"""A fit on two devices that goes on from a checkpoint."""

import sys

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
x = np.linspace(-1, 1, 8)[:, None]


def make():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        dense = keras.layers.Dense(1, name="dense")
        model = keras.Sequential([keras.Input((1,)), dense])
        model.compile(kt.Adam(0.1), "mse", jit_compile=False)
    return model


def fit(model, first, last):
    model.fit(
        x, 3 * x, 4, shuffle=False, verbose=0, epochs=last, initial_epoch=first
    )


model, other = make(), make()
start = kt.Checkpoint.newest(sys.argv[1])
start.assign(model)
fit(model, 0, 2)
kt.Checkpoint.of(model, 2).write(sys.argv[1])
fit(model, 2, 4)
kt.Checkpoint.newest(sys.argv[1]).assign(other)
fit(other, 2, 4)
for found, expected in zip(other.variables, model.variables, strict=True):
    np.testing.assert_array_equal(found, expected)

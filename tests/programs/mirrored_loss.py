"""The loss of one device and of two."""

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
# Of the first device all labels are 0, which are padding where masks or weights
# say so.
labels = np.array([[0, 0, 0], [0, 0, 0], [4, 5, 0], [6, 0, 0]])
inputs = np.array([[0, 0, 0], [7, 0, 0], [4, 5, 0], [6, 5, 4]])
weights = np.linspace(0, 1, 12).reshape(4, 3)


def loss(devices, mask_zero, weights):
    keras.utils.set_random_seed(1)
    with tf.distribute.MirroredStrategy(devices).scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(9, 4, mask_zero=mask_zero),
                keras.layers.Dense(9),
            ]
        )
        model.build((None, 3))
        loss = kt.LabelSmoothedCrossentropy(0.1)
        model.compile("sgd", loss, jit_compile=False)
    return model.evaluate(inputs, labels, 4, verbose=0, sample_weight=weights)


for mask_zero in (False, True):
    for some in (None, weights, weights[:, 0]):
        expected = loss(["CPU:0"], mask_zero, some)
        found = loss(["CPU:0", "CPU:1"], mask_zero, some)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert found > 1

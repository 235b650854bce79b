"""What dropout drops on two devices."""

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.dropout import Dropout

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

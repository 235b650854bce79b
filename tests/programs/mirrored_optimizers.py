"""Clipped and accumulated gradients of one device and of two."""

import sys

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
inputs = np.arange(64).reshape(16, 4) % 7  # tokens more than once
outputs = np.linspace(-1, 1, 16)[:, None]


def train(devices, make=kt.Adam, **options):
    keras.utils.set_random_seed(1)
    with tf.distribute.MirroredStrategy(devices).scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(9, 8),
                keras.layers.Flatten(),
                keras.layers.Dense(4, "relu"),
                keras.layers.Dense(1),
            ]
        )
        model.build((None, 4))
        schedule = kt.WarmupSchedule(peak_learning_rate=0.03, warmup_steps=9)
        optimizer = make(schedule, **options)
        model.compile(optimizer, "mse", jit_compile=False)
    losses = model.fit(
        inputs, outputs, batch_size=8, epochs=5, shuffle=False, verbose=0
    ).history["loss"]
    return losses, model.get_weights()


CASES = [
    {"global_clipnorm": 0.1},
    {"clipvalue": 0.01, "use_ema": True},
    {"gradient_accumulation_steps": 3},
    {
        "gradient_accumulation_steps": 2,
        "global_clipnorm": 0.1,
        "weight_decay": 0.1,
        "amsgrad": True,
    },
    {"make": kt.Muon, "adam_weight_decay": 0.1},
    {"make": kt.Muon, "global_clipnorm": 0.1, "gradient_accumulation_steps": 2},
]
# One in a process: TensorFlow does not reduce in another dtype thereafter.
dtype = sys.argv[1]
keras.config.set_dtype_policy(dtype)
tolerance = 1e-2 if dtype == "mixed_float16" else 1e-5
# Where it is not float32, Adam and Muon, with most of it.
for options in CASES if dtype == "float32" else CASES[3::2]:
    losses, weights = train(["CPU:0", "CPU:1"], **options)
    expected_losses, expected = train(["CPU:0"], **options)
    np.testing.assert_allclose(losses, expected_losses, atol=tolerance)
    for weight, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight, other, atol=tolerance)

for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
    try:
        train(None, use_ema=True, **{name: 2})
    except ValueError as error:
        assert f"`{name}` must not be combined" in str(error), error
    else:
        raise AssertionError("there is no error")

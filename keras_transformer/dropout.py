"""Dropout, section 5.4, with half the random bits."""

import keras
from keras import ops

from keras_transformer.tensorflow_only.random import random_halves

BITS = 16  # of a random number: shares are rounded to 1 / 65,536


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Drops entries in training and scales the others up.

    On TensorFlow one random number of 32 bits decides two entries, where Keras
    draws one for each: on a CPU, drawing random numbers is most of the cost of
    dropout. The share is then rounded to a multiple of `2^-16`, the entries
    kept are scaled by the inverse of the share kept, and each device of a
    `tf.distribute` strategy drops different entries, where Keras drops the same
    on all. On other backends (the random integers of JAX take twice their
    bits), with a `noise_shape`, or where the last axis is odd or unknown, it is
    `keras.layers.Dropout` unchanged.

    Args:
        rate: Share to drop, in `[0, 1)`.
        **kwargs: As for `keras.layers.Dropout`.

    Call arguments:
        inputs: Float tensor of any shape.
        training: Whether to drop.

    Returns:
        A tensor like `inputs`.
    """

    def call(self, inputs, training=False):
        dropped = round(self.rate * 2**BITS)
        if not (training and self._draws_in_two(inputs, dropped)):
            return super().call(inputs, training=training)
        drawn = random_halves(inputs, self.seed_generator)
        kept = drawn >= dropped - 2 ** (BITS - 1)
        scale = ops.cast(1 / (1 - dropped / 2**BITS), inputs.dtype)
        return ops.where(kept, inputs * scale, ops.cast(0, inputs.dtype))

    def _draws_in_two(self, inputs, dropped):
        width = inputs.shape[-1]
        return (
            keras.backend.backend() == "tensorflow"
            and not self.noise_shape
            and 0 < dropped < 2**BITS
            and isinstance(width, int)
            and width % 2 == 0
        )

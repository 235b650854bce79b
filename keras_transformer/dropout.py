"""Dropout, section 5.4, with half the random bits."""

import keras
from keras import ops

BITS = 16  # of a random number: shares are rounded to 1 / 65,536


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Drops entries in training and scales the others up.

    As `keras.layers.Dropout`, from two entries a random number of 32 bits
    where Keras draws one for each: on a processor the random numbers are most
    of what dropout costs. The share is rounded to a multiple of `2^-16`, and
    what is kept scaled by the inverse of what that keeps.

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
        width = inputs.shape[-1]
        by_two = isinstance(width, int) and width % 2 == 0
        if not (training and dropped and by_two) or self.noise_shape:
            return super().call(inputs, training=training)
        bits = keras.random.randint(
            (*ops.shape(inputs)[:-1], width // 2),
            -(2**31),
            2**31 - 1,
            dtype="int32",
            seed=self.seed_generator,
        )
        kept = ops.view(bits, "int16") >= dropped - 2 ** (BITS - 1)
        scale = ops.cast(1 / (1 - dropped / 2**BITS), inputs.dtype)
        return ops.where(kept, inputs * scale, ops.cast(0, inputs.dtype))

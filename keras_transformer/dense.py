"""A linear layer whose product is one of two matrices."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(keras.layers.Dense):
    """Computes `activation(x W + b)` as `keras.layers.Dense` does.

    Keras multiplies three axes by two in a way that asks for all sizes while
    it runs: eight small operations on TensorFlow, and on LiteRT memory that is
    arranged anew, at each of dozens of products a decoding step.

    Args:
        *args: As for `keras.layers.Dense`.
        **kwargs: As for `keras.layers.Dense`.

    Call arguments:
        inputs: Float tensor `(B, T, D)` or `(B, D)`.
        training: As for `keras.layers.Dense`.

    Returns:
        Float tensor `(B, T, F)` or `(B, F)`.
    """

    def call(self, inputs, training=None):
        call = super().call
        return by_rows(lambda x: call(x, training=training), inputs)


def by_rows(function, x):
    """Applies a function of matrices to `x`, all axes but the last as one.

    Args:
        function: Function of a tensor `(M, D)` to one `(M, F)`.
        x: Tensor of shape `(B, T, D)` or `(B, D)`.

    Returns:
        Tensor of shape `(B, T, F)` or `(B, F)`.
    """
    if len(x.shape) != 3:
        return function(x)
    y = function(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(y, (-1, ops.shape(x)[1], y.shape[-1]))

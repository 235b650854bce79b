"""A dense layer that computes a single product of two matrices."""

import keras
from keras import ops

from keras_transformer.tensorflow_only.indexing import size


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(keras.layers.Dense):
    """Computes `activation(x W + b)` as `keras.layers.Dense` does.

    Keras multiplies a tensor of three axes by a matrix in a way that computes
    all sizes at run time. That is eight small operations on TensorFlow, and
    makes LiteRT reallocate its memory, for each of the dozens of products of a
    decoding step.

    Args:
        units: Size `F` of the output.
        **kwargs: As for `keras.layers.Dense`; `activation` is of rows, each
            position by itself.

    Call arguments:
        inputs: Float tensor `(B, T, D)` or `(B, D)`.

    Returns:
        Float tensor `(B, T, F)` or `(B, F)`.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(int(units), **kwargs)  # Keras refuses NumPy's integers

    def call(self, inputs, training=None):
        return by_rows(super().call, inputs)

    def quantize(self, mode=None, type_check=True, config=None):
        """As `keras.layers.Dense`, which refuses its subclasses."""
        super().quantize(mode, type_check=False, config=config)


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
    # An unknown batch size is inferred, for which `T` must not be 0.
    batch_size = -1 if x.shape[0] is None else x.shape[0]
    return ops.reshape(y, (batch_size, size(x, 1), y.shape[-1]))

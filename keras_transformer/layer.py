"""What the layers here have in common."""

import keras


class Layer(keras.layers.Layer):
    """A layer that gives what it takes, and whose parts are frozen with it.

    Takes the arguments of `keras.layers.Layer`.
    """

    def build(self, inputs_shape):
        super().build(inputs_shape)
        freeze_parts(self)

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        """The shape of the first input."""
        return tuple(inputs_shape)

    def compute_output_spec(self, *args, **kwargs):
        # By tracing, as where there is no `compute_output_shape`: it finds the
        # errors of `call`.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def freeze_parts(layer):
    """Freezes what is in a layer that is frozen.

    Keras does when `trainable` is set. Where it is an argument, of a saved
    layer for one, the sublayers are made after that.
    """
    if not layer.trainable:
        # Set to what it is, nothing would happen.
        layer.trainable = True
        layer.trainable = False

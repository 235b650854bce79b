"""Gradients that are given, not derived."""

import keras
from keras import ops


def custom_gradient(function):
    """Gives a function its gradient, on every backend.

    Like `ops.custom_gradient`. On torch, that also passes the arguments on to
    the gradient, and by name the gradient of what the function returned.

    Args:
        function: Function of tensors to their result, and to a function of the
            gradient of the result to those of the tensors.
    """
    if keras.backend.backend() != "torch":
        return ops.custom_gradient(function)

    def with_gradient_of_torch(*args):
        outputs, gradient = function(*args)
        return outputs, lambda *_, upstream: gradient(upstream)

    return ops.custom_gradient(with_gradient_of_torch)

"""Gradients that are given, not derived."""

import keras
from keras import ops


def custom_gradient(function):
    """Gives a function its gradient, on every backend.

    Like `ops.custom_gradient`. On torch, that also passes the arguments on to
    the gradient, and by name the gradient of what the function returned; and
    what the function has computed is a constant to a second derivative, for
    which it is therefore computed again.

    Args:
        function: Function of tensors to their result, and to a function of the
            gradient of the result to those of the tensors.
    """
    if keras.backend.backend() != "torch":
        return ops.custom_gradient(function)
    import torch

    def with_gradient_of_torch(*args):
        outputs, gradient = function(*args)

        def gradient_of_torch(*args, upstream):
            if not torch.is_grad_enabled():  # no second derivative
                return gradient(upstream)
            _, differentiable = function(*args)
            return differentiable(upstream)

        return outputs, gradient_of_torch

    return ops.custom_gradient(with_gradient_of_torch)

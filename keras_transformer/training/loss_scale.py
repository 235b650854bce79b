"""Scaling of the loss for float16, on several devices."""

import keras
from keras import ops

from keras_transformer.tensorflow_only.devices import replica_context
from keras_transformer.tensorflow_only.devices import sum_over_devices


@keras.saving.register_keras_serializable(package="keras_transformer")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Leaves an update out where the gradients of any device overflow.

    [Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740), as
    `keras.optimizers.LossScaleOptimizer`, which looks at the gradients of the
    first device alone: it takes them for the sum over all devices, which
    `Adam` of this library makes later.

    Takes the arguments of `keras.optimizers.LossScaleOptimizer`.

    Example:
    >>> from keras_transformer import Adam
    >>> optimizer = LossScaleOptimizer(Adam(1e-3))
    >>> float(optimizer.initial_scale)
    32768.0
    """

    def check_finite(self, grads):
        finite = super().check_finite(grads)
        devices = replica_context()
        if devices is None:
            return finite
        overflows = ops.cast(ops.logical_not(finite), "int32")
        return ops.equal(sum_over_devices(devices, overflows), 0)


def unwrapped(optimizer):
    """The optimizer whose loss another one scales, or the one given."""
    return getattr(optimizer, "inner_optimizer", optimizer)

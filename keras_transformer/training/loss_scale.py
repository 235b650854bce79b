"""Scaling of the loss for float16, on several devices."""

import keras
from keras import ops

from keras_transformer.checks import check_kind
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_positive_number
from keras_transformer.tensorflow_only.devices import replica_context
from keras_transformer.tensorflow_only.devices import sum_over_devices


@keras.saving.register_keras_serializable(package="keras_transformer")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Skips an update if the gradients of any device overflow.

    [Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740), like
    `keras.optimizers.LossScaleOptimizer`, which checks only the gradients of
    the first device: it expects them to be summed over all devices already,
    which `Adam` of this library does later.

    Args:
        inner_optimizer: What updates the weights, such as `Adam`.
        initial_scale: Factor on the loss at first.
        dynamic_growth_steps: Updates without overflow after which the factor
            doubles.
        **kwargs: As for `keras.optimizers.LossScaleOptimizer`.

    Raises:
        TypeError: If `inner_optimizer` is not an optimizer, or another argument
            not a number.
        ValueError: If a number is not positive.

    Example:
    >>> from keras_transformer import Adam
    >>> optimizer = LossScaleOptimizer(Adam(1e-3))
    >>> float(optimizer.initial_scale)
    32768.0
    """

    def __init__(
        self,
        inner_optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        **kwargs,
    ):
        check_kind(
            "inner_optimizer", inner_optimizer, keras.optimizers.Optimizer
        )
        check_positive_number(initial_scale=initial_scale)
        check_positive(dynamic_growth_steps=dynamic_growth_steps)
        super().__init__(
            inner_optimizer,
            initial_scale=initial_scale,
            dynamic_growth_steps=dynamic_growth_steps,
            **kwargs,
        )

    def check_finite(self, grads):
        finite = super().check_finite(grads)
        devices = replica_context()
        if devices is None:
            return finite
        overflows = ops.cast(ops.logical_not(finite), "int32")
        return ops.equal(sum_over_devices(devices, overflows), 0)


def unwrapped(optimizer):
    """The optimizer inside a `LossScaleOptimizer`, or the one given."""
    return getattr(optimizer, "inner_optimizer", optimizer)

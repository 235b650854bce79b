"""Learning rate with warm-up, section 5.3."""

import math

import keras
from keras import ops

from keras_transformer.checks import check_positive
from keras_transformer.checks import check_positive_number


@keras.saving.register_keras_serializable(package="keras_transformer")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Raises the learning rate linearly, then lowers it.

    Equation 3 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762):

    `rate = scale * D^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`

    With `peak_learning_rate` the same curve is scaled so that it peaks there,
    at `warmup_steps`; `hidden_dim` is then not needed. Keras counts updates
    from 0, where the formula is not defined: the first two use step 1.

    With `total_steps` it falls from the peak to 0 instead, along half a wave
    of a cosine, as in [Loshchilov and Hutter,
    2017](https://arxiv.org/abs/1608.03983), equation 5, for training that
    knows when it ends.

    Args:
        hidden_dim: Size `D` of the model; `d_model` in the paper.
        warmup_steps: Optimizer updates before the one at the peak.
        scale: Factor on the whole curve.
        peak_learning_rate: Learning rate at the peak, instead of the paper's
            `(D * warmup_steps)^-0.5`.
        total_steps: Optimizer updates after which the learning rate is 0 and
            stays so; `None` to lower it by the square root, without end.
            Keras's own optimizers count batches where they accumulate
            gradients; `Adam` of this package counts updates.

    Raises:
        TypeError: If a size is not an integer, or a rate no number.
        ValueError: If a size or a rate is not positive, not exactly one of
            `hidden_dim` and `peak_learning_rate` is given, or `total_steps`
            is not above `warmup_steps`.

    Example:
    >>> schedule = WarmupSchedule(hidden_dim=512, warmup_steps=4000)
    >>> [round(float(schedule(step)), 6) for step in (1, 4000, 16_000)]
    [0.0, 0.000699, 0.000349]
    """

    def __init__(
        self,
        hidden_dim: int | None = None,
        warmup_steps: int = 4000,
        scale: float = 1.0,
        peak_learning_rate: float | None = None,
        total_steps: int | None = None,
    ):
        check_positive(warmup_steps=warmup_steps)
        if total_steps is not None:
            check_positive(total_steps=total_steps)
            if total_steps <= warmup_steps:
                raise ValueError(
                    "`total_steps` must be above `warmup_steps`. Received: "
                    f"total_steps={total_steps}, warmup_steps={warmup_steps}."
                )
        if (hidden_dim is None) == (peak_learning_rate is None):
            raise ValueError(
                "Exactly one of `hidden_dim` and `peak_learning_rate` must be "
                f"given. Received: hidden_dim={hidden_dim}, "
                f"peak_learning_rate={peak_learning_rate}."
            )
        if hidden_dim is not None:
            check_positive(hidden_dim=hidden_dim)
        check_positive_number(scale=scale)
        if peak_learning_rate is not None:
            check_positive_number(peak_learning_rate=peak_learning_rate)
        self.hidden_dim = hidden_dim
        self.warmup_steps = warmup_steps
        self.scale = scale
        self.peak_learning_rate = peak_learning_rate
        self.total_steps = total_steps

    def __call__(self, step):
        step = ops.maximum(ops.cast(step, "float32"), 1.0)
        peak = self.peak_learning_rate
        if peak is None:
            peak = (self.hidden_dim * self.warmup_steps) ** -0.5
        rise = step / self.warmup_steps
        if self.total_steps is None:
            fall = ops.rsqrt(rise)
        else:
            steps = self.total_steps - self.warmup_steps
            share = ops.clip((step - self.warmup_steps) / steps, 0.0, 1.0)
            fall = (1.0 + ops.cos(math.pi * share)) / 2.0
        # To the peak the fall is at least 1, and after it the rise.
        return self.scale * peak * ops.minimum(rise, fall)

    def get_config(self):
        """Returns the arguments."""
        return {
            "hidden_dim": self.hidden_dim,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
            "peak_learning_rate": self.peak_learning_rate,
            "total_steps": self.total_steps,
        }

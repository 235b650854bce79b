"""Learning rate with warm-up, section 5.3."""

import keras
from keras import ops

from keras_transformer.checks import check_positive
from keras_transformer.checks import check_positive_number


@keras.saving.register_keras_serializable(package="keras_transformer")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Raises the learning rate linearly, then lowers it by the square root.

    Equation 3 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762):

    `rate = scale * D^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`

    With `peak_learning_rate` the same curve is scaled so that it peaks there,
    at `warmup_steps`; `hidden_dim` is then not needed. Step 0, where Keras
    starts, counts as step 1.

    Args:
        hidden_dim: Size `D` of the model; `d_model` in the paper.
        warmup_steps: Optimizer updates until the peak.
        scale: Factor on the whole curve.
        peak_learning_rate: Learning rate at the peak, instead of the paper's
            `(D * warmup_steps)^-0.5`.

    Raises:
        ValueError: If a size is not positive, or not exactly one of
            `hidden_dim` and `peak_learning_rate` is given.

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
    ):
        check_positive(warmup_steps=warmup_steps)
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

    def __call__(self, step):
        step = ops.maximum(ops.cast(step, "float32"), 1.0)
        if self.peak_learning_rate is None:
            factor = self.hidden_dim**-0.5
        else:
            factor = self.peak_learning_rate * self.warmup_steps**0.5
        rise = step * self.warmup_steps**-1.5
        return self.scale * factor * ops.minimum(ops.rsqrt(step), rise)

    def get_config(self):
        """Returns the arguments."""
        return {
            "hidden_dim": self.hidden_dim,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
            "peak_learning_rate": self.peak_learning_rate,
        }

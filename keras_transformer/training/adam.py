"""The optimizer of section 5.3."""

import keras

from keras_transformer.tensorflow_only.adam import adam_constants
from keras_transformer.training.updates import Updates


@keras.saving.register_keras_serializable(package="keras_transformer")
class Adam(Updates, keras.optimizers.Adam):
    """Adam with the constants of section 5.3, in one pass over the weights.

    Updates are those of `keras.optimizers.Adam`, except in four points that
    `keras_transformer.training.Updates` describes: what a schedule counts,
    tokens that occur more than once, several devices, and the end of a dataset
    of unknown length. On several devices with `mixed_float16`, wrap it in
    `LossScaleOptimizer`.

    Args:
        learning_rate: A number or a schedule, such as `WarmupSchedule`.
        beta_1: Decay of the mean of the gradients.
        beta_2: Decay of the mean of their squares.
        epsilon: Added to the square root in the denominator.
        **kwargs: As for `keras.optimizers.Adam`: clipping, accumulation,
            weight decay and so on.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If an argument is out of range, or weights are of float16,
            in which 1e-9 is 0: where a gradient is 0, 0 would be divided by 0.

    Example:
    >>> from keras_transformer import WarmupSchedule
    >>> optimizer = Adam(WarmupSchedule(hidden_dim=512))
    >>> optimizer.beta_2, optimizer.epsilon
    (0.98, 1e-09)
    """

    def __init__(
        self,
        learning_rate,
        beta_1: float = 0.9,
        beta_2: float = 0.98,
        epsilon: float = 1e-9,
        **kwargs,
    ):
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            **kwargs,
        )

    def _moments(self, variable):
        if self.amsgrad:
            return None
        index = self._get_variable_index(variable)
        return self._momentums[index], self._velocities[index]

    def _decay_of(self, variable):
        return self.weight_decay

    def _constants(self, learning_rate):
        return adam_constants(
            self.iterations + 1,
            learning_rate,
            self.beta_1,
            self.beta_2,
            self.epsilon,
        )

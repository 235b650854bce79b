"""The optimizer of section 5.3."""

import keras

from keras_transformer.tensorflow_only import update_by_adam


@keras.saving.register_keras_serializable(package="keras_transformer")
class Adam(keras.optimizers.Adam):
    """Adam with the constants of section 5.3, in one pass over the weights.

    The updates are those of `keras.optimizers.Adam`, which goes over a weight
    and its two moments some ten times. TensorFlow has one operation for all of
    it, used here for float32 weights without `amsgrad`; the rest, and other
    backends, are left to Keras.

    It differs from `keras.optimizers.Adam` in two points. With
    `gradient_accumulation_steps` a schedule counts updates, not batches. And
    where one operation does it all, and an embedding's gradient is a list of
    rows, one for each token, those of the same token are added up before they
    are squared, as the definition has it; Keras squares each and adds the
    squares.

    Args:
        learning_rate: A number or a schedule, such as `WarmupSchedule`.
        beta_1: Decay of the mean of the gradients.
        beta_2: Decay of the mean of their squares.
        epsilon: Added to the square root that divides.
        **kwargs: As of `keras.optimizers.Adam`: clipping, accumulation,
            weight decay, ...

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

    def _get_current_learning_rate(self):
        rate = self._learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            return rate(self.iterations)  # of updates; Keras: of batches
        return super()._get_current_learning_rate()

    def update_step(self, gradient, variable, learning_rate):
        """One update of one weight, Algorithm 1 of Kingma and Ba, 2015."""
        index = self._get_variable_index(variable)
        done = not self.amsgrad and update_by_adam(
            variable,
            self._momentums[index],
            self._velocities[index],
            gradient,
            step=self.iterations + 1,
            learning_rate=learning_rate,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
        )
        if not done:
            super().update_step(gradient, variable, learning_rate)

"""Muon for matrices, and Adam for the rest."""

import math

import keras

from keras_transformer.checks import check_texts
from keras_transformer.tensorflow_only.adam import adam_constants
from keras_transformer.training.updates import Updates


@keras.saving.register_keras_serializable(package="keras_transformer")
class Muon(Updates, keras.optimizers.Muon):
    """Muon for the matrices of layers; Adam of section 5.3 for other weights.

    An update of a matrix is its momentum with all singular values brought near
    to 1, from [Jordan et al., 2024](https://kellerjordan.github.io/posts/muon),
    scaled and with the weight decay of [Liu et al.,
    2025](https://arxiv.org/abs/2502.16982). It learns more from an update than
    Adam, at the cost of a few matrix products.

    The defaults of `weight_decay` and `adam_lr_ratio` were found on Multi30k,
    with a rate of 0.01 (`examples/multi30k`).

    Embeddings, the projection to the logits, biases and the weights of layer
    normalisation are updated by Adam, at a share of the rate. Updates are those
    of `keras.optimizers.Muon`, except in the points that
    `keras_transformer.training.Updates` describes.

    Args:
        learning_rate: A number or a schedule, such as `WarmupSchedule`.
        weight_decay: Weight decay of matrices: an update shrinks them by this
            share, times the learning rate.
        adam_beta_1: Decay of Adam's mean of the gradients.
        adam_beta_2: Decay of its mean of their squares.
        adam_weight_decay: Weight decay of what Adam updates; none by
            default.
        adam_lr_ratio: Adam's learning rate, as a share of Muon's.
        epsilon: Added to the square root by which Adam divides.
        exclude_layers: Patterns of paths whose matrices Adam updates;
            embeddings it updates anyway.
        **kwargs: As for `keras.optimizers.Muon`: `momentum`, clipping and so
            on.

    Raises:
        TypeError: If `exclude_layers` is a string, or another argument of the
            wrong kind.
        ValueError: If an argument is out of range, or weights are of float16,
            in which 1e-9 is 0.

    Example:
    >>> from keras_transformer import WarmupSchedule
    >>> schedule = WarmupSchedule(peak_learning_rate=0.01, warmup_steps=500)
    >>> optimizer = Muon(schedule)
    >>> optimizer.weight_decay, optimizer.adam_lr_ratio
    (0.1, 0.5)
    """

    def __init__(
        self,
        learning_rate,
        weight_decay: float | None = 0.1,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.98,
        adam_weight_decay: float | None = None,
        adam_lr_ratio: float = 0.5,
        epsilon: float = 1e-9,
        exclude_layers=("output_projection",),
        **kwargs,
    ):
        if exclude_layers is not None:  # of a string Keras would take letters
            exclude_layers = check_texts("exclude_layers", exclude_layers)
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            adam_beta_1=adam_beta_1,
            adam_beta_2=adam_beta_2,
            adam_weight_decay=adam_weight_decay,
            adam_lr_ratio=adam_lr_ratio,
            epsilon=epsilon,
            exclude_layers=exclude_layers or [],
            **kwargs,
        )

    def zeropower_via_newtonschulz5(self, x, steps: int):
        # As the rate is, which TensorFlow multiplies with no other dtype.
        x = keras.ops.cast(x, "float32")
        return super().zeropower_via_newtonschulz5(x, steps)

    def lr_adjust(self, x):
        # Keras takes a root in the dtype of `floatx`.
        if self.rms_rate is None:
            return x
        return x * (math.sqrt(max(x.shape)) * self.rms_rate)

    def _moments(self, variable):
        index = self._get_variable_index(variable)
        velocity = self.adam_velocities[index]
        return None if velocity is None else (self.momentums[index], velocity)

    def _decay_of(self, variable):
        is_matrix = self._moments(variable) is None
        return self.weight_decay if is_matrix else self.adam_weight_decay

    def _constants(self, learning_rate):
        return adam_constants(
            self.iterations + 1,
            learning_rate * self.adam_lr_ratio,
            self.adam_beta_1,
            self.adam_beta_2,
            self.epsilon,
        )

"""Metrics per real token: padding never counts."""

import keras
from keras import ops

from keras_transformer.checks import check_same_sizes
from keras_transformer.tensors.product import log_normalizers_of
from keras_transformer.tensors.product import parts_of
from keras_transformer.tensors.rows import by_part
from keras_transformer.tensors.slices import pick
from keras_transformer.token_weights import token_weights
from keras_transformer.training.loss import smoothed_crossentropy


class _TokenMean(keras.metrics.Mean):
    """Mean over the real tokens of all batches, whatever their widths."""

    def add_tokens(self, values, y_true, sample_weight):
        """Adds values `(B, T)` of labels, those of padding with weight 0."""
        weights = token_weights(y_true, sample_weight)
        # One axis: of `(B, T)` Keras would take the mean over `T` first, and
        # count a token the less the wider its batch is.
        super().update_state(
            ops.reshape(values, (-1,)), ops.reshape(weights, (-1,))
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(_TokenMean):
    """Share of the target tokens whose logit is the highest, in `[0, 1]`.

    Labels with id 0 are padding and do not count, with or without weights.

    Args:
        name: Name of the metric.
        dtype: Dtype of the sums and the result. In half precision sums of many
            tokens would not grow.

    Example:
    >>> metric = TokenAccuracy()
    >>> logits = keras.ops.array([[[0.0, 4.0, 0.0], [0.0, 4.0, 0.0]]])
    >>> metric.update_state(keras.ops.array([[1, 2]]), logits)
    >>> float(metric.result())
    0.5
    """

    def __init__(self, name: str = "token_accuracy", dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self._direction = "up"  # for callbacks of Keras that look for the best

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts in labels `(B, T)` and logits `(B, T, V)`.

        Raises `ValueError` if their shapes do not fit. Weights are of rows
        `(B,)` or of tokens `(B, T)`.
        """
        y_true = ops.cast(y_true, "int32")
        check_same_sizes("y_true", y_true.shape, y_pred.shape[:-1])
        chosen = by_part(
            lambda logits: ops.cast(ops.argmax(logits, axis=-1), "int32"),
            parts_of(y_pred),
        )
        hits = ops.cast(ops.equal(chosen, y_true), "float32")
        self.add_tokens(hits, y_true, sample_weight)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(_TokenMean):
    """Exponential of the mean cross-entropy per target token, unsmoothed.

    Labels with id 0 are padding and do not count, with or without weights.
    While a model trains in bfloat16, probabilities are rounded as
    `LabelSmoothedCrossentropy` says; in validation they are not.

    Args:
        name: Name of the metric.
        dtype: Dtype of the sums and the result. In half precision sums of many
            tokens would not grow.

    Example:
    >>> metric = Perplexity()
    >>> logits = keras.ops.ones((1, 2, 3))
    >>> metric.update_state(keras.ops.array([[1, 2]]), logits)
    >>> round(float(metric.result()), 4)
    3.0
    """

    def __init__(self, name: str = "perplexity", dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self._direction = "down"  # for callbacks of Keras

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts in labels `(B, T)` and logits `(B, T, V)`.

        Raises `ValueError` if their shapes do not fit. Weights are of rows
        `(B,)` or of tokens `(B, T)`.
        """
        y_true = ops.cast(y_true, "int32")
        check_same_sizes("y_true", y_true.shape, y_pred.shape[:-1])
        log_normalizers = log_normalizers_of(y_pred)
        if log_normalizers is None:
            nats = smoothed_crossentropy(y_true, y_pred)
        else:
            label_logits = by_part(pick, parts_of(y_pred), y_true)
            nats = log_normalizers - ops.cast(label_logits, "float32")
        self.add_tokens(nats, y_true, sample_weight)

    def result(self):
        """Returns the perplexity, at least 1."""
        return ops.exp(super().result())

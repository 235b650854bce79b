"""How much each token counts in losses and metrics."""

from keras import ops

from keras_transformer.checks import check_axes
from keras_transformer.checks import check_sizes
from keras_transformer.checks import known_shape
from keras_transformer.masking import padding_mask


def token_weights(labels, sample_weight=None):
    """The weights of labels `(B, T)`: `sample_weight`, and 0 at padding."""
    weights = ops.cast(padding_mask(labels), "float32")  # (B, T)
    if sample_weight is None:
        return weights
    return weights * spread_over_tokens(sample_weight, labels)


def spread_over_tokens(sample_weight, labels):
    """Broadcasts weights of sentences `(B,)` to their tokens, `(B, T)`.

    Raises:
        ValueError: If their shape is neither `(B,)` nor `(B, T)`; a size may
            be 1. If labels are not `(B, T)`.
    """
    labels = ops.convert_to_tensor(labels)
    check_axes("y_true", labels, (2,), "(B, T)")
    weights = ops.cast(ops.convert_to_tensor(sample_weight), "float32")
    check_sizes("sample_weight", weights.shape, labels.shape)
    shape = known_shape(weights.shape)
    if shape is None or len(shape) == 1:  # `(B, T)` stays so
        rows = 1 if shape == (1,) else ops.shape(labels)[0]
        weights = ops.reshape(weights, (rows, -1))
    return ops.broadcast_to(weights, ops.shape(labels))

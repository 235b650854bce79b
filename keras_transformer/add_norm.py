"""The "Add & Norm" box of figure 1: residual and layer normalisation."""

import keras
from keras import ops

from keras_transformer.checks import check_same_sizes
from keras_transformer.dropout import Dropout
from keras_transformer.layer import Layer
from keras_transformer.layer_norm import LayerNormalization

# As in tensor2tensor; the paper gives no value.
LAYER_NORM_EPSILON = 1e-6


@keras.saving.register_keras_serializable(package="keras_transformer")
class AddNorm(Layer):
    """Adds a sublayer's output to its input and normalises.

    Section 3.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762),
    with the dropout of section 5.4: `LayerNorm(x + Dropout(Sublayer(x)))`.
    With `normalize_first` it is `x + Dropout(Sublayer(LayerNorm(x)))`, which
    trains deep stacks without warm-up
    ([Xiong et al., 2020](https://arxiv.org/abs/2002.04745)).

    The caller does `y = sublayer(add_norm.before(x))` and then
    `x = add_norm(x, y)`.

    Args:
        dropout: Share of the sublayer's output to drop, in `[0, 1)`.
        normalize_first: Whether to normalise before the sublayer.
        **kwargs: `name`, `dtype` and so on, for `keras.layers.Layer`.

    Call arguments:
        inputs: What went into the sublayer, float tensor `(B, T, D)`.
        sublayer_output: What came out, float tensor `(B, T, D)`.
        training: Whether dropout is on.

    Returns:
        Float tensor of shape `(B, T, D)`.

    Raises:
        ValueError: If the shapes differ.
    """

    def __init__(self, dropout: float, normalize_first: bool, **kwargs):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.sublayer_dropout = Dropout(
            dropout, name="dropout", dtype=self.dtype_policy
        )
        self.norm = LayerNormalization(
            epsilon=LAYER_NORM_EPSILON, name="norm", dtype=self.dtype_policy
        )
        self.normalize_first = normalize_first
        self.supports_masking = True

    def build(self, inputs_shape, sublayer_output_shape=None):
        self.norm.build(inputs_shape)
        super().build(inputs_shape)

    def before(self, inputs):
        """What to feed the sublayer, `(B, T, D)`."""
        return self.norm(inputs) if self.normalize_first else inputs

    def call(self, inputs, sublayer_output, training=None):
        check_same_sizes("sublayer_output", sublayer_output.shape, inputs.shape)
        y = self.sublayer_dropout(sublayer_output, training=training)
        # A `DTypePolicyMap` may give the parts other dtypes.
        x = ops.cast(inputs, self.compute_dtype)
        x = x + ops.cast(y, self.compute_dtype)
        return x if self.normalize_first else self.norm(x)

    def get_config(self):
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "normalize_first": self.normalize_first,
        }


def final_norm(normalize_first: bool, dtype):
    """The layer that closes a stack: a norm if no `AddNorm` ended in one."""
    if normalize_first:
        return LayerNormalization(
            epsilon=LAYER_NORM_EPSILON, name="final_norm", dtype=dtype
        )
    return keras.layers.Identity(name="final_norm", dtype=dtype)

"""Position-wise feed-forward network, section 3.3."""

import keras

from keras_transformer.checks import check_known_width
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_share
from keras_transformer.checks import check_width
from keras_transformer.dense import Dense
from keras_transformer.dropout import Dropout
from keras_transformer.layer import Layer


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(Layer):
    """Applies the same two dense layers to each position.

    Computes `max(0, x W1 + b1) W2 + b2`, equation 2 of
    [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.3.
    A mask on the input passes through unchanged.

    Args:
        hidden_dim: Size `D` of input and output; `d_model` in the paper.
        intermediate_dim: Size `F` of the inner layer; `d_ff` in the paper.
        activation: Name of a Keras activation, or a callable. The paper has
            `"relu"`.
        dropout: Share of the inner units to drop in training, in `[0, 1)`.
            The paper has no dropout here, hence the default of 0.
        **kwargs: `name`, `dtype` and so on, for `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor of shape `(B, T, D)`.
        training: Whether dropout is on.

    Returns:
        Float tensor of shape `(B, T, D)`.

    Raises:
        TypeError: If a size is not an integer, or a share is not a number.
        ValueError: If a size is not positive, `dropout` is not in `[0, 1)`,
            `activation` is none that Keras knows, or `"glu"`, which halves its
            input, or has weights, or `inputs` are not `D` wide.

    Example:
    >>> layer = FeedForward(hidden_dim=8, intermediate_dim=32)
    >>> tuple(layer(keras.ops.ones((2, 5, 8))).shape)
    (2, 5, 8)
    """

    def __init__(
        self,
        hidden_dim: int,
        intermediate_dim: int,
        activation="relu",
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(hidden_dim=hidden_dim, intermediate_dim=intermediate_dim)
        check_share(dropout=dropout)
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.activation = get_activation(activation)
        if self.activation is keras.activations.glu:
            raise ValueError(
                "`activation` must return as many units as it takes. Received: "
                f"activation={activation!r}, which halves them."
            )
        self.dropout = dropout
        self.supports_masking = True

        common = {"dtype": self.dtype_policy}
        self.inner = Dense(
            intermediate_dim, activation=self.activation, name="inner", **common
        )
        self.inner_dropout = Dropout(dropout, name="inner_dropout", **common)
        self.outer = Dense(hidden_dim, name="outer", **common)

    def build(self, inputs_shape):
        check_width("inputs", inputs_shape, self.hidden_dim)
        inner_shape = (*inputs_shape[:-1], self.intermediate_dim)
        if isinstance(self.activation, keras.layers.Layer):
            if not self.activation.built:  # of a shape that weights may have
                self.activation.build(tuple(size or 1 for size in inner_shape))
            if self.activation.weights:
                raise ValueError(
                    "`activation` must have no weights: all layers would share "
                    "them, but those of a saved model would not. Received: a "
                    f"{type(self.activation).__name__}."
                )
        self.inner.build(inputs_shape)
        self.outer.build(inner_shape)
        super().build(inputs_shape)

    def call(self, inputs, training=None):
        check_known_width("inputs", inputs.shape, self.hidden_dim)
        x = self.inner(inputs)  # (B, T, F)
        x = self.inner_dropout(x, training=training)
        return self.outer(x)  # (B, T, D)

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
        }


def get_activation(activation):
    """Returns an activation by its name, its configuration, or itself.

    Raises:
        ValueError: If Keras has none of that name.
    """
    try:
        return keras.activations.get(activation)
    except ValueError as error:
        raise ValueError(
            "`activation` must be the name of a Keras activation, such as "
            "'relu' or 'gelu', or a function. Received: activation="
            f"{activation!r}."
        ) from error

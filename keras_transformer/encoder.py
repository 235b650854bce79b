"""Encoder layer and stack, section 3.1 and figure 1, left."""

import keras

from keras_transformer.add_norm import AddNorm
from keras_transformer.add_norm import final_norm
from keras_transformer.attention import MultiHeadAttention
from keras_transformer.checks import check_flag
from keras_transformer.checks import check_known_width
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_share
from keras_transformer.checks import check_width
from keras_transformer.feed_forward import FeedForward
from keras_transformer.feed_forward import get_activation
from keras_transformer.layer import Layer
from keras_transformer.layer import check_takes_training
from keras_transformer.masking import as_attention_mask
from keras_transformer.masking import as_padding_mask
from keras_transformer.masking import first_given
from keras_transformer.tensors.rematerialization import rematerialized


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(Layer):
    """Applies self-attention and a feed-forward network, with residuals.

    Section 3.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762):
    each of the two sublayers becomes `LayerNorm(x + Dropout(Sublayer(x)))`,
    or `x + Dropout(Sublayer(LayerNorm(x)))` with `normalize_first`.

    A Keras mask on `inputs` is honoured and passes through.

    A subclass may have another attention and feed-forward network: its
    `attention_class` is then a subclass of `MultiHeadAttention`, and its
    `feed_forward_class` one of `FeedForward`.

    Args:
        num_heads: Number `N` of attention heads; `h` in the paper.
        hidden_dim: Size `D` of input and output; `d_model` in the paper.
        intermediate_dim: Size `F` of the feed-forward layer; `d_ff`.
        key_dim: Size of a head's keys; `hidden_dim / num_heads` by default.
        value_dim: Size of a head's values; `key_dim` by default.
        dropout: Share of each sublayer's output to drop in training, in
            `[0, 1)`; `P_drop` in the paper.
        attention_dropout: Share of the attention weights to drop. The paper
            has none.
        feed_forward_dropout: Share of the inner units of the feed-forward
            network to drop. The paper has none.
        normalize_first: Whether to normalise before each sublayer (pre-norm)
            rather than after it (post-norm).
        activation: Keras activation of the feed-forward layer.
        attention_bias: Whether the projections of attention add a bias. The
            paper has none; Marian and fairseq have.
        **kwargs: `name`, `dtype` and so on, for `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor of shape `(B, S, D)`.
        padding_mask: Bool tensor of shape `(B, S)`, `True` where `inputs` may
            be attended to.
        attention_mask: Bool tensor of shape `(B, S, S)` or `(S, S)`, `True`
            where a position may attend to another; joined with the padding.
        use_causal_mask: Whether a position attends only to those up to its
            own, as in a language model.
        training: Whether dropout is on.
        return_attention_scores: Whether to return the weights of attention as
            well.
        mask: Used where `padding_mask` is not given; Keras fills in the one
            that `inputs` carries.
        inputs_mask: The name Keras uses for it beside other tensors; used where
            neither is given.

    Returns:
        Float tensor of shape `(B, S, D)`; with `return_attention_scores` a
        pair of it and the weights of shape `(B, N, S, S)`, in float32 at least.

    Raises:
        TypeError: If a size is not an integer, a share not a number, a flag
            not a bool, or a mask not a tensor; or if the `call` of a sublayer
            does not name `training`.
        ValueError: If a size is not positive or does not divide, a share not
            in `[0, 1)`, `activation` none that `FeedForward` takes, `inputs`
            not `D` wide, or a mask has the wrong shape or, outside of a graph,
            numbers other than 0 and 1.

    Example:
    >>> layer = EncoderLayer(num_heads=2, hidden_dim=8, intermediate_dim=32)
    >>> tuple(layer(keras.ops.ones((2, 7, 8))).shape)
    (2, 7, 8)
    """

    attention_class = MultiHeadAttention
    feed_forward_class = FeedForward

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        normalize_first: bool = False,
        activation="relu",
        attention_bias: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_share(
            dropout=dropout,
            attention_dropout=attention_dropout,
            feed_forward_dropout=feed_forward_dropout,
        )
        check_flag(
            normalize_first=normalize_first, attention_bias=attention_bias
        )
        common = {"dtype": self.dtype_policy}
        self.self_attention = self.attention_class(
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            key_dim=key_dim,
            value_dim=value_dim,
            dropout=attention_dropout,
            use_bias=attention_bias,
            name="self_attention",
            **common,
        )
        self.feed_forward = self.feed_forward_class(
            hidden_dim=hidden_dim,
            intermediate_dim=intermediate_dim,
            activation=activation,
            dropout=feed_forward_dropout,
            name="feed_forward",
            **common,
        )
        check_takes_training([self.self_attention, self.feed_forward])
        self.self_attention_add_norm = AddNorm(
            dropout, normalize_first, name="self_attention_add_norm", **common
        )
        self.feed_forward_add_norm = AddNorm(
            dropout, normalize_first, name="feed_forward_add_norm", **common
        )
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.key_dim = self.self_attention.key_dim
        self.value_dim = self.self_attention.value_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.feed_forward_dropout = feed_forward_dropout
        self.normalize_first = normalize_first
        self.activation = self.feed_forward.activation
        self.attention_bias = attention_bias
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.supports_masking = True

    def build(self, inputs_shape):
        check_width("inputs", inputs_shape, self.hidden_dim)
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_add_norm.build(inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_add_norm.build(inputs_shape)
        super().build(inputs_shape)

    def call(
        self,
        inputs,
        padding_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        training=None,
        return_attention_scores=False,
        mask=None,
        inputs_mask=None,
    ):
        check_flag(return_attention_scores=return_attention_scores)
        check_known_width("inputs", inputs.shape, self.hidden_dim)
        padding_mask = as_padding_mask(
            "padding_mask",
            first_given(padding_mask, mask, inputs_mask),
            inputs.shape[:2],
        )
        x = inputs
        y = self.self_attention_add_norm.before(x)
        # A mask given by name keeps Keras from joining that of the tensor.
        y, weights = self.self_attention(
            query=y,
            value=y,
            value_mask=padding_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            return_attention_scores=True,
            training=training,
        )
        x = self.self_attention_add_norm(x, y, training=training)
        y = self.feed_forward_add_norm.before(x)
        y = self.feed_forward(y, training=training)
        x = self.feed_forward_add_norm(x, y, training=training)
        return (x, weights) if return_attention_scores else x

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "feed_forward_dropout": self.feed_forward_dropout,
            "normalize_first": self.normalize_first,
            "activation": keras.activations.serialize(self.activation),
            "attention_bias": self.attention_bias,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Layer):
    """Applies a stack of encoder layers to embedded source tokens.

    Section 3.1 and figure 1, left, of
    [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762). With
    `normalize_first` a final layer normalisation closes the stack. A Keras
    mask on `inputs` is honoured and passes through.

    A subclass may have layers of its own: its `layer_class` is then a subclass
    of `EncoderLayer`.

    Args:
        num_layers: Number of layers; `N` in the paper.
        num_heads: Number `N` of attention heads; `h` in the paper.
        hidden_dim: Size `D` of input and output; `d_model` in the paper.
        intermediate_dim: Size `F` of the feed-forward layers; `d_ff`.
        key_dim: Size of a head's keys; `hidden_dim / num_heads` by default.
        value_dim: Size of a head's values; `key_dim` by default.
        dropout: Share of each sublayer's output to drop in training, in
            `[0, 1)`; `P_drop` in the paper.
        attention_dropout: Share of the attention weights to drop. The paper
            has none.
        feed_forward_dropout: Share of the inner units of the feed-forward
            network to drop. The paper has none.
        normalize_first: Whether to normalise before each sublayer (pre-norm)
            rather than after it (post-norm).
        activation: Keras activation of the feed-forward layers.
        attention_bias: Whether the projections of attention add a bias. The
            paper has none; Marian and fairseq have.
        rematerialize: Whether a step of training keeps only what goes into each
            layer, and computes the layer again for its gradient: less memory,
            more time ([Chen et al., 2016](https://arxiv.org/abs/1604.06174)).
            Not for layers of your own that add losses or update variables.
        **kwargs: `name`, `dtype` and so on, for `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor of shape `(B, S, D)`.
        padding_mask: Bool tensor of shape `(B, S)`, `True` where `inputs` may
            be attended to.
        attention_mask: Bool tensor of shape `(B, S, S)` or `(S, S)`, `True`
            where a position may attend to another; joined with the padding.
        use_causal_mask: Whether a position attends only to those up to its
            own, as in a language model.
        training: Whether dropout is on.
        return_attention_scores: Whether to return the weights of attention as
            well, with layers that have this argument.
        mask: Used where `padding_mask` is not given; Keras fills in the one
            that `inputs` carries.
        inputs_mask: The name Keras uses for it beside other tensors; used where
            neither is given.

    Returns:
        Float tensor of shape `(B, S, D)`, `encoded` elsewhere; with
        `return_attention_scores` a pair of it and a list of weights of shape
        `(B, N, S, S)`, one per layer.

    Raises:
        TypeError: As for `EncoderLayer`; or if the `call` of `layer_class` does
            not name `training`.
        ValueError: As for `EncoderLayer`.

    Example:
    >>> encoder = Encoder(
    ...     num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=32
    ... )
    >>> tuple(encoder(keras.ops.ones((2, 7, 8))).shape)
    (2, 7, 8)
    """

    layer_class = EncoderLayer

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        normalize_first: bool = False,
        activation="relu",
        attention_bias: bool = False,
        rematerialize: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(num_layers=num_layers)
        check_flag(rematerialize=rematerialize)
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.feed_forward_dropout = feed_forward_dropout
        self.normalize_first = normalize_first
        self.activation = get_activation(activation)
        self.attention_bias = attention_bias
        self.rematerialize = rematerialize
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.supports_masking = True
        self.layers = [
            self.layer_class(
                num_heads=num_heads,
                hidden_dim=hidden_dim,
                intermediate_dim=intermediate_dim,
                key_dim=key_dim,
                value_dim=value_dim,
                dropout=dropout,
                attention_dropout=attention_dropout,
                feed_forward_dropout=feed_forward_dropout,
                normalize_first=normalize_first,
                activation=activation,
                attention_bias=attention_bias,
                name=f"layer_{index}",
                dtype=self.dtype_policy,
            )
            for index in range(num_layers)
        ]
        check_takes_training(self.layers)
        self.final_norm = final_norm(normalize_first, self.dtype_policy)

    def build(self, inputs_shape):
        for layer in self.layers:
            layer.build(inputs_shape)
        self.final_norm.build(inputs_shape)
        super().build(inputs_shape)

    def call(
        self,
        inputs,
        padding_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        training=None,
        return_attention_scores=False,
        mask=None,
        inputs_mask=None,
    ):
        check_flag(return_attention_scores=return_attention_scores)
        batch_size, length = inputs.shape[:2]
        # Once for all layers: outside of graphs, their numbers are looked at.
        padding_mask = as_padding_mask(
            "padding_mask",
            first_given(padding_mask, mask, inputs_mask),
            (batch_size, length),
        )
        attention_mask = as_attention_mask(
            attention_mask, (batch_size, length, length)
        )
        # Layers of one's own need not have an argument that is not used.
        returned = (
            {"return_attention_scores": True} if return_attention_scores else {}
        )
        x = inputs
        scores = []
        for layer in self.layers:
            compute = layer
            if self.rematerialize and training:
                compute = rematerialized(layer)
            x = compute(
                x,
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
                training=training,
                **returned,
            )
            if return_attention_scores:
                x, weights = x
                scores.append(weights)
        x = self.final_norm(x)
        return (x, scores) if return_attention_scores else x

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "feed_forward_dropout": self.feed_forward_dropout,
            "normalize_first": self.normalize_first,
            "activation": keras.activations.serialize(self.activation),
            "attention_bias": self.attention_bias,
            "rematerialize": self.rematerialize,
        }

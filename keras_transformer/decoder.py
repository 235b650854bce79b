"""Decoder layer and stack, section 3.1 and figure 1, right."""

import keras
from keras import ops

from keras_transformer.add_norm import AddNorm
from keras_transformer.add_norm import final_norm
from keras_transformer.attention import MultiHeadAttention
from keras_transformer.checks import check_axes
from keras_transformer.checks import check_flag
from keras_transformer.checks import check_known_width
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_share
from keras_transformer.checks import check_width
from keras_transformer.feed_forward import FeedForward
from keras_transformer.feed_forward import get_activation
from keras_transformer.layer import Layer
from keras_transformer.layer import check_decodes_as_trained
from keras_transformer.layer import check_takes_training
from keras_transformer.masking import as_padding_mask
from keras_transformer.masking import combine_masks
from keras_transformer.masking import first_given
from keras_transformer.tensorflow_only.indexing import size
from keras_transformer.tensors.rematerialization import rematerialized
from keras_transformer.tensors.slices import at_least
from keras_transformer.tensors.slices import at_most
from keras_transformer.tensors.slices import numbered
from keras_transformer.tensors.slices import take
from keras_transformer.tensors.slices import write_slice


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(Layer):
    """Applies causal self-attention, cross-attention and a feed-forward net.

    Section 3.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762):
    each of the three sublayers becomes `LayerNorm(x + Dropout(Sublayer(x)))`,
    or `x + Dropout(Sublayer(LayerNorm(x)))` with `normalize_first`.

    Keras masks on `inputs` and `encoded` are honoured; the one on `inputs`
    passes through.

    A subclass may have another attention and feed-forward network: its
    `attention_class` is then a subclass of `MultiHeadAttention`, with an
    `attend_in_step` that does what its `attend` does, and its
    `feed_forward_class` one of `FeedForward`, which computes each position
    alone, whatever axes come before the last.

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
        inputs: Float tensor of shape `(B, T, D)`.
        encoded: Encoder output, float tensor of shape `(B, S, D)`, or of
            another width, which stays the same once the layer is built.
        padding_mask: Bool tensor of shape `(B, T)`, `True` where `inputs` may
            be attended to.
        encoded_mask: Bool tensor of shape `(B, S)`, `True` where `encoded`
            may be attended to. Keras fills it in where `encoded` carries one.
        return_attention_scores: Whether to return the weights of the
            cross-attention as well.
        training: Whether dropout is on.
        inputs_mask: What Keras fills in from the mask that `inputs` carries,
            used where `padding_mask` is not given.

    Returns:
        Float tensor of shape `(B, T, D)`; with `return_attention_scores` a
        pair of it and the weights of shape `(B, N, T, S)`, in float32 at least.

    Raises:
        TypeError: If a size is not an integer, a share not a number, a flag
            not a bool, or a mask not a tensor; if the `call` of a sublayer does
            not name `training`, or an attention overrides `call` or `attend`,
            but not `attend_in_step`.
        ValueError: If a size is not positive or does not divide, a share not
            in `[0, 1)`, `activation` none that `FeedForward` takes, `inputs`
            not `D` wide, `encoded` `None` or without three axes, or a mask has
            the wrong shape or, outside of a graph, numbers other than 0 and 1.

    Example:
    >>> layer = DecoderLayer(num_heads=2, hidden_dim=8, intermediate_dim=32)
    >>> encoded = keras.ops.ones((2, 7, 8))
    >>> tuple(layer(keras.ops.ones((2, 5, 8)), encoded).shape)
    (2, 5, 8)
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
        attention = {
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "dropout": attention_dropout,
            "use_bias": attention_bias,
            **common,
        }
        self.self_attention = self.attention_class(
            name="self_attention", **attention
        )
        self.cross_attention = self.attention_class(
            name="cross_attention", **attention
        )
        self.feed_forward = self.feed_forward_class(
            hidden_dim=hidden_dim,
            intermediate_dim=intermediate_dim,
            activation=activation,
            dropout=feed_forward_dropout,
            name="feed_forward",
            **common,
        )
        attentions = [self.self_attention, self.cross_attention]
        check_takes_training([*attentions, self.feed_forward])
        check_decodes_as_trained(
            attentions, ("call", "attend"), "attend_in_step"
        )
        self.self_attention_add_norm = AddNorm(
            dropout, normalize_first, name="self_attention_add_norm", **common
        )
        self.cross_attention_add_norm = AddNorm(
            dropout, normalize_first, name="cross_attention_add_norm", **common
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

    def build(self, inputs_shape, encoded_shape=None):
        _check_encoded(encoded_shape)
        check_width("inputs", inputs_shape, self.hidden_dim)
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_add_norm.build(inputs_shape)
        self.cross_attention.build(inputs_shape, encoded_shape)
        self.cross_attention_add_norm.build(inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_add_norm.build(inputs_shape)
        super().build(inputs_shape)

    def call(
        self,
        inputs,
        encoded=None,
        padding_mask=None,
        encoded_mask=None,
        return_attention_scores=False,
        training=None,
        inputs_mask=None,
    ):
        check_flag(return_attention_scores=return_attention_scores)
        check_known_width("inputs", inputs.shape, self.hidden_dim)
        padding_mask, encoded_mask = _as_masks(
            inputs,
            encoded,
            first_given(padding_mask, inputs_mask),
            encoded_mask,
        )
        x = inputs
        # 1. Self-attention over the target so far.
        y = self.self_attention_add_norm.before(x)
        # Masks given by name keep Keras from joining those of the tensors.
        y = self.self_attention(
            query=y,
            value=y,
            value_mask=padding_mask,
            use_causal_mask=True,
            training=training,
        )
        x = self.self_attention_add_norm(x, y, training=training)
        # 2. Cross-attention over the source.
        y = self.cross_attention_add_norm.before(x)
        y, weights = self.cross_attention(
            query=y,
            value=encoded,
            value_mask=encoded_mask,
            return_attention_scores=True,
            training=training,
        )
        x = self.cross_attention_add_norm(x, y, training=training)
        # 3. Feed-forward network.
        y = self.feed_forward_add_norm.before(x)
        y = self.feed_forward(y, training=training)
        x = self.feed_forward_add_norm(x, y, training=training)
        return (x, weights) if return_attention_scores else x

    def step(
        self,
        inputs,
        position,
        cache,
        encoded_cache,
        visible,
        encoded_visible=None,
        num_slots=1,
        past=None,
    ):
        """Computes one position, the same as `call` does for all.

        Args:
            inputs: Float tensor of shape `(B W, D)`, that position of each
                hypothesis of each sentence.
            position: Its place in `cache`, scalar int32 tensor from 0, less
                than `L`, which is not checked.
            cache: Keys and values of the positions before, `(B, N, L W, H)`
                each, for at most `L` positions.
            encoded_cache: Keys and values of the encoder output, `(B, N, S,
                H)` each, from `cross_attention.keys_and_values`.
            visible: Bool tensor that broadcasts to `(B, W, L W)`, `True`
                where a hypothesis may attend to what was kept.
            encoded_visible: Bool tensor that broadcasts to `(B, W, S)`, the
                same for the encoder output; by default all of it.
            num_slots: Number `W` of hypotheses of a sentence.
            past: Keys, values and what is visible of positions before those
                of `cache`; by default there are none.

        Returns:
            Float tensor of shape `(B W, D)`, and `cache` with the position
            written.
        """
        x = inputs
        # 1. Self-attention over what was kept and this position.
        y = self.self_attention_add_norm.before(x)
        keys_and_values = self.self_attention.keys_and_values(
            y, length=num_slots
        )
        cache = tuple(
            write_slice(kept, position * num_slots, new)
            for kept, new in zip(cache, keys_and_values, strict=True)
        )
        blocks = [(*cache, visible)]
        if past is not None:
            blocks = [past, *blocks]
        y = self.self_attention.attend_in_step(y, blocks, num_slots)
        x = self.self_attention_add_norm(x, y)
        # 2. Cross-attention over the source.
        y = self.cross_attention_add_norm.before(x)
        blocks = [(*encoded_cache, encoded_visible)]
        y = self.cross_attention.attend_in_step(y, blocks, num_slots)
        x = self.cross_attention_add_norm(x, y)
        # 3. Feed-forward network.
        y = self.feed_forward(self.feed_forward_add_norm.before(x))
        return self.feed_forward_add_norm(x, y), cache

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
class Decoder(Layer):
    """Applies a stack of decoder layers to embedded target tokens.

    Section 3.1 and figure 1, right, of
    [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762). With
    `normalize_first` a final layer normalisation closes the stack. Keras masks
    on `inputs` and `encoded` are honoured; the one on `inputs` passes through.

    For decoding token by token: `start_cache`, `encoded_cache`, then `step`
    for each position.

    A subclass may have layers of its own: its `layer_class` is then a subclass
    of `DecoderLayer`, which computes the same in `call` and in `step`.

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
        inputs: Float tensor of shape `(B, T, D)`.
        encoded: Encoder output, float tensor of shape `(B, S, D)`, or of
            another width, as for `DecoderLayer`.
        padding_mask: Bool tensor of shape `(B, T)`, `True` where `inputs` may
            be attended to.
        encoded_mask: Bool tensor of shape `(B, S)`, `True` where `encoded`
            may be attended to. Keras fills it in where `encoded` carries one.
        return_attention_scores: Whether to return the weights of the
            cross-attention as well.
        training: Whether dropout is on.
        inputs_mask: What Keras fills in from the mask that `inputs` carries,
            used where `padding_mask` is not given.

    Returns:
        Float tensor of shape `(B, T, D)`; with `return_attention_scores` a
        pair of it and a list of weights of shape `(B, N, T, S)`, one
        a layer.

    Raises:
        TypeError: As for `DecoderLayer`; or if the `call` of `layer_class` does
            not name `training`, or a subclass overrides `call`, but not `step`.
        ValueError: As for `DecoderLayer`.

    Example:
    >>> decoder = Decoder(
    ...     num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=32
    ... )
    >>> encoded = keras.ops.ones((2, 7, 8))
    >>> tuple(decoder(keras.ops.ones((2, 5, 8)), encoded).shape)
    (2, 5, 8)
    """

    layer_class = DecoderLayer

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
        check_decodes_as_trained([self, *self.layers])
        self.final_norm = final_norm(normalize_first, self.dtype_policy)

    def build(self, inputs_shape, encoded_shape=None):
        for layer in self.layers:
            layer.build(inputs_shape, encoded_shape)
        self.final_norm.build(inputs_shape)
        super().build(inputs_shape)

    def call(
        self,
        inputs,
        encoded=None,
        padding_mask=None,
        encoded_mask=None,
        return_attention_scores=False,
        training=None,
        inputs_mask=None,
    ):
        check_flag(return_attention_scores=return_attention_scores)
        # Once for all layers: outside of graphs, their numbers are looked at.
        padding_mask, encoded_mask = _as_masks(
            inputs,
            encoded,
            first_given(padding_mask, inputs_mask),
            encoded_mask,
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
                encoded,
                padding_mask=padding_mask,
                encoded_mask=encoded_mask,
                training=training,
                **returned,
            )
            if return_attention_scores:
                x, weights = x
                scores.append(weights)
        x = self.final_norm(x)
        return (x, scores) if return_attention_scores else x

    @property
    def takes_past(self) -> bool:
        """Whether `step` may get a `past`.

        To a layer, `position` is a place in the cache, which is that in the
        target only where the cache has all positions; a layer of one's own may
        compute with it.
        """
        return type(self).step is Decoder.step and all(
            type(layer).step is DecoderLayer.step
            and type(layer.self_attention) is MultiHeadAttention
            for layer in self.layers
        )

    def start_cache(self, batch_size, max_length, num_slots=1):
        """Makes room for keys and values.

        Args:
            batch_size: Number `B` of sentences.
            max_length: Number `L` of positions.
            num_slots: Number `W` of hypotheses of each sentence.

        Returns:
            A list of pairs, one per layer, of zeros: keys `(B, N, L W, H)`,
            values alike.
        """

        def room(projection, head_dim):
            shape = (
                batch_size,
                self.num_heads,
                max_length * num_slots,
                head_dim,
            )
            return ops.zeros(shape, dtype=projection.compute_dtype)

        attentions = [layer.self_attention for layer in self.layers]
        return [
            (
                room(attention.key_projection, attention.key_dim),
                room(attention.value_projection, attention.value_dim),
            )
            for attention in attentions
        ]

    def encoded_cache(self, encoded):
        """Projects the encoder's output, once for all steps.

        Args:
            encoded: Float tensor `(B, S, D)`.

        Returns:
            A list of pairs, one per layer: keys `(B, N, S, H)`, values alike.
        """
        return [
            layer.cross_attention.keys_and_values(encoded)
            for layer in self.layers
        ]

    def step(
        self,
        inputs,
        position,
        cache,
        encoded_cache,
        encoded_mask=None,
        ancestry=None,
        past=(),
    ):
        """Computes one position through all layers.

        Args:
            inputs: Float tensor of shape `(B, W, D)`, that position of each
                of the `W` hypotheses of a sentence.
            position: The position, scalar int32 tensor from 0. It must be less
                than the length given to `start_cache`, which is not checked.
            cache: From `start_cache`, or the step before.
            encoded_cache: From `encoded_cache`.
            encoded_mask: Bool tensor of shape `(B, S)`.
            ancestry: Int32 tensor `(B, W, L)` or longer, the slot that each
                hypothesis was in at each position; `None` only for one slot.
            past: Keys and values of the positions before those of `cache`,
                which are only read. The first is of a position that is never
                visible, as `start_cache` gives it, so that the tensors are
                never empty. By default the cache has all positions.

        Returns:
            Float tensor of shape `(B, W, D)` and the cache for the next step.

        Raises:
            ValueError: If several slots have no `ancestry`.
        """
        keys, _ = cache[0]
        num_slots = inputs.shape[1]
        if ancestry is None and num_slots not in (None, 1):
            raise ValueError(
                "`ancestry` must be given for more than one slot, as each "
                "hypothesis would attend to the tokens of all. Received: "
                f"ancestry=None, {num_slots} slots."
            )
        first_position = past_length(past, num_slots)  # of the cache
        visible = _visible(position, keys, num_slots, ancestry, first_position)
        pasts = [None] * len(self.layers)
        if past:
            past_keys, _ = past[0]
            past_visible = _visible(
                position, past_keys, num_slots, ancestry, first_position=-1
            )
            pasts = [(*kept, past_visible) for kept in past]
        encoded_keys, _ = encoded_cache[0]  # (B, N, S, H)
        sizes = (encoded_keys.shape[0], num_slots, encoded_keys.shape[2])
        encoded_visible = combine_masks(sizes, encoded_mask=encoded_mask)
        # As rows, which layers multiply without changing shapes.
        x = ops.reshape(inputs, (-1, inputs.shape[2]))
        new_cache = []
        for layer, layer_cache, layer_encoded_cache, layer_past in zip(
            self.layers, cache, encoded_cache, pasts, strict=True
        ):
            x, layer_cache = layer.step(
                x,
                position - first_position,
                layer_cache,
                layer_encoded_cache,
                visible,
                encoded_visible,
                num_slots,
                layer_past,
            )
            new_cache.append(layer_cache)
        x = ops.reshape(self.final_norm(x), (-1, num_slots, inputs.shape[2]))
        return x, new_cache

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


def past_length(past, num_slots):
    """The number of positions of a past, 0 of `()`."""
    if not past:
        return 0
    keys, _ = past[0]  # (B, N, W + L W, H)
    return size(keys, 2) // num_slots - 1


def _as_masks(inputs, encoded, padding_mask, encoded_mask):
    """Both masks as bools; raises unless they and `encoded` fit."""
    _check_encoded(encoded)
    check_axes("encoded", encoded, (3,), "(B, S, D)")
    return (
        as_padding_mask("padding_mask", padding_mask, inputs.shape[:2]),
        as_padding_mask("encoded_mask", encoded_mask, encoded.shape[:2]),
    )


def _check_encoded(encoded):
    """Raises `ValueError` unless there is an encoder output, or its shape."""
    if encoded is None:
        raise ValueError(
            "`encoded` must be the encoder output, a float tensor of shape "
            "(B, S, D). Received: encoded=None. A stack that attends only to "
            "its own past is an `Encoder` with use_causal_mask=True."
        )


def _visible(position, keys, num_slots, ancestry, first_position):
    """Marks what each hypothesis has kept, bool `(B or 1, W or 1, L W)`.

    At each position up to this one, a hypothesis sees the slot it was in at
    that position. So a beam search never moves what is kept, and the attention
    of all hypotheses of a sentence is one product.

    Args:
        position: As for `Decoder.step`.
        keys: Those that are kept, `(B, N, L W, H)`.
        num_slots: Number `W` of hypotheses.
        ancestry: As for `Decoder.step`.
        first_position: Position of the first of `keys`; one at -1 is never
            visible.
    """
    places = numbered(keys, axis=2)  # (L W,)
    positions = places // num_slots + first_position
    # Those in `[0, position]` stay, and are visible. Others are moved there,
    # where `ancestry` has an entry to take.
    clipped = at_most(at_least(positions, 0), position)
    is_visible = ops.reshape(ops.equal(positions, clipped), (1, 1, -1))
    if ancestry is None:
        return is_visible
    slots = take(ancestry, clipped, axis=2)  # (B, W, L W)
    is_own = ops.equal(slots, places % num_slots)
    return ops.logical_and(is_own, is_visible)

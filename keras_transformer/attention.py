"""Scaled dot-product and multi-head attention, section 3.2."""

import functools

import keras
from keras import ops

from keras_transformer.checks import check_axes
from keras_transformer.checks import check_flag
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_same_sizes
from keras_transformer.checks import check_share
from keras_transformer.checks import check_sizes
from keras_transformer.dense import Dense
from keras_transformer.dropout import Dropout
from keras_transformer.layer import Layer
from keras_transformer.masking import causal_mask
from keras_transformer.masking import combine_masks
from keras_transformer.tensorflow_only.indexing import size
from keras_transformer.tensorflow_only.products import small_product
from keras_transformer.tensorflow_only.products import small_softmax

# Added to the score of a key that may not be attended to. Finite, so that a row
# with nothing to attend to becomes some average instead of NaN; far below the
# scores of inputs up to 1e14, normalised or not, so that its weight is exactly
# 0 elsewhere.
MASKED_SCORE = -1e30


def attention_weights(query, key, mask=None):
    """Computes `softmax(Q K^T / sqrt(d_k))`, the weights of equation 1.

    Args:
        query: Float tensor `(B, N, T, H)`.
        key: Float tensor `(B, N, S, H)`.
        mask: Bool tensor of three axes that broadcast to `(B, T, S)`, `True`
            where the query may attend to the key; or `None`.

    Returns:
        Tensor `(B, N, T, S)`, float32 whatever the policy, or float64.
    """
    scores = ops.matmul(_scaled(query), ops.transpose(key, (0, 1, 3, 2)))
    return _softmax(_masked(scores, mask), ops.softmax)


def _scaled(query):
    """Divides by `sqrt(d_k)`, before the product, which is larger."""
    # Not by `cast`, which would begin with a float32.
    scale = ops.convert_to_tensor(query.shape[-1] ** -0.5, query.dtype)
    return query * scale


def _masked(scores, mask):
    """Adds `MASKED_SCORE` where the mask is false, in float32 or float64.

    Args:
        scores: Float tensor `(B, N, T, S)`.
        mask: As for `attention_weights`.
    """
    exact = keras.backend.result_type(scores.dtype, "float32")
    scores = ops.cast(scores, exact)
    if mask is None:
        return scores
    zero = ops.cast(0.0, exact)  # 0.0 alone would be of `floatx`
    bias = ops.where(mask, zero, MASKED_SCORE)  # (B, T, S)
    return scores + ops.expand_dims(bias, 1)


def _softmax(scores, softmax):
    if scores.shape[-1] == 1:  # Keras warns of a softmax over one key
        return scores * 0.0 + 1.0  # of the scores: so they have a gradient
    return softmax(scores)


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(Layer):
    """Attends to keys from queries with several heads at once.

    Section 3.2.2 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762):

    `MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W^O`
    `head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)`

    All masks given are combined. A query with nothing to attend to gets
    some average of the values: finite, but meaningless. The Keras mask of
    `query` passes through to the output.

    For decoding token by token, `keys_and_values` computes what can be kept,
    and `attend_in_step` attends to what was kept.

    Args:
        num_heads: Number `N` of heads; `h` in the paper.
        hidden_dim: Size `D` of the output; `d_model` in the paper.
        key_dim: Size of a head's queries and keys; `d_k` in the paper.
            `hidden_dim / num_heads` by default.
        value_dim: Size of a head's values; `d_v` in the paper. `key_dim` by
            default.
        dropout: Share of the attention weights to drop in training, in
            `[0, 1)`. The paper has none; tensor2tensor has 0.1.
        use_bias: Whether the four projections add a bias. The paper has none;
            fairseq has.
        **kwargs: `name`, `dtype` and so on, for `keras.layers.Layer`.

    Call arguments:
        query: Float tensor of shape `(B, T, D)`, of any width.
        value: Float tensor of shape `(B, S, D)`, of any width.
        key: Float tensor of shape `(B, S, D)`; `value` by default.
        value_mask: Bool tensor of shape `(B, S)`, `True` where `value` may be
            attended to. Keras fills it in where `value` carries a mask.
        key_mask: The same for `key`.
        attention_mask: Bool tensor of shape `(B, T, S)` or `(T, S)`, `True`
            where the query may attend to the key.
        use_causal_mask: Whether a query attends only to keys up to its place.
        return_attention_scores: Whether to return the weights as well.
        training: Whether dropout is on.

    Returns:
        Float tensor of shape `(B, T, D)`; with `return_attention_scores` a
        pair of it and the weights of shape `(B, N, T, S)`, in float32 at
        least.

    Raises:
        TypeError: If a size is not an integer, a share not a number, a flag
            not a bool, or a mask not a tensor.
        ValueError: If a size is not positive, `num_heads` does not divide
            `hidden_dim` where `key_dim` is not given, `dropout` is not in
            `[0, 1)`, a tensor does not have three axes, or a mask has the
            wrong shape or, outside of a graph, numbers other than 0 and 1.

    Example:
    >>> layer = MultiHeadAttention(num_heads=2, hidden_dim=8)
    >>> query, value = keras.ops.ones((1, 5, 8)), keras.ops.ones((1, 7, 8))
    >>> tuple(layer(query=query, value=value).shape)
    (1, 5, 8)
    """

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(num_heads=num_heads, hidden_dim=hidden_dim)
        if key_dim is None:
            if hidden_dim % num_heads:
                raise ValueError(
                    "`hidden_dim` must be a multiple of `num_heads`. Received: "
                    f"hidden_dim={hidden_dim}, num_heads={num_heads}. In "
                    "Python, pass `key_dim` for heads of another size."
                )
            key_dim = hidden_dim // num_heads
        value_dim = key_dim if value_dim is None else value_dim
        check_positive(key_dim=key_dim, value_dim=value_dim)
        check_share(dropout=dropout)
        check_flag(use_bias=use_bias)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.supports_masking = True

        common = {"use_bias": use_bias, "dtype": self.dtype_policy}
        self.query_projection = Dense(
            num_heads * key_dim, name="query", **common
        )
        self.key_projection = Dense(num_heads * key_dim, name="key", **common)
        self.value_projection = Dense(
            num_heads * value_dim, name="value", **common
        )
        self.output_projection = Dense(hidden_dim, name="output", **common)
        self.attention_dropout = Dropout(
            dropout, name="attention_dropout", dtype=self.dtype_policy
        )

    def build(self, query_shape, value_shape, key_shape=None):
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape or value_shape)
        self.value_projection.build(value_shape)
        self.output_projection.build(
            (*query_shape[:-1], self.num_heads * self.value_dim)
        )
        super().build(query_shape)

    def compute_output_shape(self, query_shape, *args, **kwargs):
        """The shape of the query, with the width of the output."""
        return (*query_shape[:-1], self.hidden_dim)

    def call(
        self,
        query,
        value,
        key=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        return_attention_scores=False,
        training=None,
    ):
        check_flag(
            use_causal_mask=use_causal_mask,
            return_attention_scores=return_attention_scores,
        )
        for name, x in (("value", value), ("key", key)):
            if x is not None:
                check_axes(name, x, (3,), "(B, S, D)")
                check_sizes(name, x.shape, (query.shape[0], None, None))
        if key is not None:
            check_same_sizes("key", key.shape, (*value.shape[:2], None))
        causal = None
        if use_causal_mask:
            causal = causal_mask(size(query, 1), size(value, 1))
        mask = combine_masks(
            (*query.shape[:2], value.shape[1]),  # (B, T, S)
            attention_mask,
            causal,
            value_mask=value_mask,
            key_mask=key_mask,
        )
        keys, values = self.keys_and_values(value, key)
        output, weights = self.attend(query, keys, values, mask, training)
        return (output, weights) if return_attention_scores else output

    def keys_and_values(self, value, key=None, length=None):
        """Projects `(B, S, D)` to keys and values, `(B, N, S, H)` each.

        With a `length` `S`, from rows `(B S, D)`.
        """
        key = value if key is None else key
        keys, values = self.key_projection(key), self.value_projection(value)
        return (
            self._split_heads(keys, self.key_dim, length),
            self._split_heads(values, self.value_dim, length),
        )

    def attend(self, query, keys, values, mask=None, training=None):
        """Attends to projected keys and values, `(B, N, S, H)` each.

        Args:
            query: Float tensor `(B, T, D)`.
            keys: From `keys_and_values`.
            values: From `keys_and_values`.
            mask: Bool tensor that broadcasts to `(B, T, S)`.
            training: Whether dropout is on.

        Returns:
            The output `(B, T, D)`, and the weights `(B, N, T, S)`.
        """
        query = self._split_heads(self.query_projection(query), self.key_dim)
        weights = attention_weights(query, keys, mask)  # (B, N, T, S)
        probabilities = ops.cast(weights, values.dtype)
        probabilities = self.attention_dropout(probabilities, training=training)
        heads = ops.matmul(probabilities, values)  # (B, N, T, H)
        return self.output_projection(self._join_heads(heads)), weights

    def attend_in_step(self, query, blocks, length):
        """Attends, in a step of decoding, to what was kept.

        The same as `attend` for rows, to keys and values in one block or in
        several, which are not copied into one.

        Args:
            query: Float tensor, rows `(B T, D)`.
            blocks: Keys, values and mask of each block, as for `attend`.
            length: Number `T` of queries that belong together, an integer.

        Returns:
            The output, rows `(B T, D)`.
        """
        query = self.query_projection(query)
        query = _scaled(self._split_heads(query, self.key_dim, length))
        scores = [
            _masked(small_product(query, keys, transpose_y=True), mask)
            for keys, _, mask in blocks
        ]
        heads = _attend_jointly(scores, [values for _, values, _ in blocks])
        return self.output_projection(self._join_heads(heads, as_rows=True))

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
        }

    def _split_heads(self, x, head_dim, length=None):
        """Makes `(B, N, T, H)` of `(B, T, N H)`, or of rows `(B T, N H)`."""
        length = size(x, 1) if length is None else length
        if _is_known_as(length, 1):  # nothing to transpose
            return ops.reshape(x, (-1, self.num_heads, 1, head_dim))
        batch_size = _batch_size(x, length)
        x = ops.reshape(x, (batch_size, length, self.num_heads, head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_heads(self, heads, as_rows=False):
        """Makes `(B, T, N H)` of `(B, N, T, H)`, or rows `(B T, N H)`."""
        length = size(heads, 2)
        if not _is_known_as(length, 1):
            heads = ops.transpose(heads, (0, 2, 1, 3))
        units = self.num_heads * self.value_dim
        if as_rows:
            return ops.reshape(heads, (-1, units))
        return ops.reshape(heads, (_batch_size(heads, length), length, units))


def _attend_jointly(scores, values):
    """Weights values by one softmax over all blocks.

    Args:
        scores: Of each block, `(B, N, T, S)`.
        values: Of each block, `(B, N, S, H)`.

    Returns:
        Float tensor `(B, N, T, H)`.
    """
    if len(scores) == 1:
        weights = _softmax(scores[0], small_softmax)
        return small_product(ops.cast(weights, values[0].dtype), values[0])
    # The blocks are not joined, which would copy them: their exponentials, and
    # the values weighted by these, are summed, and divided at the end.
    largest = functools.reduce(
        ops.maximum, [ops.max(x, axis=-1, keepdims=True) for x in scores]
    )
    shares = [ops.exp(x - largest) for x in scores]
    total = sum(ops.sum(x, axis=-1, keepdims=True) for x in shares)
    heads = sum(
        small_product(ops.cast(share, of_block.dtype), of_block)
        for share, of_block in zip(shares, values, strict=True)
    )
    return heads / ops.cast(total, heads.dtype)


def _batch_size(x, length):
    """`B` for a reshape: -1, inferred, unless `length` is known to be 0."""
    return size(x, 0) if _is_known_as(length, 0) else -1


def _is_known_as(length, number):
    """Whether a length, an integer or a tensor, is known to be a number."""
    return isinstance(length, int) and length == number

"""Positional encoding, section 3.5."""

import math

import keras
from keras import ops

from keras_transformer.checks import check_choice
from keras_transformer.checks import check_not_negative
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_width
from keras_transformer.layer import Layer
from keras_transformer.tensorflow_only.indexing import size
from keras_transformer.tensors.slices import at_most
from keras_transformer.tensors.slices import is_integer_tensor
from keras_transformer.tensors.slices import take

LAYOUTS = ("interleaved", "concatenated")


def sinusoids(positions, hidden_dim: int, layout: str = "interleaved"):
    """Computes the sinusoids of section 3.5 for the given positions.

    `PE(pos, 2i) = sin(pos / 10000^(2i / D))` and
    `PE(pos, 2i + 1) = cos(pos / 10000^(2i / D))` in the `"interleaved"`
    layout. The `"concatenated"` layout of tensor2tensor and Marian has all
    sines first, then all cosines, with wavelengths that end at exactly
    10000 * 2 pi: `10000^(i / (D / 2 - 1))`.

    Args:
        positions: Float32 tensor of shape `(T,)`, in tokens from 0.
        hidden_dim: Size `D`; an odd one ends with a sine (`"interleaved"`)
            or a zero (`"concatenated"`).
        layout: `"interleaved"` or `"concatenated"`.

    Returns:
        Float32 tensor of shape `(T, D)`.
    """
    if layout == "interleaved":
        pairs = (hidden_dim + 1) // 2
        steps = hidden_dim / 2
    else:
        pairs = hidden_dim // 2
        steps = max(pairs - 1, 1)
    exponents = ops.arange(pairs, dtype="float32") / steps
    frequencies = ops.exp(exponents * -math.log(10_000.0))
    angles = ops.expand_dims(positions, 1) * frequencies  # (T, D / 2)
    if layout == "interleaved":
        encoding = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        encoding = ops.reshape(encoding, (-1, 2 * pairs))
        return encoding[:, :hidden_dim]
    encoding = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
    return ops.pad(encoding, ((0, 0), (0, hidden_dim - 2 * pairs)))


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositionalEncoding(Layer):
    """Adds sinusoids of the position to embedded tokens.

    Section 3.5 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).
    Computed in float32 under every dtype policy and cast once, after the sum:
    in bfloat16 neighbouring positions past 256 would round to the same number.
    No length limit, no weights. A mask on the input passes through unchanged.

    Args:
        layout: `"interleaved"` as in the paper, sine and cosine by turns, or
            `"concatenated"`, all sines first, as in tensor2tensor and Marian.
        **kwargs: `name`, `dtype` and so on, for `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor of shape `(B, T, D)`.
        start_position: Position of the first token, in tokens from 0; an
            integer or a scalar int32 tensor.

    Returns:
        Float tensor of shape `(B, T, D)`.

    Raises:
        TypeError: If `start_position` is not an integer, nor a tensor of them.
        ValueError: If `layout` is not one of the two, or `start_position` a
            negative integer, or a tensor with axes.

    Example:
    >>> layer = SinusoidalPositionalEncoding()
    >>> tuple(layer(keras.ops.zeros((2, 5, 8))).shape)
    (2, 5, 8)
    """

    def __init__(self, layout: str = "interleaved", **kwargs):
        super().__init__(**kwargs)
        check_choice(LAYOUTS, layout=layout)
        self.layout = layout
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.supports_masking = True

    def call(self, inputs, start_position=0):
        _check_start(start_position)
        positions = _positions(start_position, inputs)
        encoding = sinusoids(
            ops.cast(positions, "float32"), inputs.shape[-1], self.layout
        )
        return _sum(inputs, encoding, self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "layout": self.layout}


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositionalEncoding(Layer):
    """Adds a learned vector for each position to embedded tokens.

    Row E of Table 3 of
    [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762). A mask on the
    input passes through unchanged.

    Args:
        max_length: Number of positions that have a vector, in tokens.
        hidden_dim: Size `D` of input and output; `d_model` in the paper.
        **kwargs: `name`, `dtype` and so on, for `keras.layers.Layer`.

    Call arguments:
        inputs: Float tensor of shape `(B, T, D)`, `T` at most `max_length`.
        start_position: Position of the first token, in tokens from 0; an
            integer or a scalar int32 tensor. A tensor past the end repeats
            the last vector.

    Returns:
        Float tensor of shape `(B, T, D)`.

    Raises:
        TypeError: If a size, or `start_position`, is not an integer.
        ValueError: If a size is not positive, `inputs` not `D` wide, or
            longer than `max_length`, or `start_position` as for
            `SinusoidalPositionalEncoding`. A graph of TensorFlow made for any
            length raises its `InvalidArgumentError` when it runs on a CPU.

    Example:
    >>> layer = LearnedPositionalEncoding(max_length=16, hidden_dim=8)
    >>> tuple(layer(keras.ops.zeros((2, 5, 8))).shape)
    (2, 5, 8)
    """

    def __init__(self, max_length: int, hidden_dim: int, **kwargs):
        super().__init__(**kwargs)
        check_positive(max_length=max_length, hidden_dim=hidden_dim)
        self.max_length = max_length
        self.hidden_dim = hidden_dim
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.supports_masking = True

    def build(self, inputs_shape):
        check_width("inputs", inputs_shape, self.hidden_dim)
        self.position_embeddings = self.add_weight(
            shape=(self.max_length, self.hidden_dim),
            initializer=keras.initializers.RandomNormal(
                stddev=self.hidden_dim**-0.5
            ),
            autocast=False,  # added in float32, whatever is computed in
            name="position_embeddings",
        )
        self.input_spec = keras.layers.InputSpec(
            ndim=3, axes={-1: self.hidden_dim}
        )
        super().build(inputs_shape)

    def call(self, inputs, start_position=0):
        is_known = _check_start(start_position)
        if is_known:
            self._check_length(inputs.shape[1], start_position)
        positions = _positions(start_position, inputs)
        if not is_known:
            positions = at_most(positions, self.max_length - 1)
        return _sum(inputs, self.look_up(positions), self.compute_dtype)

    def look_up(self, positions):
        """Takes the vectors of positions: `(T,)` int32 to `(T, D)`."""
        return take(self.position_embeddings, positions)

    def get_config(self):
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "hidden_dim": self.hidden_dim,
        }

    def _check_length(self, length, start_position):
        end = start_position + length if isinstance(length, int) else 0
        if end > self.max_length:
            raise ValueError(
                "The last position of `inputs` must be less than `max_length`. "
                f"Received: start_position={start_position}, length={length}, "
                f"max_length={self.max_length}."
            )


def _check_start(start_position) -> bool:
    """Whether it is known; raises unless it can be a position."""
    if is_integer_tensor(start_position):
        if len(start_position.shape) > 0:
            raise ValueError(
                "`start_position` must be a scalar, one for all rows. Received:"
                f" start_position.shape={tuple(start_position.shape)}."
            )
        return False  # a tensor, of which a graph knows no value
    check_not_negative(start_position=start_position)
    return True


def _positions(start_position, inputs):
    """The positions `(T,)` of inputs `(B, T, D)`."""
    length = size(inputs, 1)
    return ops.cast(start_position, "int32") + ops.arange(length, dtype="int32")


def _sum(inputs, encoding, dtype):
    """Adds in float32 at least, and casts once."""
    exact = keras.backend.result_type(dtype, "float32")
    x = ops.cast(inputs, exact) + ops.cast(encoding, exact)
    return ops.cast(x, dtype)

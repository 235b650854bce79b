"""Token embedding and the output projection tied to it, section 3.4."""

import contextlib
import contextvars

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_flag
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_width
from keras_transformer.dense import by_rows
from keras_transformer.layer import Layer
from keras_transformer.masking import padding_mask
from keras_transformer.tensorflow_only.graphs import is_litert_graph
from keras_transformer.tensorflow_only.graphs import is_plain_graph
from keras_transformer.tensorflow_only.indexing import gather_and_pass_on
from keras_transformer.tensorflow_only.products import matrix_product
from keras_transformer.tensors.product import keep_product
from keras_transformer.tensors.slices import is_integer_tensor
from keras_transformer.tensors.slices import take

# Floats that hold any id exactly; smaller ones would round it.
WHOLE_FLOATS = ("float32", "float64")

# The matrix of each layer that is inside of `one_gradient`, as the last use
# has passed it on. A context's own: devices of a strategy have threads.
_passed_on = contextvars.ContextVar("passed_on", default={})  # noqa: B039


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(Layer):
    """Turns token ids into vectors, and vectors into logits over tokens.

    Section 3.4 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762):
    one matrix `E` of shape `(V, D)` serves both ways. Ids are looked up and
    scaled by `sqrt(D)`; with `reverse=True` the layer computes `x E^T`, the
    linear transformation before the softmax. Share the layer object to share
    the matrix between source, target and output.

    The matrix starts with a standard deviation of `D^-0.5`, so that scaled
    embeddings and logits both start near unit variance (tensor2tensor).

    Args:
        vocabulary_size: Number `V` of tokens.
        hidden_dim: Size `D` of a vector; `d_model` in the paper.
        mask_zero: Whether the output carries a Keras mask that hides id 0,
            the padding.
        **kwargs: `name`, `dtype` and so on, for `keras.layers.Layer`.

    Call arguments:
        inputs: Int tensor of ids, shape `(B, T)`, or float32 or
            float64 without fractions; float tensor of shape `(B, T, D)` or
            `(B, D)` with `reverse=True`.
        reverse: Whether to compute logits from vectors.
        training: Whether the logits remember what they are the product of,
            so that a loss can do without their gradient.

    Returns:
        Float tensor of shape `(B, T, D)`; logits, the last axis `V` wide,
        with `reverse=True`. Of an id outside the vocabulary JAX makes NaN, and
        TensorFlow any vector on a GPU or where XLA compiles it; otherwise it is
        an error.

    Raises:
        TypeError: If sizes, or ids in a list, a tuple or an array, are not
            whole numbers, or `mask_zero` or `reverse` not a bool; of ids in a
            float tensor the fraction is cut off.
        ValueError: If a size is not positive, or `inputs` not `D` wide with
            `reverse=True`.

    Example:
    >>> layer = TokenEmbedding(vocabulary_size=13, hidden_dim=8)
    >>> vectors = layer(keras.ops.array([[4, 7, 0]]))
    >>> tuple(vectors.shape), tuple(layer(vectors, reverse=True).shape)
    ((1, 3, 8), (1, 3, 13))
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        mask_zero: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(vocabulary_size=vocabulary_size, hidden_dim=hidden_dim)
        check_flag(mask_zero=mask_zero)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.mask_zero = mask_zero
        self.supports_masking = True
        self.autocast = False  # ids may be floats, and vectors are cast below

    def build(self, inputs_shape=None):
        self.embeddings = self.add_weight(
            shape=(self.vocabulary_size, self.hidden_dim),
            initializer=keras.initializers.RandomNormal(
                stddev=self.hidden_dim**-0.5
            ),
            name="embeddings",
            autocast=False,  # the rows taken are cast, not all of it
        )
        super().build(inputs_shape)

    def compute_output_shape(self, inputs_shape):
        """The shape of the vectors of ids `(B, T)`."""
        return (*inputs_shape, self.hidden_dim)

    def __call__(self, inputs, *args, **kwargs):
        if args:  # which Keras refuses
            return super().__call__(inputs, *args, **kwargs)
        is_reverse = kwargs.get("reverse", False)
        check_flag(reverse=is_reverse)
        if not is_reverse and isinstance(inputs, (list, tuple, np.ndarray)):
            inputs = as_ids("inputs", inputs)
        elif not is_reverse and _are_whole_floats(inputs):
            inputs = ops.cast(inputs, "int32")  # so that they are masked
        return super().__call__(inputs, **kwargs)

    def call(self, inputs, reverse=False, training=None):
        if reverse:
            check_width("inputs", inputs.shape, self.hidden_dim)
            inputs = ops.cast(inputs, self.compute_dtype)
            weight = _passed_on.get().get(self, self.embeddings)
            embeddings = ops.cast(weight, self.compute_dtype)
            kernel = ops.transpose(embeddings)
            if is_litert_graph():  # which would copy logits to reshape them
                return matrix_product(inputs, kernel)
            logits = by_rows(lambda x: ops.matmul(x, kernel), inputs)
            if training:
                keep_product(logits, inputs, embeddings, weight)
            return logits
        if not (is_integer_tensor(inputs) or _are_whole_floats(inputs)):
            raise TypeError(
                "`inputs` must be integers, unless `reverse=True`. Received: "
                f"inputs.dtype={inputs.dtype}. Is there a `keras.Input` "
                "without `dtype='int32'`, or a `keras.Sequential` without one?"
            )
        vectors = self.look_up(ops.cast(inputs, "int32"))  # (B, T, D)
        vectors = ops.cast(vectors, self.compute_dtype)
        return vectors * ops.cast(self.hidden_dim**0.5, vectors.dtype)

    def look_up(self, ids):
        """Takes the rows of the matrix: `(B, T)` int32 to `(B, T, D)`."""
        tables = _passed_on.get()
        if self not in tables:
            return take(self.embeddings, ids)
        rows, tables[self] = gather_and_pass_on(tables[self], ids)
        return rows

    @contextlib.contextmanager
    def one_gradient(self):
        """Lets the uses of the matrix inside of it share one gradient.

        In a plain graph of TensorFlow the gradient of each would otherwise be a
        matrix of its own, zeros but for the rows that were looked up, and all
        would be added up. All uses must be in the same graph, none in a branch
        or a loop of it.
        """
        if not is_plain_graph():
            yield
            return
        # A tensor, which `convert_to_tensor` does not make of a variable.
        table = ops.cast(self.embeddings, self.embeddings.dtype)
        token = _passed_on.set({**_passed_on.get(), self: table})
        try:
            yield
        finally:
            _passed_on.reset(token)

    def compute_mask(self, inputs, previous_mask=None):
        if not is_integer_tensor(inputs):  # vectors, on their way to logits
            return previous_mask
        return padding_mask(inputs) if self.mask_zero else None

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "mask_zero": self.mask_zero,
        }


def as_ids(name, x):
    """Makes integers of ids, before Keras rounds them to half precision.

    Those that are integers stay as they are.

    Raises:
        TypeError: If an array, a list or a tuple holds fractions, or no
            numbers.
        ValueError: If rows of a list or a tuple are of several lengths.
    """
    if is_integer_tensor(x):
        return x
    if isinstance(x, (list, tuple)):
        try:
            x = np.asarray(x)
        except ValueError as error:
            raise ValueError(
                f"`{name}` must have rows of one length. Received: {name} with "
                "several. Pad the shorter ones with zeros."
            ) from error
    message = f"`{name}` must hold integers. Received: {name}"
    if isinstance(x, np.ndarray) and x.dtype.kind == "f":
        fractions = x[~np.isfinite(x) | (x != np.floor(x))]
        if fractions.size:
            raise TypeError(f"{message} with {fractions[0]}.")
    elif isinstance(x, np.ndarray) and x.dtype.kind not in "biu":
        raise TypeError(f"{message} of dtype {x.dtype}.")
    return ops.cast(x, "int32")


def _are_whole_floats(inputs):
    """Whether they are floats that may be ids.

    Keras makes them where an `Input` or a `Sequential` has no dtype, and to
    build a subclassed model that it loads.
    """
    if not hasattr(inputs, "dtype"):
        return False
    return keras.backend.standardize_dtype(inputs.dtype) in WHOLE_FLOATS

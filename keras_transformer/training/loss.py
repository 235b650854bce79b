"""Cross-entropy with label smoothing, section 5.4."""

import math

import keras
from keras import ops

from keras_transformer.checks import check_same_sizes
from keras_transformer.checks import check_share
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.tensorflow_only.devices import replica_context
from keras_transformer.tensorflow_only.devices import sum_over_devices
from keras_transformer.tensorflow_only.graphs import wait_for
from keras_transformer.tensorflow_only.indexing import replace_entries
from keras_transformer.tensorflow_only.products import has_exact_softmax
from keras_transformer.tensors.gradients import custom_gradient
from keras_transformer.tensors.product import cast_logits
from keras_transformer.tensors.product import keep_log_normalizers
from keras_transformer.tensors.product import products_of
from keras_transformer.tensors.rows import by_part
from keras_transformer.tensors.rows import sum_rows
from keras_transformer.tensors.slices import pick
from keras_transformer.token_weights import spread_over_tokens

# Size `D` from which on oneDNN computes `G^T x` faster than `x^T G` and its
# transposition. Measured at 128 and 512; the limit is between.
LEAST_TRANSPOSED = 256

# The loss is computed from a label's probability only if it is above this.
LEAST_PROBABILITY = 1e-30


@keras.saving.register_keras_serializable(package="keras_transformer")
class LabelSmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy of logits against smoothed token ids, in nats per token.

    Section 5.4 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762),
    smoothing as in [Szegedy et al., 2015](https://arxiv.org/abs/1512.00567):
    the right token gets a share of `1 - e`, and `e` is spread over all `V`
    tokens. Computed in float32 in closed form, without one-hot labels of
    shape `(B, T, V)`:

    `loss = logsumexp(z) - (1 - e) z_label - e mean(z)`

    If a training step has its logits in bfloat16, the probability of a label
    is rounded to bfloat16 too.

    The default reduction is the exact mean over real tokens: padding has
    weight 0, either by the `sample_weight` that `translation_dataset` gives
    or in `Transformer`, which masks its logits and weighs its labels. Under
    a `tf.distribute` strategy it is the mean over those of all devices.

    Args:
        label_smoothing: Share `e` of the label to spread, in `[0, 1)`;
            `epsilon_ls` in the paper, 0.1 there.
        reduction: As for `keras.losses.Loss`.
        name: Name of the loss.

    Call arguments:
        y_true: Int tensor `(B, T)`, the ids that follow each position. Those
            outside the vocabulary give NaN on JAX, and an error on PyTorch and
            on TensorFlow and a CPU, unless XLA compiles it; there, anything.
        y_pred: Float tensor `(B, T, V)`, logits.
        sample_weight: Float tensor `(B, T)`, 0 at padding; or `(B,)`, of
            sentences.

    Returns:
        Float32 tensor, in nats per target token: scalar, or `(B, T)` with
        `reduction=None`.

    Raises:
        TypeError: If `label_smoothing` is not a number.
        ValueError: If `label_smoothing` is not in `[0, 1)`, or there are labels
            or weights of another shape than the logits.

    Example:
    >>> loss = LabelSmoothedCrossentropy(0.1)
    >>> logits = keras.ops.array([[[0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]])
    >>> round(float(loss([[1, 2]], logits)), 4)
    0.3026
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        reduction: str = "mean_with_sample_weight",
        name: str = "label_smoothed_crossentropy",
    ):
        # Keras casts the ids to this dtype; a smaller one would round them.
        super().__init__(name=name, reduction=reduction, dtype="float32")
        check_share(label_smoothing=label_smoothing)
        self.label_smoothing = label_smoothing

    def __call__(self, y_true, y_pred, sample_weight=None):
        if sample_weight is not None:
            sample_weight = spread_over_tokens(sample_weight, y_true)
        if products_of(y_pred) is not None:
            y_pred = cast_logits(y_pred, self.dtype)
        loss = super().__call__(y_true, y_pred, sample_weight)
        devices = replica_context()
        if devices is None or self.reduction != "mean_with_sample_weight":
            return loss
        # Keras adds up the means of the devices in equal shares, which are
        # those of their tokens here.
        tokens = _SumOfWeights()(y_true, y_pred, sample_weight)
        all_tokens = sum_over_devices(devices, tokens)
        share = ops.divide_no_nan(tokens, all_tokens)
        return loss * share * devices.num_replicas_in_sync

    def call(self, y_true, y_pred):
        return smoothed_crossentropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        """Returns the arguments."""
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
        }


class _SumOfWeights(keras.losses.Loss):
    """What Keras divides by for a mean: weights, masks, or 1 per entry."""

    def __init__(self):
        super().__init__(reduction="sum", dtype="float32")

    def call(self, y_true, y_pred):
        return ops.ones_like(y_true)


def smoothed_crossentropy(ids, logits, label_smoothing: float = 0.0):
    """Computes the loss of each token together with its gradient.

    The gradient is `softmax(z) - (1 - e) [label] - e / V`. Given here, it keeps
    only the logits and one number for each token of what the loss computed:
    less to write and read again than a softmax of shape `(B, T, V)`. If logits
    carry the factors they are the product of, the gradients are those of the
    factors.

    Args:
        ids: Tensor `(B, T)` of whole numbers; Keras passes floats to losses.
        logits: Float tensor `(B, T, V)`.
        label_smoothing: Share `e`.

    Returns:
        Float32 tensor `(B, T)`, in nats.
    """
    ids = ops.cast(ids, "int32")
    check_same_sizes("y_true", ids.shape, logits.shape[:-1])
    products = products_of(logits)
    if products is not None:
        return by_part(
            lambda product, ids: _product_crossentropy(
                ids, product, label_smoothing
            ),
            products,
            ids,
        )

    # JAX refuses tensors from outside in a gradient of a transformed function,
    # so the ids are an argument; as floats, which alone may have a gradient.
    @custom_gradient
    def crossentropy(logits, ids):
        labels = ops.cast(ids, "int32")
        exact = ops.cast(logits, "float32")
        log_normalizers = ops.logsumexp(exact, axis=-1)
        label_logits = ops.cast(pick(logits, labels), "float32")
        mean_logits = ops.mean(exact, axis=-1) if label_smoothing else 0.0
        loss = _smoothed(
            log_normalizers, label_logits, mean_logits, label_smoothing
        )

        def gradient(upstream):
            share = label_smoothing / logits.shape[-1]
            exact = ops.cast(logits, "float32")  # anew, so as not to keep it
            difference = ops.exp(exact - ops.expand_dims(log_normalizers, -1))
            if label_smoothing:
                difference = difference - share
            difference = difference * ops.expand_dims(upstream, -1)
            at_labels = ops.exp(label_logits - log_normalizers)
            at_labels = at_labels - share + label_smoothing - 1.0
            of_logits = _with_labels(
                ops.cast(difference, logits.dtype),
                labels,
                ops.cast(at_labels * upstream, logits.dtype),
            )
            return of_logits, ops.zeros_like(ids)

        return loss, gradient

    return crossentropy(logits, ops.cast(ids, "float32"))


def _product_crossentropy(ids, product, label_smoothing):
    """Computes the loss of logits `x E^T + b`, with the gradients of these.

    With the gradient `G = softmax(z) - (1 - e) [label] - e / V` of the logits,
    those of `x`, `E` and `b` are `G E`, `G^T x` and the sum of the rows of `G`.
    `of_logits` is `G` without `e / V`, which is the same for all tokens and is
    added to the results instead. A token's weight, `upstream`, scales its row
    of `G`; it is applied to `x` and to the results, so that `of_logits` stays
    in the dtype of the logits.

    To avoid holding logits in float32, the probability of a label is rounded to
    bfloat16, and so its loss is off by at most 0.004 nats. Logits are held in
    float32 only where TensorFlow would sum in bfloat16 (`has_exact_softmax`).

    Args:
        ids: Int32 tensor `(B, T)`.
        product: The `Product` that the logits are.
        label_smoothing: Share `e`.

    Returns:
        Float32 tensor `(B, T)`, in nats.
    """
    logits, vectors, embeddings, weight, bias = product
    vocabulary_size = logits.shape[-1]

    @ops.custom_gradient
    def crossentropy(vectors, weight, *biases):
        x = _rows(ops.cast(vectors, "float32"))  # (B T, D)
        labels = ops.reshape(ids, (-1,))
        mean_embedding = sum_rows(ops.cast(weight, "float32")) / vocabulary_size
        mean_logits = ops.sum(x * mean_embedding, axis=-1)
        for bias in biases:  # one or none
            mean_logits += ops.mean(ops.cast(bias, "float32"))
        loss, normalizers, probabilities, at_labels = _loss_and_softmax(
            labels,
            _rows(logits),  # (B T, V)
            mean_logits,
            label_smoothing,
        )

        def gradient(upstream, _):
            of_logits = replace_entries(
                probabilities,
                labels,
                ops.cast(at_labels, logits.dtype),
                ops.cast(at_labels + label_smoothing - 1.0, logits.dtype),
                after=normalizers,
            )
            upstream = ops.reshape(upstream, (-1, 1))
            share = label_smoothing / vocabulary_size
            weighted = x * upstream
            of_biases = [
                ops.cast(_of_bias(of_logits, upstream, share), bias.dtype)
                for bias in biases
            ]
            expected = ops.cast(ops.matmul(of_logits, embeddings), "float32")
            of_vectors = upstream * (
                expected - label_smoothing * mean_embedding
            )
            # The last to read `of_logits`: that frees memory at the peak of a
            # step.
            of_embeddings = _transposed_product(
                of_logits,
                wait_for(expected, ops.cast(weighted, of_logits.dtype)),
            )
            of_weight = ops.cast(of_embeddings, "float32") - (
                share * sum_rows(weighted)
            )
            of_vectors = ops.reshape(of_vectors, ops.shape(vectors))
            return (
                ops.cast(of_vectors, vectors.dtype),
                ops.cast(of_weight, weight.dtype),
                *of_biases,
            )

        loss, log_normalizers = (
            ops.reshape(of_each, ops.shape(ids))
            for of_each in (loss, normalizers)
        )
        return (loss, log_normalizers), gradient

    factors = [vectors, weight] if bias is None else [vectors, weight, bias]
    # Tensors, as a gradient of its own asks for.
    factors = [ops.cast(factor, factor.dtype) for factor in factors]
    loss, log_normalizers = crossentropy(*factors)
    keep_log_normalizers(logits, log_normalizers)
    return loss


def _loss_and_softmax(ids, logits, mean_logits, label_smoothing):
    """Computes the loss, and the parts of its gradient.

    Args:
        ids: Int32 tensor `(...)`.
        logits: Float tensor `(..., V)`.
        mean_logits: Float32 tensor `(...)`, used where there is smoothing.
        label_smoothing: Share `e`.

    Returns:
        The loss and `logsumexp`, float32 `(...)`; probabilities `(..., V)` of
        the dtype of the logits, and those of the labels, float32 `(...)`.
    """
    label_logits = ops.cast(pick(logits, ids), "float32")
    probabilities = _softmax(logits)
    label_probabilities = ops.cast(pick(probabilities, ids), "float32")
    log_normalizers = _log_normalizer_by_softmax(
        ids, logits, probabilities, label_logits, label_probabilities
    )
    loss = _smoothed(
        log_normalizers, label_logits, mean_logits, label_smoothing
    )
    return loss, log_normalizers, probabilities, label_probabilities


def _smoothed(log_normalizers, label_logits, mean_logits, label_smoothing):
    """Computes the loss `(...)` from what it is made of, all `(...)`."""
    loss = log_normalizers - label_logits
    if label_smoothing:
        loss = loss + label_smoothing * (label_logits - mean_logits)
    return loss


def _softmax(logits):
    """Computes probabilities of the dtype of the logits, summed in float32."""
    dtype = keras.backend.standardize_dtype(logits.dtype)
    if dtype == "float32" or has_exact_softmax():
        return ops.softmax(logits, axis=-1)
    probabilities = ops.softmax(ops.cast(logits, "float32"), axis=-1)
    return ops.cast(probabilities, dtype)


def _of_bias(of_logits, upstream, share):
    """Computes the sum of the rows of `G - share`, by their weights."""
    weights = ops.transpose(upstream)  # (1, M)
    of_bias = ops.matmul(ops.cast(weights, of_logits.dtype), of_logits)
    return ops.cast(of_bias[0], "float32") - share * ops.sum(weights)


def _transposed_product(of_logits, x):
    """Computes `G^T x`, `(V, D)`, from `(M, V)` and `(M, D)`."""
    if x.shape[-1] >= LEAST_TRANSPOSED:
        # One operation: TensorFlow joins a transposition to the product.
        return ops.matmul(ops.transpose(of_logits), x)
    # It takes longer to read `G` across than to turn what comes out.
    return ops.transpose(ops.matmul(ops.transpose(x), of_logits))


def _rows(x):
    """Joins all axes but the last."""
    return ops.reshape(x, (-1, x.shape[-1]))


def _log_normalizer_by_softmax(
    ids, logits, probabilities, label_logits, label_probabilities
):
    """Computes `logsumexp` `(...)` of logits whose softmax is at hand.

    It is `z - log p` of any token whose `p` is not too small: of the label,
    unless one is, and then of the most probable token, which takes two more
    passes over `(..., V)`. Padding, which may be impossible, weighs nothing.
    """
    is_possible = label_probabilities > LEAST_PROBABILITY
    is_padding = ops.equal(ids, PAD_TOKEN_ID)
    return ops.cond(
        ops.all(ops.logical_or(is_possible, is_padding)),
        lambda: (
            label_logits
            - ops.log(ops.maximum(label_probabilities, LEAST_PROBABILITY))
        ),
        lambda: (
            ops.cast(ops.max(logits, axis=-1), "float32")
            - ops.log(ops.cast(ops.max(probabilities, axis=-1), "float32"))
        ),
    )


def _with_labels(gradient, ids, values):
    """Puts values `(...)` in place of the entries of ids in `(..., V)`."""
    vocabulary_size = gradient.shape[-1]
    if keras.backend.backend() == "jax":  # XLA joins it to what is before
        is_label = ops.equal(
            ops.arange(vocabulary_size, dtype="int32"),
            ops.expand_dims(ids, -1),
        )
        return ops.where(is_label, ops.expand_dims(values, -1), gradient)
    rows = _rows(gradient)  # (B T, V)
    # TensorFlow counts entries of all rows in the dtype of the indices; its
    # `vectorized_map` converts int32 alone.
    is_few = None not in rows.shape and math.prod(rows.shape) < 2**31
    dtype = "int32" if is_few else "int64"
    ids = ops.cast(ops.reshape(ids, (-1, 1)), dtype)
    index = ops.expand_dims(ops.arange(ops.shape(ids)[0], dtype=dtype), 1)
    rows = ops.scatter_update(
        rows, ops.concatenate([index, ids], axis=1), ops.reshape(values, (-1,))
    )
    return ops.reshape(rows, ops.shape(gradient))

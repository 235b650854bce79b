"""Products of matrices and softmaxes, as TensorFlow computes them best."""

import functools

import keras

from keras_transformer.tensorflow_only.graphs import is_litert_graph
from keras_transformer.tensorflow_only.graphs import is_plain_graph


def small_product(x, y, transpose_y=False):
    """Multiplies matrices `(B, N, T, S)` by `(B, N, S, U)`.

    Those of a decoding step, in a graph that is not compiled. On a CPU
    TensorFlow has oneDNN share products among threads, however small they are,
    which takes ten times as long as the product; this version of the operation
    it leaves alone, but has it for CPUs only.

    Args:
        x: Float tensor.
        y: Float tensor.
        transpose_y: Whether `y` is `(B, N, U, S)`.
    """
    if is_litert_graph() and x.shape[2] == 1:
        return _vector_product(x, y, transpose_y)
    if not _is_small_float(x) or x.dtype != y.dtype:
        y = keras.ops.transpose(y, (0, 1, 3, 2)) if transpose_y else y
        return keras.ops.matmul(x, y)
    import tensorflow as tf

    return tf.switch_case(
        tf.raw_ops.DeviceIndex(device_names=["CPU"]),
        [
            lambda: tf.raw_ops.BatchMatMulV3(
                x=x, y=y, Tout=x.dtype, adj_y=transpose_y
            ),
            lambda: tf.matmul(x, y, transpose_b=transpose_y),
        ],
    )


def _vector_product(x, y, transpose_y):
    """Multiplies vectors `(B, N, 1, S)` by matrices, as `small_product` does.

    LiteRT's product of matrices would copy `y` first, into an order which is
    fast for many vectors.
    """
    if transpose_y:
        return keras.ops.expand_dims(keras.ops.sum(x * y, axis=-1), 2)
    x = keras.ops.expand_dims(keras.ops.squeeze(x, 2), 3)
    return keras.ops.sum(x * y, axis=2, keepdims=True)


def matrix_product(x, y):
    """Multiplies `(B, T, D)` by `(D, F)` in one operation of LiteRT."""
    import tensorflow as tf

    return tf.matmul(x, y)


def small_softmax(x):
    """Softmax of the last axis, without oneDNN as `small_product`."""
    if not _is_small_float(x):
        return keras.ops.softmax(x, axis=-1)
    import tensorflow as tf

    shares = tf.exp(x - tf.reduce_max(x, axis=-1, keepdims=True))
    total = tf.reduce_sum(shares, axis=-1, keepdims=True)
    return shares * tf.math.reciprocal(total)


def _is_small_float(x):
    return is_plain_graph() and x.dtype == "float32"


@functools.cache
def has_exact_softmax() -> bool:
    """Whether a softmax of bfloat16 errs by no more than its last bit.

    oneDNN and GPUs sum up in float32. TensorFlow's own for processors, where
    oneDNN does not know the dtype, is 8 % off for a large vocabulary.
    """
    import tensorflow as tf

    with tf.init_scope():  # now, not in a graph that is being traced
        logits = tf.cast(tf.linspace([-4.0], [4.0], 4096, axis=1), "bfloat16")
        shares, exact = (
            tf.cast(tf.nn.softmax(x), "float32")
            for x in (logits, tf.cast(logits, "float32"))
        )
        return bool(tf.reduce_max(abs(shares / exact - 1.0)) <= 2**-7)

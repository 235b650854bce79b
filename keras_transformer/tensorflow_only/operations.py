"""Operations of TensorFlow that Keras has no name for."""

import functools

import keras

from keras_transformer.tensorflow_only.devices import replica_context
from keras_transformer.tensorflow_only.graphs import is_litert_graph
from keras_transformer.tensorflow_only.graphs import is_plain_graph


def size(x, axis):
    """The size of one axis.

    `ops.shape` makes operations on TensorFlow for each axis that is not known,
    the others' too.
    """
    if x.shape[axis] is not None:
        return x.shape[axis]
    if keras.backend.backend() != "tensorflow":
        return keras.ops.shape(x)[axis]
    import tensorflow as tf

    return tf.shape(x)[axis]


def summed_rows(gradient):
    """Adds up the rows of the same token in the gradient of an embedding.

    On TensorFlow it is a list of rows, one for each token.
    """
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def write_slice(x, position, update):
    """Writes over positions of axis 2, as `slices.write_slice` says.

    In place where TensorFlow can. Its `ops.slice_update` is an operation that
    XLA compiles, and keeps, for each shape it meets, in a graph that is not
    compiled too, and that TensorFlow Serving refuses on a CPU unless it is
    told otherwise.
    """
    import tensorflow as tf

    # As matrices, in which TensorFlow finds places in half of the time.
    sizes = [size(x, axis) for axis in range(1, len(x.shape))]
    width = sizes[2] if len(sizes) == 3 else 1
    y = tf.raw_ops.TensorStridedSliceUpdate(
        input=tf.reshape(x, [-1, sizes[1] * width]),
        begin=[0, position * width],
        end=[0, (position + size(update, 2)) * width],
        strides=[1, 1],
        value=tf.reshape(update, [-1, size(update, 2) * width]),
        begin_mask=0b01,
        end_mask=0b01,
    )
    return tf.reshape(y, [-1, *sizes])


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
    if not _is_small_float(x):
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


def replace_entries(x, places, old, new, after):
    """Replaces one entry of each row, in place where it can.

    Nothing that sets entries does so in place. So what is there is taken away,
    which leaves exactly 0, and what is to be there added.

    Args:
        x: Float tensor `(M, V)`.
        places: Int32 tensor `(M,)`.
        old: The entries, `(M,)`, of the dtype of `x`.
        new: Those to be there, alike.
        after: Tensor to wait for, computed with what else reads `x`.
    """
    import tensorflow as tf

    rows = tf.range(tf.shape(x, out_type="int64")[0])
    # Int64, as TensorFlow counts entries of all rows in the dtype of these.
    indices = tf.stack([rows, tf.cast(places, "int64")], axis=1)
    with tf.control_dependencies([after]):
        return _add_at(_add_at(x, indices, -old), indices, new)


def wait_for(other, x):
    """Gives `x`, of which nothing is computed before `other` is there."""
    import tensorflow as tf

    with tf.control_dependencies([other]):
        return tf.identity(x)


def gather(x, places, axis, batch_dims=0):
    """Takes what is at places of an axis, on TensorFlow.

    With `batch_dims`, each row has places of its own. To count the rows of all
    one after another instead needs sizes, and what has a size that a LiteRT
    graph computes makes it arrange its memory anew.
    """
    import tensorflow as tf

    return tf.gather(x, places, axis=axis, batch_dims=batch_dims)


def gather_and_pass_on(table, ids):
    """Takes rows of a matrix, and passes it on to what uses it next.

    What comes back is the gradient of that; those of the rows are added to it
    where they belong, in place where it can.

    Args:
        table: Float tensor `(V, D)`.
        ids: Int32 tensor `(B, T)`.

    Returns:
        The rows `(B, T, D)`, and the matrix.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def gathered(table):
        def gradient(of_rows, of_table):
            return _add_at(of_table, tf.expand_dims(ids, -1), of_rows)

        return (tf.gather(table, ids), tf.identity(table)), gradient

    return gathered(table)


def _add_at(x, indices, updates):
    import tensorflow as tf

    if is_plain_graph():  # XLA does not have it; the other copies on CPUs
        return tf.raw_ops.ScatterNdNonAliasingAdd(
            input=x, indices=indices, updates=updates
        )
    return tf.tensor_scatter_nd_add(x, indices, updates)


def random_halves(like, seed_generator):
    """Draws int16 of any value, two from each random number of 32 bits.

    Each device of a strategy draws others, which Keras has no name for. And
    its `ops.view` would reshape the numbers, which TensorFlow does on the host.

    Args:
        like: Tensor of the shape to draw, whose last axis is even.
        seed_generator: A `keras.random.SeedGenerator`.
    """
    import tensorflow as tf

    shape = tf.shape(like)
    seed = seed_generator.next()
    devices = replica_context()
    if devices is not None:
        seed += tf.cast(devices.replica_id_in_sync_group, seed.dtype)
    numbers = tf.random.stateless_uniform(
        tf.concat([shape[:-1], [like.shape[-1] // 2]], axis=0),
        # Int32 from Keras's int64, as Keras casts it.
        tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32),
        # All of int32: within bounds, each number is divided by their distance.
        minval=None,
        maxval=None,
        dtype=tf.int32,
    )
    return tf.reshape(tf.bitcast(numbers, tf.int16), shape)


def adam_constants(step, learning_rate, beta_1, beta_2, epsilon):
    """What the updates of all weights by `update_by_adam` have in common."""
    import tensorflow as tf

    step, learning_rate, beta_1, beta_2, epsilon = (
        tf.cast(x, "float32")
        for x in (step, learning_rate, beta_1, beta_2, epsilon)
    )
    return {
        "lr": learning_rate,
        "beta1": beta_1,
        "beta2": beta_2,
        "beta1_power": beta_1**step,
        "beta2_power": beta_2**step,
        "epsilon": epsilon,
    }


def update_by_adam(variable, momentum, velocity, gradient, constants) -> bool:
    """Updates a weight and its moments by TensorFlow's own Adam.

    Returns:
        Whether it has: not in other dtypes than float32.
    """
    import tensorflow as tf

    if variable.dtype != tf.float32:
        return False
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=momentum.value.handle,
        v=velocity.value.handle,
        grad=tf.cast(summed_rows(gradient), "float32"),
        **constants,
    )
    return True

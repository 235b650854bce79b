"""Taking what is at some places of a tensor, and writing there."""

import keras

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

    The gradient that comes back is that of the matrix passed on; the gradients
    of the rows are added to it, in place where TensorFlow can.

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


def replace_entries(x, places, old, new, after):
    """Replaces one entry of each row, in place where TensorFlow can.

    TensorFlow can add to entries in place, but not set them. So the old entry
    is subtracted, which leaves exactly 0, and the new one added.

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
    entries = sizes[2] if len(sizes) == 3 else 1
    y = tf.raw_ops.TensorStridedSliceUpdate(
        input=tf.reshape(x, [-1, sizes[1] * entries]),
        begin=[0, position * entries],
        end=[0, (position + size(update, 2)) * entries],
        strides=[1, 1],
        value=tf.reshape(update, [-1, size(update, 2) * entries]),
        begin_mask=0b01,
        end_mask=0b01,
    )
    return tf.reshape(y, [-1, *sizes])


def _add_at(x, indices, updates):
    import tensorflow as tf

    if is_plain_graph():  # XLA does not have it; the other copies on CPUs
        return tf.raw_ops.ScatterNdNonAliasingAdd(
            input=x, indices=indices, updates=updates
        )
    return tf.tensor_scatter_nd_add(x, indices, updates)

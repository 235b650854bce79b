"""Random numbers of 16 bits."""

from keras_transformer.tensorflow_only.devices import replica_context


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

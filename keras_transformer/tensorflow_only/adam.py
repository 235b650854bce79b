"""TensorFlow's own Adam, one operation for each weight."""

import keras


def summed_rows(gradient):
    """Adds up the rows of the same token in the gradient of an embedding.

    On TensorFlow it is a list of rows, one for each token.
    """
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


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
        grad=tf.cast(gradient, "float32"),
        **constants,
    )
    return True

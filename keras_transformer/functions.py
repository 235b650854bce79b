"""Functions of a model that Keras compiles, on every backend.

Here alone the core imports a backend, and only where Keras runs on it.
"""

import keras


class Functions:
    """Keeps what has been compiled for a model, by keys.

    Not a list or dictionary of the model, which Keras would track as layers.
    """

    def __init__(self, model):
        self.model = model
        self.compiled = {}

    def run(self, key, function, inputs, jit_compile):
        """Runs `function(model, inputs)` on a dictionary of arrays, to arrays.

        Args:
            key: Tells functions apart.
            function: Function of tensors to tensors, of any structure.
            inputs: Dictionary of arrays.
            jit_compile: Whether to compile with XLA.
        """
        key = (key, tuple(inputs), jit_compile)
        if key not in self.compiled:
            compiled = _Function(self.model, function)
            compiled.compile(jit_compile=jit_compile)
            self.compiled[key] = compiled
        return self.compiled[key].predict_on_batch(inputs)


def jit(function):
    """Compiles with XLA a part of a TensorFlow graph.

    Only where Keras runs on TensorFlow: Keras compiles whole models, not
    parts of a graph.
    """
    import tensorflow as tf

    return tf.function(function, jit_compile=True, reduce_retracing=True)


def replica_context():
    """What joins the devices of a `tf.distribute` strategy, inside a step.

    Keras adds up the gradients of the devices, and has no name for adding up
    anything else. `None` outside a step of several devices.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None
    return context


def halves(numbers):
    """Reads int32 `(...)` as int16 `(..., 2)`, on TensorFlow.

    `ops.view` reshapes the int32 first, which TensorFlow does on the host.
    """
    import tensorflow as tf

    return tf.bitcast(numbers, tf.int16)


def update_by_adam(
    variable,
    momentum,
    velocity,
    gradient,
    step,
    learning_rate,
    beta_1,
    beta_2,
    epsilon,
):
    """Updates a weight and its moments by TensorFlow's own Adam.

    Returns:
        Whether it has: not on other backends, or in other dtypes than float32.
    """
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    if variable.dtype != tf.float32:
        return False
    step = tf.cast(step, "float32")
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=momentum.value.handle,
        v=velocity.value.handle,
        beta1_power=beta_1**step,
        beta2_power=beta_2**step,
        lr=tf.cast(learning_rate, "float32"),
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=tf.cast(tf.convert_to_tensor(gradient), "float32"),
    )
    return True


class _Function(keras.Model):
    """Runs a function as a model, which Keras compiles."""

    def __init__(self, model, function):
        super().__init__(name="function")
        self.model = model
        self.function = function
        self.built = True

    def call(self, inputs):
        return self.function(self.model, inputs)

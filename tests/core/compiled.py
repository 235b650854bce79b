"""The same function traced, compiled and differentiated on each backend."""

import contextlib

import keras

if keras.backend.backend() == "jax":
    import jax

    traced = xla = jax.jit
    gradient = jax.grad

    def of_any_size(function, rank, dtype):
        return jax.jit(function)

    # Loops of `keras.ops` run in Python, one step after another.
    loops_in_python = jax.disable_jit

    # `compile` as fast as this backend allows for a single step: in a graph,
    # and where it is not the step that is tested.
    COMPILE = AT_ONCE = {"jit_compile": True}
else:
    import tensorflow as tf

    traced = tf.function
    loops_in_python = contextlib.nullcontext
    COMPILE = {"jit_compile": False}
    AT_ONCE = {"run_eagerly": True}  # to trace a step takes seconds

    def of_any_size(function, rank, dtype):
        spec = tf.TensorSpec([None] * rank, dtype)
        return tf.function(function, input_signature=[spec])

    def xla(function):
        return tf.function(function, jit_compile=True)

    def gradient(function):
        def differentiated(x):
            x = tf.convert_to_tensor(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, x)

        return differentiated

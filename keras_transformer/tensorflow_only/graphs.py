"""Graphs of TensorFlow: who will run them, and how they are made."""

import contextlib
import contextvars

import keras

from keras_transformer.tensorflow_only.devices import are_cpus

_runs_on = contextvars.ContextVar("runs_on", default=None)


def check_is_tensorflow(what):
    """Raises `RuntimeError` unless Keras runs on TensorFlow, for an export."""
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"{what} can be exported with the TensorFlow backend only. "
            f"Received: backend {keras.backend.backend()!r}. Start Python "
            "with KERAS_BACKEND=tensorflow; the translator's folder is the "
            "same for every backend."
        )


def is_plain_graph() -> bool:
    """Whether a graph of TensorFlow is traced that XLA does not compile."""
    return _runs_on.get() == "tensorflow"


def adds_by_products() -> bool:
    """Whether a graph for CPUs is traced, whose sums take longer than products.

    GPUs would round what they multiply to TF32.
    """
    if not is_plain_graph():
        return False
    import tensorflow as tf

    return are_cpus(tf.config.list_logical_devices())


def is_litert_graph() -> bool:
    """Whether a graph is traced that LiteRT will run."""
    return _runs_on.get() == "litert"


@contextlib.contextmanager
def graph_for(runtime):
    """Says what will run a graph that is traced inside.

    Args:
        runtime: `"tensorflow"` operation by operation, `"litert"`, or `None`
            for another, such as XLA.
    """
    token = _runs_on.set(runtime)
    try:
        yield
    finally:
        _runs_on.reset(token)


def jit(function):
    """Compiles with XLA a part of a TensorFlow graph.

    Only where Keras runs on TensorFlow: Keras compiles whole models, not
    parts of a graph.
    """
    import tensorflow as tf

    @tf.function(jit_compile=True, reduce_retracing=True, autograph=False)
    def compiled(*args):
        with graph_for(None):
            return function(*args)

    return compiled


def graph(function, inputs):
    """Makes a TensorFlow graph of a function, for arrays of any size.

    Keras would trace it anew for the first three shapes or so, which takes
    seconds each time.

    Args:
        function: Function of a dictionary of tensors to tensors.
        inputs: Dictionary of arrays, of which dtypes and ranks count.

    Returns:
        Function of such a dictionary to arrays.
    """
    import tensorflow as tf

    signature = {
        name: tf.TensorSpec([None] * x.ndim, x.dtype, name)
        for name, x in inputs.items()
    }

    @tf.function(input_signature=[signature], autograph=False)
    def traced(inputs):
        with graph_for("tensorflow"):
            return function(inputs)

    def run(inputs):
        tensors = {name: tf.constant(x) for name, x in inputs.items()}
        # Called itself, it would warn of the other functions made here, as if
        # they were one that is traced again.
        found = traced.get_concrete_function()(tensors)
        return keras.tree.map_structure(lambda x: x.numpy(), found)

    return run


def wait_for(other, x):
    """Gives `x`, of which nothing is computed before `other` is there."""
    import tensorflow as tf

    with tf.control_dependencies([other]):
        return tf.identity(x)


def after(tensors):
    """Where operations that are made wait for tensors, in a TensorFlow graph.

    Args:
        tensors: List of tensors.
    """
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.control_dependencies(tensors)

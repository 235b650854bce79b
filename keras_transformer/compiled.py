"""Functions of a model that are compiled and kept, on every backend."""

import contextlib
import numbers
import threading

import keras

from keras_transformer.tensorflow_only.forks import check_not_forked
from keras_transformer.tensorflow_only.graphs import graph
from keras_transformer.weights import sync_weights

# Functions of a model that are kept; each search with other options is one.
MOST_KEPT = 32

# What Keras sets itself.
OF_KERAS = (
    "compiled",
    "loss",
    "training",
    "stop_training",
    "stop_evaluating",
    "stop_predicting",
    "steps_per_execution",
    "unrolled_steps_per_execution",
)


class CompiledFunctions:
    """A least-recently-used cache of the compiled functions of a model.

    Not a list or dictionary in the model, which Keras would track.
    """

    def __init__(self, model):
        self.model = model
        self.compiled = {}  # the last used is last
        self.lock = threading.Lock()

    def run(self, key, function, inputs, jit_compile):
        """Runs `function(inputs)` on a dictionary of arrays, to arrays.

        Args:
            key: Tells functions apart.
            function: Function of a dictionary of tensors to tensors, of any
                structure, which computes with the model.
            inputs: Dictionary of arrays.
            jit_compile: Whether to compile with XLA, once for each shape; a
                graph of TensorFlow is traced once for all.

        Raises:
            RuntimeError: If this process is a fork, in which TensorFlow would
                wait for ever.
        """
        check_not_forked()
        call = key, tuple(inputs), jit_compile
        with self.lock:
            state = self._state()
            compiled = self.compiled.pop((call, state), None)
            if compiled is None:
                self._build_late_layers()
                state = self._state()
                compiled = self._compiled(function, inputs, jit_compile)
            self.compiled[call, state] = compiled  # now the last used
            if len(self.compiled) > MOST_KEPT:
                del self.compiled[next(iter(self.compiled))]
        return compiled(inputs)

    def _build_late_layers(self):
        """Builds the layers of a subclass, so that tracing makes no weights.

        They would make another state, and on JAX be gone afterwards.
        """
        # Those that are built from further inputs only `call` reads.
        with contextlib.suppress(ValueError):
            self.model.build_all()

    def _state(self):
        """All of a model that a user may change; another is compiled for."""
        weights = map(id, self.model.weights)  # quantised layers have others
        return (
            self.model.max_length,
            tuple(_plain_attributes(self.model)),
            tuple(weights),
        )

    def _compiled(self, function, inputs, jit_compile):
        backend = keras.backend.backend()
        if backend == "tensorflow" and not jit_compile:
            return graph(function, inputs)
        if backend == "jax":
            return _stateless(self.model, function, jit_compile)
        compiled = _Function(self.model, function)
        compiled.compile(jit_compile=jit_compile)
        return compiled.predict_on_batch


def _plain_attributes(model):
    """The public numbers and strings of a model, as those of a subclass."""
    return [
        (name, value)
        for name, value in list(vars(model).items())
        if isinstance(value, (numbers.Number, str))
        and not name.startswith("_")
        and name not in OF_KERAS
    ]


class _Function(keras.Model):
    """Runs a function as a model, which Keras compiles."""

    def __init__(self, model, function):
        super().__init__(name="function")
        self.model = model
        self.function = function
        self.built = True

    def call(self, inputs):
        return self.function(inputs)


def _stateless(model, function, jit_compile):
    """Runs with JAX, which leaves the weights where they are.

    Keras would donate their memory to each call, and take it back afterwards:
    no other thread could use the model in the meantime.
    """
    import jax

    def compiled(values, inputs):
        state = zip(model.weights, values, strict=True)
        with keras.StatelessScope(state_mapping=state):
            return function(inputs)

    if jit_compile:
        compiled = jax.jit(compiled)

    def run(inputs):
        sync_weights(model)
        outputs = compiled([w.value for w in model.weights], inputs)
        return keras.tree.map_structure(keras.ops.convert_to_numpy, outputs)

    return run

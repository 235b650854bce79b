"""Functions of a model that Keras compiles, on every backend."""

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


class _Function(keras.Model):
    """Runs a function as a model, which Keras compiles."""

    def __init__(self, model, function):
        super().__init__(name="function")
        self.model = model
        self.function = function
        self.built = True

    def call(self, inputs):
        return self.function(self.model, inputs)

"""TensorFlow operations that `keras.ops` lacks.

Only here does the core import tensorflow, and only if it is Keras's backend:
`leave_gpus_to_keras` alone, which text calls, is for the other backends.
"""

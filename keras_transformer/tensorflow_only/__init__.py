"""TensorFlow operations that `keras.ops` lacks.

Only here does the core import tensorflow, and only if it is Keras's backend.
The exception is `leave_gpus_to_keras`, which is for the other backends.
"""

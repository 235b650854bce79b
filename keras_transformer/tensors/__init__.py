"""Computing with tensors on every backend, where `keras.ops` has no words.

Nothing here knows of layers; what only TensorFlow has is in `tensorflow_only`.
"""

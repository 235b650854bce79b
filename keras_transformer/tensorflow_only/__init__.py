"""What Keras has no name for, where it runs on TensorFlow.

Here alone the core imports tensorflow, and only where Keras runs on it.
"""

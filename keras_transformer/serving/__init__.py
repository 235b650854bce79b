"""Exported models: what their graphs contain, and how files are written.

Nothing is imported here: running a LiteRT file must not need TensorFlow.
"""

"""Exported models: what their graphs contain, and how files are written.

Nothing is imported here: what runs a LiteRT file needs no TensorFlow.
"""

"""Processes that were forked, in which TensorFlow waits for ever.

A fork has none of the threads that TensorFlow's operations wait for.
"""

import os

import keras


class _Began:
    """Where TensorFlow began to compute; a fork has it from its parent."""

    process = None


def note_process():
    """Notes, once, that TensorFlow computes in this process.

    Raises:
        RuntimeError: As `check_not_forked`.
    """
    check_not_forked()
    if keras.backend.backend() == "tensorflow":
        _Began.process = os.getpid()


def check_not_forked():
    """Raises `RuntimeError` in the fork of a process that had a model."""
    if _Began.process not in (None, os.getpid()):
        raise RuntimeError(
            "TensorFlow does not compute in a process that was forked from one "
            "with a model. Received: a fork of process "
            f"{_Began.process}. Load the model in each process, after the fork "
            "(gunicorn without `--preload`), or start processes with "
            "`multiprocessing.get_context('spawn')`."
        )

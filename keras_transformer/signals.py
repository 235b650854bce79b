"""What signals do to this process."""

import contextlib
import os
import signal
import threading

from keras_transformer.atomic import remove_unfinished


@contextlib.contextmanager
def signals_handled(handler, *numbers):
    """Handles signals inside the block, except those ignored, as by `nohup`.

    Only in the main thread: Python allows no other one to have handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    before = {number: signal.getsignal(number) for number in numbers}
    for number, old in before.items():
        if old is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old or signal.SIG_DFL)


def end_by_signal(number, frame):
    """Ends the process, and leaves nothing half written.

    As soon as Python runs again: what TensorFlow computes in C++ is finished
    first. Not by an exception, which TensorFlow would turn into an error if it
    came in the middle of a graph.
    """
    remove_unfinished()
    os._exit(128 + number)

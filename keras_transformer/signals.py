"""What signals do to this process."""

import contextlib
import os
import signal
import threading

from keras_transformer.atomic import remove_unfinished


@contextlib.contextmanager
def signals_handled(handler, *numbers):
    """Has a handler inside for signals that are not ignored, as by `nohup`.

    In the main thread: Python lets no other one have handlers.
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
    """Ends, and leaves no half of what is written.

    Once Python runs: what TensorFlow computes in C++ goes on until its end.
    Not by an exception, of which TensorFlow, in the middle of a graph, would
    make an error.
    """
    remove_unfinished()
    os._exit(128 + number)

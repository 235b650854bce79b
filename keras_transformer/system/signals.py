"""What signals do to this process."""

import contextlib
import signal
import threading


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


@contextlib.contextmanager
def signals_delayed(*numbers):
    """Lets signals wait until the block has ended.

    Except those that a library handles without Python, as jax may.
    """
    numbers = [x for x in numbers if signal.getsignal(x) is not None]
    came = []
    try:
        with signals_handled(lambda number, _: came.append(number), *numbers):
            yield
    finally:
        for number in came:
            signal.raise_signal(number)

"""This process: its cores, streams, signals and log."""

import atexit
import contextlib
import io
import os
import signal
import sys
import tempfile
import threading

from keras_transformer.atomic import remove_unfinished


def start_watcher():
    """Explains the end of this process where it cannot do so itself.

    Where the first of several processes is lost, jax aborts the others, and
    Python with them. Gives a file that tells the watcher of any other end.
    """
    watched, watcher = os.pipe()
    if not os.fork():
        os.close(watcher)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if not os.read(watched, 1):
            print(
                "keras-transformer: This process was ended by force: by a "
                "signal, or by jax, as the first process is lost. The same "
                "command in all processes, without `--overwrite`, goes on from "
                "the last checkpoint.",
                file=sys.stderr,
                flush=True,
            )
        os._exit(0)
    os.close(watched)
    atexit.register(_tell, watcher)
    return watcher


def _tell(watcher):
    """Tells the watcher, if it still runs, that nothing is to be explained."""
    with contextlib.suppress(OSError):
        os.write(watcher, b".")


def end_at_once(watcher, code):
    """Ends without the minutes that jax waits for processes that are lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    _tell(watcher)
    os._exit(code)


def num_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def open_closed_streams():
    """Opens streams that the shell has closed, as by `<&-`, on `/dev/null`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # In this order, each takes the number of its stream.
            setattr(sys, name, open(os.devnull, mode))


def write_utf_8():
    """Writes text as it is read, whatever the locale says."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


def forget_output():
    """Drops what standard output does not take.

    A full disk, or whoever read and has gone. Python would try again as it
    ends, and say so in a traceback.
    """
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(io.UnsupportedOperation):  # one of Python's
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


@contextlib.contextmanager
def quiet_start():
    """Keeps back what TensorFlow logs when it starts, unless it fails.

    No setting of TensorFlow silences those lines, and the one line of an
    error would drown in them. Ctrl-C ends the program at once: there is nothing
    to save, and Python loses an exception that comes in a callback of jax.
    """
    with signals_handled(signal.SIG_DFL, signal.SIGINT), log_kept_back():
        yield
        import tensorflow as tf

        tf.config.list_physical_devices()


@contextlib.contextmanager
def log_kept_back():
    """Shows what is written to standard error inside only if that fails."""
    sys.stderr.flush()
    real = os.dup(2)
    with _open_log() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(real, 2)
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(real, 2)
            os.close(real)


def _open_log():
    """Opens what is nowhere on disk, which may be read only."""
    if hasattr(os, "memfd_create"):  # Linux
        return open(os.memfd_create("log"), "w+b")
    return tempfile.TemporaryFile()

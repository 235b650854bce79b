"""The standard streams of the command, and what TensorFlow logs to them."""

import contextlib
import io
import os
import signal
import sys
import tempfile

from keras_transformer.signals import signals_handled


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

    The disk is full, or the reader of the pipe has gone. Python would try again
    as it ends, and say so in a traceback.
    """
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(io.UnsupportedOperation):  # one of Python's
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def quiet_start():
    """Keeps back what TensorFlow logs when it starts, unless it fails.

    No setting of TensorFlow silences those lines, and the one line of an
    error would drown in them. Ctrl-C ends the program at once: there is nothing
    to save, and Python loses an exception that comes in a callback of jax.
    """
    with signals_handled(signal.SIG_DFL, signal.SIGINT), log_kept_back():
        yield
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow:  # without it the JAX backend translates too
            tensorflow.config.list_physical_devices()


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

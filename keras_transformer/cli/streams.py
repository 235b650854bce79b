"""The standard streams of the command, and what TensorFlow logs to them."""

import contextlib
import io
import os
import signal
import sys
import tempfile

from keras_transformer.system.signals import signals_handled
from keras_transformer.system.streams import GuardedStream


def open_closed_streams():
    """Opens streams that the shell closed, as with `<&-`, on `/dev/null`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Opened in this order, each gets its stream's descriptor.
            setattr(sys, name, open(os.devnull, mode))


def write_utf_8():
    """Makes standard output UTF-8, as all input is, whatever the locale."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


@contextlib.contextmanager
def messages_may_be_lost():
    """Lets nothing end because a message about it cannot be written.

    Standard error may be a full disk, or a pipe whose reader is gone.
    """
    messages = GuardedStream(sys.stderr, lambda: contextlib.suppress(OSError))
    with contextlib.redirect_stderr(messages):
        yield


def forget_output():
    """Drops what standard output does not accept.

    The disk is full, or the reader of the pipe is gone. Python would try again
    on exit, and print a traceback.
    """
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(io.UnsupportedOperation):  # no descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def quiet_start():
    """Hides what TensorFlow logs while it starts, unless it fails.

    No TensorFlow setting silences those lines, and a one-line error would
    drown in them. Ctrl-C ends the program at once: there is nothing to save,
    and Python loses an exception raised in a callback of jax.
    """
    with signals_handled(signal.SIG_DFL, signal.SIGINT), log_kept_back():
        yield
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow:  # without it the JAX backend translates too
            tensorflow.config.list_physical_devices()


@contextlib.contextmanager
def log_kept_back():
    """Holds back standard error, and shows it only if the block fails."""
    sys.stderr.flush()
    with _open_log() as log:
        real = os.dup(2)
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
    """Opens a file in memory where possible: the disk may be read-only."""
    if hasattr(os, "memfd_create"):  # Linux
        return open(os.memfd_create("log"), "w+b")
    return tempfile.TemporaryFile()

"""How a training is asked to stop, and stops once everything is saved."""

import contextlib
import errno
import functools
import os
import signal
import sys

from keras_transformer.system.signals import signals_handled
from keras_transformer.system.streams import GuardedStream


class Stopped(KeyboardInterrupt):
    """Training has stopped on request, in all processes, and is saved.

    Args:
        number: Number of the signal that asked for it; `None` for a SIGTERM
            that jax handled, which hides it.
    """

    def __init__(self, number: int | None):
        super().__init__()
        self.number = number or signal.SIGTERM


class Interrupt:
    """Makes the first Ctrl-C, SIGTERM or SIGHUP wait until all is saved.

    Python raises `KeyboardInterrupt` wherever it happens to be, and in a
    destructor the exception is lost; a request is not. What is printed to a
    terminal that is gone is dropped, and ends nothing either.

    Args:
        shared: Whether other processes are to stop with this one. SIGTERM is
            then left to jax, which tells them; SIGHUP ends this process alone.

    Attributes:
        requested: Number of the signal that has come, or `None`.
    """

    def __init__(self, shared: bool = False):
        self.shared = shared
        self.requested = None

    def __enter__(self):
        numbers = [signal.SIGINT]
        if not self.shared:
            numbers += [signal.SIGTERM, signal.SIGHUP]
        with contextlib.ExitStack() as stack:
            for redirect, stream in (
                (contextlib.redirect_stdout, sys.stdout),
                (contextlib.redirect_stderr, sys.stderr),
            ):
                if stream is None:
                    stream = stack.enter_context(open(os.devnull, "w"))
                guard = functools.partial(_dropped_if_gone, stream, self)
                stack.enter_context(redirect(GuardedStream(stream, guard)))
            stack.enter_context(signals_handled(self._on_signal, *numbers))
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._entered.__exit__(*error)

    def _on_signal(self, number, frame):
        if self.requested and number == signal.SIGHUP:
            return  # a shell and the system may both say that it hangs up
        if self.requested:
            raise KeyboardInterrupt
        self.requested = number
        message = (
            "\nStopping when this batch, or the end of this epoch, is saved. "
            "Interrupt once more to stop now."
        )
        # Of a full disk, or of Python: it has stopped in the middle of a print.
        with contextlib.suppress(OSError, RuntimeError):
            print(message, file=sys.stderr, flush=True)
        if self.shared:
            os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _dropped_if_gone(stream, interrupt):
    """Drops what is written to a terminal from now on if it is gone.

    Or to a pipe, as of `tee`, which the same signal ends.
    """
    try:
        yield
    except OSError as error:
        hung_up = error.errno == errno.EPIPE and interrupt.requested
        if error.errno != errno.EIO and not hung_up:
            raise
        nobody = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nobody, stream.fileno())
        os.close(nobody)

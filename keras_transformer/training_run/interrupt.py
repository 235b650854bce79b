"""How a training is asked to stop, and stops once everything is saved."""

import os
import signal
import sys

from keras_transformer.signals import signals_handled


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
    destructor the exception is lost; a request is not.

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
        self._handled = signals_handled(self._on_signal, *numbers)
        self._handled.__enter__()
        return self

    def __exit__(self, *error):
        self._handled.__exit__(*error)

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
        try:
            print(message, file=sys.stderr, flush=True)
        except OSError:
            _speak_to_nobody()
        if self.shared:
            os.kill(os.getpid(), signal.SIGTERM)


def _speak_to_nobody():
    """Drops what is written from now on, as the terminal is gone."""
    nobody = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nobody, descriptor)
    os.close(nobody)

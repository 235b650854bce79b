"""Explains why a process ended, if it cannot do so itself."""

import atexit
import contextlib
import os
import signal
import sys


def start_watcher():
    """Starts a process that explains this one's end if it cannot do so itself.

    If one of several processes is lost, jax may abort the others, and Python
    with them. Returns a file descriptor that `end_at_once` needs to tell
    the watcher of any other end.
    """
    watched, watcher = os.pipe()
    if not os.fork():
        os.close(watcher)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if not os.read(watched, 1):
            print(
                "keras-transformer: This process was ended by force: by a "
                "signal, or by jax, because another process is lost. Run the "
                "same command in all processes, without `--overwrite`, to go "
                "on from the last checkpoint, if there was one.",
                file=sys.stderr,
                flush=True,
            )
        os._exit(0)
    os.close(watched)
    atexit.register(_tell, watcher)
    return watcher


def _tell(watcher):
    """Tells the watcher, if it still runs, that there is nothing to explain."""
    with contextlib.suppress(OSError):
        os.write(watcher, b".")


def end_at_once(watcher, code):
    """Ends without waiting minutes for lost processes, as jax would."""
    sys.stdout.flush()
    sys.stderr.flush()
    _tell(watcher)
    os._exit(code)

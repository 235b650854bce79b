"""The interpreters of a LiteRT file, which threads and forks may share."""

import contextlib
import ctypes
import os
import queue
import threading
import weakref

from keras_transformer.checks import check_positive
from keras_transformer.system.extras import not_installed

# LiteRT starts all threads at once, and crashes where the system has no more.
MOST_THREADS = 1024


class Workers:
    """Lends the interpreters of a file, each to one thread at a time.

    In the fork of a process, new ones are made once they are asked for: it
    lacks the threads that those of its parent may be lent to, and the threads
    of these themselves.

    Args:
        path: The file, which `check_litert_file` has found right.
        num_threads: Threads of each interpreter.
        num_workers: How many interpreters there are.

    Raises:
        ImportError: If ai-edge-litert is not installed.
        RuntimeError: If LiteRT cannot read the file, or starts no thread.
        ValueError: If LiteRT cannot read the file.
    """

    def __init__(self, path, num_threads: int, num_workers: int):
        self._path = path
        self._num_threads = num_threads
        self._num_workers = num_workers
        self._file = _identity(path)
        self._lock = threading.Lock()
        self._idle = self._made()
        _all.add(self)

    @contextlib.contextmanager
    def lend(self):
        """Yields an interpreter that no other thread uses meanwhile.

        Raises:
            RuntimeError: If the file was written to since it was loaded; or if
                this is the fork of a process, and the file is not the one that
                was loaded there.
        """
        self._check_not_written_to()
        with self._lock:
            if self._idle is None:
                if self._file != _identity(self._path):
                    raise RuntimeError(
                        f"{self._path!r} has changed since it was loaded, "
                        "before this process was forked. Load it again."
                    )
                self._idle = self._made()
            idle = self._idle
        interpreter = idle.get()
        try:
            yield interpreter
        finally:
            idle.put(interpreter)

    def _check_not_written_to(self):
        """Raises `RuntimeError` if the file itself has other content by now.

        LiteRT has it mapped into memory, so that its weights would be those of
        both. Another file of that name changes nothing.
        """
        loaded, found = self._file, _identity(self._path)
        is_same_file = loaded and found and loaded[0] == found[0]
        if is_same_file and loaded != found:
            raise RuntimeError(
                f"{self._path!r} was written to since it was loaded. Load it "
                "again. To replace a file in use, write another one beside it, "
                "and rename that."
            )

    def leave_to_parent(self):
        """Forgets, in a fork, the interpreters of its parent."""
        # Never freed, which would wait for their threads.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._idle))
        self._idle = None
        self._lock = threading.Lock()  # it may have been locked

    def _made(self):
        try:
            from ai_edge_litert import interpreter
        except ModuleNotFoundError as error:
            raise ImportError(
                not_installed("`LiteRTTranslator`", error.name, "litert")
            ) from error
        idle = queue.SimpleQueue()
        for _ in range(self._num_workers):
            idle.put(
                interpreter.Interpreter(
                    self._path, num_threads=self._num_threads
                )
            )
        return idle


def check_threads(num_threads: int, num_workers: int):
    """Raises `ValueError` if there would be too many threads, or none."""
    check_positive(num_threads=num_threads, num_workers=num_workers)
    if num_threads * num_workers > MOST_THREADS:
        raise ValueError(
            "`num_threads` times `num_workers` must be at most "
            f"{MOST_THREADS}. Received: num_threads={num_threads}, "
            f"num_workers={num_workers}."
        )


_all = weakref.WeakSet()


def leave_all_to_parent():
    """Lets all workers of a fork begin anew."""
    for workers in _all:
        workers.leave_to_parent()


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=leave_all_to_parent)


def _identity(path):
    """What differs once a file has been replaced."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size

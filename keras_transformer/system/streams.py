"""Streams to whom, or to what, may go."""


class GuardedStream:
    """A stream in which a guard may take errors of writing.

    Args:
        stream: The stream.
        guard: Function to a context manager, in which each text is written.
    """

    def __init__(self, stream, guard):
        self._stream = stream
        self._guard = guard

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        """Writes a text, or not, and returns its length."""
        with self._guard():
            self._stream.write(text)
        return len(text)

    def flush(self):
        """Hands on what was written."""
        with self._guard():
            self._stream.flush()

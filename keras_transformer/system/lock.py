"""Locks of files and folders."""

import errno
import fcntl

# Errors of `flock` on some network file systems.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
WITHOUT_WAITING = fcntl.LOCK_EX | fcntl.LOCK_NB


def lock(file, wait: bool) -> bool:
    """Locks an open file or folder until it is closed.

    Args:
        file: The open file, or its descriptor.
        wait: Whether to wait until no other process has the lock.

    Returns:
        Whether the file system has locks; some network file systems do not.

    Raises:
        BlockingIOError: If another process has the lock, unless `wait`.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else WITHOUT_WAITING)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True

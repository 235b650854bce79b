"""Files: written whole or not at all, locked, and told apart."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable

# What `flock` fails with on some network file systems.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
WITHOUT_WAITING = fcntl.LOCK_EX | fcntl.LOCK_NB

# What the system would take for folders on this machine.
ADDRESS = re.compile(r"\w+://")

_unfinished = set()  # files and folders that are being filled


def write_file(path, content: bytes | Callable, check: Callable | None = None):
    """Writes a file beside its place, then renames it there.

    What it replaces gives it its permissions. A link stays one, and what is
    no file, such as a terminal or a pipe, is written to.

    Args:
        path: The file.
        content: Its bytes; or a function that writes them to the path that it
            is called with.
        check: Called before the rename; raises if what is at `path` by then
            may not be replaced.

    Raises:
        OSError: If nothing can be written there.
        ValueError: If the path is an address, such as `gs://`.
    """
    check_local(path)
    if _is_special(path):
        _fill(path, content)
        return
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    partial = _beside(path)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    mode = _mode_of(path)  # nobody may read it who may not read the old one
    os.close(os.open(partial, flags, 0o666 if mode is None else mode | 0o600))
    _unfinished.add(partial)
    try:
        if mode is None:
            mode = _mode_of(partial)
        _fill(partial, content)
        with open(partial, "r+b") as file:
            os.fsync(file.fileno())
        os.chmod(partial, mode)  # a library may have made a file of its own
        if check is not None:
            check()
        os.replace(partial, path)
    except BaseException:
        _clean_up(partial)
        raise
    finally:
        _unfinished.discard(partial)


@contextlib.contextmanager
def new_folder(path, check: Callable):
    """Gives a folder to fill, which becomes `path` when the block ends well.

    Args:
        path: The folder to be. What is there is replaced; a link stays one.
        check: Called before and after the block; raises if it may not be:
            see `check_replaceable`.

    Raises:
        OSError: If no folder may be made there.
        ValueError: If the path is an address, such as `gs://`.
    """
    check_local(path)
    check()
    path = os.path.realpath(path)
    parent, name = os.path.split(path)
    check_folder_to_write(parent)
    os.makedirs(parent, exist_ok=True)
    partial = _beside(path)
    os.mkdir(partial)
    _unfinished.add(partial)
    try:
        yield partial
        check()
        mode = _mode_of(path)
        if mode is not None:
            os.chmod(partial, mode)
        _unfinished.discard(partial)  # it is whole, and the old one about to go
        if os.path.exists(path):
            old = tempfile.mkdtemp(prefix=f".{name}.old.", dir=parent)
            kept = os.path.join(old, name)
            try:
                os.rename(path, kept)
            except BaseException:
                os.rmdir(old)
                raise
            try:
                os.rename(partial, path)
            except BaseException:
                os.rename(kept, path)
                raise
            finally:
                if os.path.exists(path):
                    shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(partial, path)
    except BaseException:
        _clean_up(partial)
        raise
    finally:
        _unfinished.discard(partial)


@contextlib.contextmanager
def temporary_folder():
    """Gives a folder that is removed with the block, or with the process."""
    with tempfile.TemporaryDirectory() as folder:
        _unfinished.add(folder)
        try:
            yield folder
        finally:
            _unfinished.discard(folder)


def remove_unfinished():
    """Removes what is being filled, before the process ends."""
    for partial in [*_unfinished]:
        _clean_up(partial)


def remove(path):
    """Removes a file or a folder, if it is there.

    Raises:
        OSError: If something of it cannot be removed.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def lock(file, wait: bool) -> bool:
    """Locks an open file or folder until it is closed.

    Args:
        file: It, or its number.
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


def fingerprint(path) -> str:
    """The SHA-256 of a file, which tells it from one of other content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_address(path) -> bool:
    """Whether the path is an address, such as `gs://`."""
    return bool(ADDRESS.match(os.fsdecode(path)))


def check_local(path):
    """Raises `ValueError` if the path is an address, such as `gs://`."""
    if is_address(path):
        raise ValueError(
            "A place to write must be a path of this machine's file system. "
            f"Received: {os.fspath(path)!r}."
        )


def check_absent(path, overwrite: bool = False):
    """Raises `FileExistsError` if something is at `path`, and not empty."""
    check_local(path)
    if overwrite or not os.path.exists(path):
        return
    if os.path.isdir(path) and not os.listdir(path):
        return
    raise FileExistsError(
        f"{os.fspath(path)!r} exists already, and nothing in it was touched. "
        "Pass `overwrite=True` (`--overwrite`) to replace it."
    )


def check_replaceable(path, overwrite: bool, kind: str, mark: str):
    """Raises `FileExistsError` unless a folder may be made at `path`.

    Args:
        path: Where something may be already.
        overwrite: Whether it may be replaced, if it is of the same kind.
        kind: What a message calls a folder of that kind.
        mark: A file that every folder of that kind has.
    """
    path = os.path.realpath(path)
    if os.path.ismount(path):
        raise FileExistsError(
            f"{os.fspath(path)!r} is where a file system is mounted, and "
            "cannot be replaced. Choose a folder in it."
        )
    is_empty = os.path.isdir(path) and not os.listdir(path)
    if not os.path.lexists(path) or is_empty:
        return
    if not os.path.isfile(os.path.join(path, mark)):
        raise FileExistsError(
            f"{os.fspath(path)!r} holds something else than {kind}, and "
            "nothing in it was touched. Choose another folder."
        )
    check_absent(path, overwrite)


def check_file_to_write(path, overwrite: bool = False):
    """Raises `OSError` unless a file may be written at `path`.

    Before hours of work, rather than after.
    """
    if _is_special(path):
        return
    path = os.fspath(path)
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path!r} is a folder, not a file.")
    check_absent(path, overwrite)
    path = os.path.realpath(path)
    check_folder_to_write(os.path.dirname(path))


def check_folder_to_write(path):
    """Raises `OSError` unless files may be written in a folder, made or not."""
    path = os.path.realpath(path)
    while not os.path.exists(path):  # it will be made
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise NotADirectoryError(f"{path!r} is a file, not a folder.")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"Nothing may be written in {path!r}.")


def _fill(path, content):
    if callable(content):
        content(path)
        return
    with open(path, "wb") as file:
        file.write(content)


def _clean_up(partial):
    """Removes what is half done; an error on its way is what counts."""
    with contextlib.suppress(OSError):
        remove(partial)


def _mode_of(path):
    """The permissions of what is at a path, `None` where nothing is."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def _is_special(path):
    """Whether a device or a pipe is at the path, which is not replaced."""
    is_usual = os.path.isfile(path) or os.path.isdir(path)
    return os.path.exists(path) and not is_usual


def _beside(path):
    """A hidden name for what will be `path`, that nothing else has.

    Made by `open` and `mkdir` as any file or folder: those of `tempfile` are
    for their owner alone.
    """
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{secrets.token_hex(4)}")

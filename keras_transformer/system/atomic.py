"""Files and folders that are written whole or not at all."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable

from keras_transformer.system.lock import lock
from keras_transformer.system.paths import check_folder_to_write
from keras_transformer.system.paths import check_local
from keras_transformer.system.paths import check_name
from keras_transformer.system.paths import descriptor_at
from keras_transformer.system.paths import is_special
from keras_transformer.system.signals import signals_delayed

_unfinished = set()  # files and folders that are being filled


def write_file(path, content: bytes | Callable, check: Callable | None = None):
    """Writes a file beside its place, then renames it there.

    It keeps the permissions of the file it replaces. A link stays a link, and
    what is not a regular file, such as a terminal or a pipe, is written to, as
    is a file that is mounted by itself, or open as `/dev/stdout`.

    Args:
        path: The file.
        content: Its bytes; or a function that writes them to the path that it
            is called with, which must not be a stream, such as `/dev/stdout`.
        check: Called before the rename; raises if what is at `path` by then
            may not be replaced.

    Raises:
        OSError: If nothing can be written there.
        ValueError: If the path is an address, such as `gs://`.
    """
    path = os.fsdecode(path)
    check_local(path)
    if is_special(path) or descriptor_at(path) is not None:
        with _errors_naming(path):
            _fill(path, content)
        return
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    partial = _beside(path)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    mode = _mode_of(path)  # nobody else may read it than may read the old one
    os.close(os.open(partial, flags, 0o666 if mode is None else mode | 0o600))
    _unfinished.add(partial)
    try:
        if mode is None:
            mode = _mode_of(partial)
        with _errors_naming(path):
            _fill(partial, content)
            _sync_file(partial)
        os.chmod(partial, mode)  # a library may have made a file of its own
        if check is not None:
            check()
        try:
            os.replace(partial, path)
        except OSError as error:
            # A file that is mounted by itself, as into a container, stays.
            if error.errno != errno.EBUSY:
                raise
            _unfinished.discard(partial)  # the only copy, from here on
            _write_over(path, partial)
        _sync_folder(folder)
    except BaseException:
        if partial in _unfinished:
            _clean_up(partial)
        raise
    finally:
        _unfinished.discard(partial)


def _write_over(path, partial):
    """Moves the content of a file into another, which stays the same one."""
    try:
        with open(path, "r+b") as file, open(partial, "rb") as content:
            shutil.copyfileobj(content, file)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(
            error.errno, f"{error.strerror}; all of it is in {partial}", path
        ) from error
    os.unlink(partial)


@contextlib.contextmanager
def new_folder(path, check: Callable):
    """Yields a folder to fill, which becomes `path` if the block succeeds.

    Then it also removes what processes that were killed have left of theirs.

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
    parent = os.path.dirname(path)
    check_folder_to_write(parent)
    check_name(path)
    os.makedirs(parent, exist_ok=True)
    with _new_beside(path) as partial:
        _unfinished.add(partial)
        try:
            with _errors_naming(path):
                yield partial
                for inner, _, names in os.walk(partial):
                    for name in names:
                        _sync_file(os.path.join(inner, name))
                    _sync_folder(inner)
            check()
            mode = _mode_of(path)
            if mode is not None:
                os.chmod(partial, mode)
            # It is whole, and the old one about to go.
            _unfinished.discard(partial)
            if os.path.exists(path):
                _replace_folder(partial, path)
            else:
                os.rename(partial, path)
                _sync_folder(parent)
            with contextlib.suppress(OSError):  # as of a parent not to be read
                _remove_abandoned(path)
        except BaseException:
            _clean_up(partial)
            raise
        finally:
            _unfinished.discard(partial)


@contextlib.contextmanager
def temporary_folder():
    """Yields a folder that is removed after the block, or with the process."""
    with tempfile.TemporaryDirectory() as folder:
        _unfinished.add(folder)
        try:
            yield folder
        finally:
            _unfinished.discard(folder)


@contextlib.contextmanager
def own_temporary_files():
    """Has what libraries make with `tempfile` removed as `temporary_folder`."""
    before = tempfile.tempdir
    with temporary_folder() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def end_by_signal(number, frame):
    """Ends the process, and leaves nothing half written.

    As soon as Python runs again: what TensorFlow computes in C++ is finished
    first. Not by an exception, which TensorFlow would turn into an error if it
    came in the middle of a graph.
    """
    remove_unfinished()
    os._exit(128 + number)


def remove_unfinished():
    """Removes unfinished files and folders, before the process ends."""
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


def _replace_folder(new, path):
    """Renames a folder to that of another, which is removed if this succeeds.

    In two steps, between which no signal may end the process: Python has no
    function for one.
    """
    with _new_beside(path) as old:
        kept = os.path.join(old, os.path.basename(path))
        try:
            with signals_delayed(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.rename(path, kept)
                try:
                    os.rename(new, path)
                except BaseException:
                    os.rename(kept, path)
                    raise
                _sync_folder(os.path.dirname(path))  # the old one goes next
                _unfinished.add(old)  # for a signal that has waited
        finally:
            if os.path.exists(path):
                shutil.rmtree(old, ignore_errors=True)
            _unfinished.discard(old)


@contextlib.contextmanager
def _new_beside(path):
    """Yields a new hidden folder beside `path`, which the caller removes.

    `_remove_abandoned` takes it once this process is killed, and not before.
    """
    folder = _beside(path)
    os.mkdir(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # of a file system without locks
            lock(descriptor, wait=False)
        yield folder
    finally:
        os.close(descriptor)


def _remove_abandoned(path):
    """Removes folders of `_new_beside` that no process uses any more."""
    parent = os.path.dirname(path)
    names = re.compile(rf"{re.escape(_hidden(path))}\.[0-9a-f]{{8}}")
    for name in filter(names.fullmatch, os.listdir(parent)):
        partial = os.path.join(parent, name)
        with contextlib.suppress(OSError):  # it is in use, or another's
            descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if lock(descriptor, wait=False):
                    shutil.rmtree(partial)
            finally:
                os.close(descriptor)


def _sync_file(path):
    """Waits until a file is on the disk, whatever happens afterwards."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path):
    """Waits until the names in a folder are on the disk.

    Where it can: it need not be readable, and not every file system does.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _fill(path, content):
    if callable(content):
        content(path)
        return
    descriptor = descriptor_at(path)
    # Opened by its name, a file that the shell has opened would be emptied.
    with open(path if descriptor is None else os.dup(descriptor), "wb") as file:
        file.write(content)


@contextlib.contextmanager
def _errors_naming(path):
    """Gives the name to errors of the system without one, as of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


def _clean_up(partial):
    """Removes an unfinished file or folder, without an error of its own."""
    with contextlib.suppress(OSError):
        remove(partial)


def _mode_of(path):
    """The permissions of what is at a path, or `None`."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def _beside(path):
    """A hidden and unique name beside `path`, for what will be renamed to it.

    The caller creates it as any file or folder: those of `tempfile` may be
    read by their owner alone.
    """
    name = f"{_hidden(path)}.{secrets.token_hex(4)}"
    return os.path.join(os.path.dirname(path), name)


def _hidden(path):
    """The start of a hidden name that tells what it belongs to.

    A file system takes names of 255 bytes, 4 for a character at most.
    """
    return f".{os.path.basename(path)[:50]}"

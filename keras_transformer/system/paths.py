"""What is at a path, and whether something may be written there."""

import contextlib
import hashlib
import os
import re
import stat

# The operating system would take these for folders on this machine.
ADDRESS = re.compile(r"\w+://")

# What this process has open, by number or by name.
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")
STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}

# What an address becomes in a `pathlib.Path`, which keeps no empty folder
# names. On Windows, one letter is a drive.
LOST_ADDRESS = re.compile(r"(\w{2,}:)//?")


def fingerprint(path) -> str:
    """The SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_address(path) -> bool:
    """Whether the path is an address, such as `gs://`."""
    return bool(ADDRESS.match(os.fsdecode(path)))


def check_local(path):
    """Raises `ValueError` if the path is an address, such as `gs://`."""
    path = os.fsdecode(path)
    if LOST_ADDRESS.match(path):
        typed = LOST_ADDRESS.sub(r"\1//", path, count=1)
        raise ValueError(
            "The path must be on this machine's file system. Received: "
            f"{typed!r}."
        )


def check_absent(path, overwrite: bool = False):
    """Raises `FileExistsError` if something that is not empty is at `path`."""
    check_local(path)
    if overwrite or not os.path.exists(path):
        return
    if os.path.isdir(path) and not os.listdir(path):
        return
    raise FileExistsError(
        f"{os.fspath(path)!r} exists already, and nothing in it was touched. "
        "Pass `overwrite=True` (`--overwrite`) to replace it."
    )


def check_replaceable(path, overwrite: bool, kind: str, *marks: str):
    """Raises `OSError` unless a folder may be made at `path`.

    Args:
        path: Where something may be already.
        overwrite: Whether it may be replaced, if it is of the same kind.
        kind: What a message calls a folder of that kind.
        *marks: Files that every folder of that kind has.
    """
    path = os.path.realpath(path)
    if os.path.ismount(path):
        raise FileExistsError(
            f"{os.fspath(path)!r} is where a file system is mounted, and "
            "cannot be replaced. Choose a folder in it."
        )
    if _holds_current_folder(path):  # which would be removed under a shell
        raise FileExistsError(
            f"{os.fspath(path)!r} is the current folder, or one above it, and "
            "cannot be replaced. Choose another folder."
        )
    _check_own(path)
    is_empty = os.path.isdir(path) and not os.listdir(path)
    if not os.path.lexists(path) or is_empty:
        return
    if not all(os.path.isfile(os.path.join(path, mark)) for mark in marks):
        raise FileExistsError(
            f"{os.fspath(path)!r} holds something other than {kind}, and "
            "nothing in it was touched. Choose another folder."
        )
    check_absent(path, overwrite)


def check_file_to_write(path, overwrite: bool = False):
    """Raises `OSError` unless a file may be written at `path`.

    To find out before hours of work rather than after.
    """
    descriptor = descriptor_at(path)
    if descriptor is not None:
        _check_open_to_write(path, descriptor)
        return
    if is_special(path):
        return
    _check_own(path)
    path = os.fsdecode(path)
    # "" is one, and what ends with a slash was meant to be one.
    if os.path.isdir(os.path.realpath(path)) or path.endswith(os.sep):
        raise IsADirectoryError(f"{path!r} is a folder, not a file.")
    check_absent(path, overwrite)
    path = os.path.realpath(path)
    check_folder_to_write(os.path.dirname(path))
    check_name(path)


def check_utf8(path):
    """Raises `ValueError` if a library that wants strings cannot take it."""
    path = os.fsdecode(path)
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The path must be UTF-8 for this format. Received: {path!r}."
        ) from error


def check_name(path):
    """Raises `OSError` if the file system takes no such name, as one too long.

    To rename something to it would be the last step.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.stat(path)


def _check_own(path):
    """Raises `PermissionError` if it is another user's, in a folder like /tmp.

    With the sticky bit of such a folder, only owners may replace what is in it.
    """
    path = os.path.realpath(path)
    if not os.path.exists(path):
        return
    folder = os.stat(os.path.dirname(path))
    owners = 0, folder.st_uid, os.stat(path).st_uid
    if folder.st_mode & stat.S_ISVTX and os.geteuid() not in owners:
        raise PermissionError(
            f"Cannot replace {path!r}: it is another user's, in a folder where "
            "only owners may."
        )


def check_folder_to_write(path):
    """Raises `OSError` unless files may be written in a folder, made or not."""
    path = os.path.realpath(path)
    check_name(path)
    while not os.path.exists(path):  # it will be made
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise NotADirectoryError(f"{path!r} is a file, not a folder.")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"Cannot write in {path!r}.")


def _holds_current_folder(path):
    """Whether a real path is that of the current folder, or above it."""
    try:
        current = os.path.realpath(os.getcwd())
    except FileNotFoundError:
        return False  # it was removed
    return os.path.commonpath([path, current]) == path


def is_special(path):
    """Whether a device or a pipe is at the path: it is not replaced."""
    is_usual = os.path.isfile(path) or os.path.isdir(path)
    return os.path.exists(path) and not is_usual


def descriptor_at(path) -> int | None:
    """The descriptor that a path such as `/dev/stdout` names, or `None`.

    The shell may have opened a file there, of which only a part is ours.
    """
    path = os.path.abspath(os.fsdecode(path))
    number = DESCRIPTOR.fullmatch(path)
    return int(number[1]) if number else STREAMS.get(path)


def _check_open_to_write(path, descriptor):
    """Raises `OSError` unless this process has it open to write."""
    try:
        os.write(descriptor, b"")
    except OSError as error:
        raise OSError(
            error.errno, f"Not open to be written: {os.fspath(path)!r}."
        ) from error


def check_file(path) -> str:
    """Returns `path` as a string, or raises `FileNotFoundError`.

    A pipe counts as a file, though it can be read only once. An address raises
    `ValueError`.
    """
    path = os.fsdecode(path)
    if os.path.isdir(path):
        raise FileNotFoundError(f"No such file: {path!r} is a folder.")
    if not os.path.exists(path):
        check_local(path)
        raise FileNotFoundError(f"No such file: {path!r}.")
    return path

"""Files that are there whole or not at all."""

import contextlib
import os
import shutil
import tempfile


def write_file(path, content: bytes):
    """Writes a file beside its place, then renames it there."""
    path = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(
        prefix=f".{os.path.basename(path)}.", dir=folder
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
        raise


@contextlib.contextmanager
def new_folder(path, overwrite: bool = False):
    """Gives a folder to fill, which becomes `path` when the block ends well.

    Raises:
        FileExistsError: If `path` exists, unless `overwrite`.
    """
    path = os.path.abspath(os.fspath(path))
    check_absent(path, overwrite)
    parent, name = os.path.split(path)
    os.makedirs(parent, exist_ok=True)
    partial = tempfile.mkdtemp(prefix=f".{name}.", dir=parent)
    try:
        yield partial
        os.chmod(partial, 0o777 & ~_umask())
        if os.path.exists(path):
            old = tempfile.mkdtemp(prefix=f".{name}.old.", dir=parent)
            os.rename(path, os.path.join(old, name))
            try:
                os.rename(partial, path)
            except BaseException:
                os.rename(os.path.join(old, name), path)
                raise
            finally:
                shutil.rmtree(old)
        else:
            os.rename(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def check_absent(path, overwrite: bool = False):
    """Raises `FileExistsError` if something is at `path`, and not empty."""
    if overwrite or not os.path.exists(path):
        return
    if os.path.isdir(path) and not os.listdir(path):
        return
    raise FileExistsError(
        f"{os.fspath(path)!r} exists already, and nothing in it was touched. "
        "Pass `overwrite=True` (`--overwrite`) to replace it."
    )


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask

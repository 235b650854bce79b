"""Where files are written: beside their place, through links, into pipes."""

import errno
import functools
import os
import pathlib
import shutil
import signal
import stat
import threading

import pytest

from keras_transformer.system import lock
from keras_transformer.system.atomic import end_by_signal
from keras_transformer.system.atomic import new_folder
from keras_transformer.system.atomic import remove
from keras_transformer.system.atomic import remove_unfinished
from keras_transformer.system.atomic import temporary_folder
from keras_transformer.system.atomic import write_file
from keras_transformer.system.paths import check_absent
from keras_transformer.system.paths import check_file
from keras_transformer.system.paths import check_file_to_write
from keras_transformer.system.paths import check_replaceable
from keras_transformer.system.paths import check_utf8
from keras_transformer.system.paths import descriptor_at
from keras_transformer.system.signals import signals_handled


def test_a_link_stays_one(tmp_path):
    file, link = tmp_path / "there" / "file", tmp_path / "link"
    file.parent.mkdir()
    file.write_bytes(b"old")
    link.symlink_to(file)
    write_file(link, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert os.listdir(file.parent) == ["file"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_to_a_folder_stays_one(tmp_path, exists):
    folder, link = tmp_path / "there" / "1", tmp_path / "current"
    folder.parent.mkdir()
    if exists:
        folder.mkdir()
        (folder / "mark").touch()
    link.symlink_to(folder)
    check = functools.partial(check_replaceable, link, True, "a model", "mark")
    with new_folder(link, check) as new:
        (pathlib.Path(new) / "new").touch()
    assert link.is_symlink()
    assert os.listdir(folder) == ["new"]
    assert os.listdir(folder.parent) == ["1"]


@pytest.mark.parametrize("as_function", [False, True])
def test_a_pipe_is_written_to(tmp_path, as_function):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(
        target=lambda: read.append(pipe.read_bytes()), daemon=True
    )
    reader.start()

    def write(path):
        with open(path, "wb") as file:
            file.write(b"content")

    check_file_to_write(pipe)
    write_file(pipe, write if as_function else b"content")
    reader.join(timeout=30)
    assert read == [b"content"]
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path):
    longest = tmp_path / ("ü" * 127 + "x")  # of 255 bytes
    check_file_to_write(longest)
    write_file(longest, b"content")
    assert longest.read_bytes() == b"content"
    longest.unlink()
    for _ in range(2):  # made, and replaced
        with new_folder(longest, bool):
            pass
    assert os.listdir(tmp_path) == [longest.name]
    longer = tmp_path / f"{longest.name}x"
    with pytest.raises(OSError, match="name too long"):
        check_file_to_write(longer)
    with pytest.raises(OSError, match="name too long"):
        with new_folder(longer, bool):
            raise AssertionError("it is filled")
    assert os.listdir(tmp_path) == [longest.name]


def test_paths_may_be_bytes(tmp_path):
    write_file(os.fsencode(tmp_path / "file"), b"content")
    assert check_file(os.fsencode(tmp_path / "file")) == f"{tmp_path}/file"
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_folder_in_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file' is a file, not a fol"):
        with new_folder(tmp_path / "file" / "folder", bool):
            pass
    assert os.listdir(tmp_path) == ["file"]


def test_modes_are_those_of_any_file_and_folder(tmp_path, monkeypatch):
    mask = os.umask(0o027)
    try:
        with monkeypatch.context() as during:
            # Which is of the whole process: other threads write files too.
            during.delattr(os, "umask")
            write_file(tmp_path / "file", b"content")
            with new_folder(tmp_path / "folder", bool) as folder:
                open(os.path.join(folder, "file"), "wb").close()
    finally:
        os.umask(mask)
    assert stat.S_IMODE(os.stat(tmp_path / "file").st_mode) == 0o640
    assert stat.S_IMODE(os.stat(tmp_path / "folder").st_mode) == 0o750
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_what_is_replaced_gives_its_mode(tmp_path):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch()
    folder.mkdir()
    modes = []

    def write(path):
        modes.append(stat.S_IMODE(os.stat(path).st_mode))
        with open(path, "wb") as partial:
            partial.write(b"content")

    for mode in (0o600, 0o640, 0o400):
        os.chmod(file, mode)
        write_file(file, write)
        assert stat.S_IMODE(os.stat(file).st_mode) == mode
        assert modes.pop() & 0o077 == mode & 0o077 & ~0o022
    os.chmod(folder, 0o700)
    with new_folder(folder, bool) as new:
        open(os.path.join(new, "file"), "wb").close()
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert os.listdir(folder) == ["file"]


def test_a_pipe_of_the_shell_is_written_to():
    read, write = os.pipe()
    path = f"/dev/fd/{write}"  # as `>(command)` is
    check_file_to_write(path)
    write_file(path, b"content")
    os.close(write)
    with open(read, "rb") as file:
        assert file.read() == b"content"


def test_what_the_shell_appends_to_is_not_replaced(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    with open(path, "ab") as file:  # as `>> log` opens it
        name = f"/dev/fd/{file.fileno()}"
        check_file_to_write(name)
        write_file(name, b"content\n")
    assert path.read_bytes() == b"before\ncontent\n"
    assert descriptor_at("/dev/stdout") == 1
    assert descriptor_at(path) is None
    with (
        open(path, "rb") as file,
        pytest.raises(OSError, match="Not open to be written: '/dev/fd/"),
    ):
        check_file_to_write(f"/dev/fd/{file.fileno()}")


def test_a_file_is_replaced_only_when_asked(tmp_path):
    path = tmp_path / "file"
    check_file_to_write(path)
    path.touch()
    with pytest.raises(FileExistsError, match="file' exists already"):
        check_file_to_write(path)
    check_file_to_write(path, overwrite=True)
    with pytest.raises(IsADirectoryError, match="'' is a folder, not a file"):
        check_file_to_write("")  # the current one
    with pytest.raises(IsADirectoryError, match="new/' is a folder, not a fi"):
        check_file_to_write(f"{tmp_path}/new/")
    with pytest.raises(IsADirectoryError, match="is a folder, not a file"):
        check_file_to_write(tmp_path, overwrite=True)


def test_what_came_meanwhile_is_kept(tmp_path):
    path = tmp_path / "path"
    check = functools.partial(check_absent, path)

    def other_comes(partial):
        path.mkdir()
        (path / "other").touch()

    with pytest.raises(FileExistsError, match="path' exists already"):
        write_file(path, other_comes, check)
    shutil.rmtree(path)
    with (
        pytest.raises(FileExistsError, match="path' exists already"),
        new_folder(path, check) as folder,
    ):
        other_comes(folder)
    assert os.listdir(tmp_path) == ["path"]
    assert os.listdir(path) == ["other"]


def test_a_place_for_a_file_is_checked_before_it_is_made(tmp_path):
    (tmp_path / "file").touch()
    for path in ("file/x", "file/y/x"):
        with pytest.raises(NotADirectoryError, match="file' is a file, not a"):
            check_file_to_write(tmp_path / path)
    check_file_to_write(tmp_path / "new" / "folder" / "x")
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_is_mounted_is_written_to(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EBUSY, "Device or resource busy", target)

    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    monkeypatch.setattr(os, "replace", refuse)
    number = path.stat().st_ino
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino == number
    assert os.listdir(tmp_path) == ["file"]

    def fill_disk(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill_disk)
    with pytest.raises(OSError, match="all of it is in .*file") as error:
        write_file(path, b"newer")
    (kept,) = (other for other in tmp_path.iterdir() if other != path)
    assert str(kept) in str(error.value)
    assert kept.read_bytes() == b"newer"


def test_an_error_names_what_was_to_be_written(tmp_path):
    def fill_disk(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = str(tmp_path / "file")
    with pytest.raises(OSError, match="No space left") as of_a_file:
        write_file(path, fill_disk)
    with pytest.raises(OSError, match="No space left") as of_a_folder:
        with new_folder(path, lambda: None) as folder:
            fill_disk(folder)
    for raised in (of_a_file, of_a_folder):
        assert raised.value.errno == errno.ENOSPC
        assert raised.value.filename == path
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        *("gs://bucket/en-de", b"s3://bucket/en-de"),
        pathlib.Path("gs://bucket/en-de"),
    ],
)
def test_an_address_is_no_place(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make_folder():
        with new_folder(path, lambda: None):
            pass

    for write in (
        make_folder,
        lambda: write_file(path, b""),
        lambda: check_absent(path, overwrite=True),
    ):
        with pytest.raises(ValueError, match="machine.*'..?://bucket/en-de'"):
            write()
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_removed_is_said(tmp_path, monkeypatch):
    def fail(path):
        raise PermissionError(13, "Permission denied", path)

    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.raises(PermissionError):
        remove(tmp_path / "folder")
    with pytest.raises(RuntimeError, match="what counts"):
        with new_folder(tmp_path / "new", lambda: None):
            raise RuntimeError("what counts")


def test_where_nothing_may_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="Cannot write in '"):
        check_file_to_write(tmp_path / "new" / "x")


def test_a_path_that_is_no_utf_8_is_named():
    check_utf8("ü")
    with pytest.raises(ValueError, match="must be UTF-8 .*Received: 'x.udcff'"):
        check_utf8(b"x\xff")


def test_what_only_its_owner_may_replace_is_found_early(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    tmp_path.chmod(0o1777)
    user = os.stat(tmp_path).st_uid + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    message = "Cannot replace '.*': it is another user's, in a folder where on"
    with pytest.raises(PermissionError, match=message):
        check_file_to_write(tmp_path / "file", overwrite=True)
    with pytest.raises(PermissionError, match=message):
        check_replaceable(tmp_path / "folder", False, "a model", "mark")
    check_file_to_write(tmp_path / "new")
    check_absent(tmp_path / "folder")  # to be filled, not replaced
    tmp_path.chmod(0o777)
    check_file_to_write(tmp_path / "file", overwrite=True)


def test_where_a_file_system_is_mounted_nothing_is_replaced(
    tmp_path, monkeypatch
):
    check_replaceable(tmp_path, False, "a model", "mark")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path))
    with pytest.raises(FileExistsError, match="mounted.*a folder in it"):
        check_replaceable(tmp_path, True, "a model", "mark")


def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    for path in (".", "", tmp_path / "in", tmp_path):
        with pytest.raises(FileExistsError, match="the current folder, or one"):
            check_replaceable(path, True, "a model", "mark")
    check_replaceable("new", False, "a model", "mark")
    (tmp_path / "in").rmdir()
    check_replaceable(tmp_path / "other", False, "a model", "mark")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_all_is_on_the_disk_before_what_it_replaces_goes(
    tmp_path, monkeypatch, is_replaced
):
    path, done = tmp_path / "export", []
    fsync, rmtree = os.fsync, shutil.rmtree

    def sync(descriptor):
        done.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def remove_old(folder, **options):
        done.append("removed")
        rmtree(folder, **options)

    if is_replaced:
        path.mkdir()
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(shutil, "rmtree", remove_old)
    with new_folder(path, lambda: None) as folder:
        inner = pathlib.Path(folder) / "variables"
        inner.mkdir()
        (inner / "data").write_bytes(b"weights")
    within = [path, path / "variables", path / "variables" / "data"]
    numbers = [place.stat().st_ino for place in (*within, tmp_path)]
    *first, parent = done[:4]
    assert sorted(first) == sorted(numbers[:3])
    assert parent == numbers[3]
    assert done[4:] == ["removed"] * is_replaced


def test_a_file_and_its_name_are_on_the_disk(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def sync(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    write_file(tmp_path / "file", b"weights")
    places = (tmp_path / "file", tmp_path)
    assert synced == [place.stat().st_ino for place in places]


def test_what_is_unfinished_can_be_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = []

    def stopped(path):
        with new_folder(tmp_path / "folder", bool), temporary_folder():
            assert len(os.listdir(tmp_path)) == 3
            remove_unfinished()
            left.extend(os.listdir(tmp_path))
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, FileNotFoundError)):
        write_file(tmp_path / "file", stopped)
    assert left == os.listdir(tmp_path) == []


def test_what_was_killed_is_removed_and_what_is_being_filled_is_not(tmp_path):
    path = tmp_path / "model"
    killed = [tmp_path / ".model.0123abcd", tmp_path / ".other.0123abcd"]
    for folder in killed:
        folder.mkdir()
        (folder / "part").write_bytes(b"part")
    (tmp_path / ".model.89abcdef").write_bytes(b"no folder")
    kept = [".model.89abcdef", ".other.0123abcd", "model"]
    with new_folder(path, lambda: None):
        with pytest.raises(InterruptedError), new_folder(path, lambda: None):
            raise InterruptedError  # and so may fail the next one too
        assert killed[0].exists()
        with new_folder(path, lambda: None):
            pass
        (filled,) = {*os.listdir(tmp_path)} - {*kept}
    assert sorted(os.listdir(tmp_path)) == kept
    assert filled.startswith(".model.")


def test_an_old_folder_is_removed_after_a_kill(tmp_path):
    path = tmp_path / "model"
    for content in ("old", "new"):
        with pytest.MonkeyPatch.context() as killed:
            killed.setattr("shutil.rmtree", lambda *_, **__: None)
            with new_folder(path, bool) as partial:
                with open(os.path.join(partial, "part"), "w") as file:
                    file.write(content)
    [old] = {*os.listdir(tmp_path)} - {"model"}
    assert (tmp_path / old / "model" / "part").read_text() == "old"
    with new_folder(path, bool):
        pass
    assert os.listdir(tmp_path) == ["model"]


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    (tmp_path / ".model.0123abcd").mkdir()
    with new_folder(tmp_path / "model", lambda: None):
        pass
    assert sorted(os.listdir(tmp_path)) == [".model.0123abcd", "model"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_a_folder_is_replaced(
    tmp_path, monkeypatch, number
):
    rename = os.rename

    def interrupted(source, target):
        rename(source, target)
        signal.raise_signal(number)

    def stop(number, frame):
        remove_unfinished()  # as `end_by_signal` does
        left.extend(os.listdir(tmp_path))
        raise KeyboardInterrupt

    left = []
    path = tmp_path / "model"
    (path / "old").mkdir(parents=True)
    monkeypatch.setattr(os, "rename", interrupted)
    with (
        signals_handled(stop, number),
        pytest.raises(KeyboardInterrupt),
        new_folder(path, lambda: None) as folder,
    ):
        os.mkdir(os.path.join(folder, "new"))
    assert os.listdir(tmp_path) == left == ["model"]
    assert os.listdir(path) == ["new"]


def test_signals_that_are_ignored_stay_so():
    """As `nohup` leaves them, for programs to go on without a terminal."""
    numbers = signal.SIGHUP, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with signals_handled(end_by_signal, *numbers):
            inside = [signal.getsignal(number) for number in numbers]
        after = [signal.getsignal(number) for number in numbers]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert inside == [signal.SIG_IGN, end_by_signal]
    assert after == [signal.SIG_IGN, signal.SIG_DFL]

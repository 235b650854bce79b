"""Where files are written: beside their place, through links, into pipes."""

import os
import stat
import threading

import pytest

from keras_transformer.atomic import check_file_to_write
from keras_transformer.atomic import new_folder
from keras_transformer.atomic import write_file


def test_a_link_stays_one(tmp_path):
    file, link = tmp_path / "there" / "file", tmp_path / "link"
    file.parent.mkdir()
    file.write_bytes(b"old")
    link.symlink_to(file)
    write_file(link, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert os.listdir(file.parent) == ["file"]


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


def test_modes_are_those_of_any_file_and_folder(tmp_path, monkeypatch):
    mask = os.umask(0o027)
    try:
        with monkeypatch.context() as during:
            # Which is of the whole process: other threads write files too.
            during.delattr(os, "umask")
            write_file(tmp_path / "file", b"content")
            with new_folder(tmp_path / "folder") as folder:
                open(os.path.join(folder, "file"), "wb").close()
    finally:
        os.umask(mask)
    assert stat.S_IMODE(os.stat(tmp_path / "file").st_mode) == 0o640
    assert stat.S_IMODE(os.stat(tmp_path / "folder").st_mode) == 0o750
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_pipe_of_the_shell_is_written_to():
    read, write = os.pipe()
    path = f"/dev/fd/{write}"  # as `>(command)` is
    check_file_to_write(path)
    write_file(path, b"content")
    os.close(write)
    with open(read, "rb") as file:
        assert file.read() == b"content"


def test_a_file_is_replaced_only_when_asked(tmp_path):
    path = tmp_path / "file"
    check_file_to_write(path)
    path.touch()
    with pytest.raises(FileExistsError, match="file' exists already"):
        check_file_to_write(path)
    check_file_to_write(path, overwrite=True)
    with pytest.raises(IsADirectoryError, match="is a folder, not a file"):
        check_file_to_write(tmp_path, overwrite=True)

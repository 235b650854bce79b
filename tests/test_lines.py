"""What counts as a line, a path and text."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.text.lines import chunks
from keras_transformer.text.lines import line_pairs
from keras_transformer.text.lines import lines_of
from keras_transformer.text.lines import name_of
from keras_transformer.text.lines import read_lines
from keras_transformer.text.lines import read_pairs
from keras_transformer.text.lines import read_stream


@pytest.fixture
def write(tmp_path):
    def write(content, name="text.en"):
        path = tmp_path / name
        path.write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
        return path

    return write


@pytest.mark.parametrize(
    "character",
    ["\u2028", "\u2029", "\x85", "\f", "\v", "\x1c", "\x1d", "\x1e", "\r"],
)
def test_only_a_newline_ends_a_line(write, character):
    text = f"before{character}after"
    assert list(read_lines(write(f"{text}\nnext\n"))) == [text, "next"]


def test_newline_after_carriage_return_ends_a_line(write):
    assert list(read_lines(write("one\r\ntwo\r\n"))) == ["one", "two"]


def test_empty_lines_are_lines(write):
    assert list(read_lines(write("\none\n\n\ntwo\n\n"))) == [
        "",
        "one",
        "",
        "",
        "two",
        "",
    ]


def test_one_pipe_is_not_two_texts():
    with contextlib.ExitStack() as stack:

        def pipe_with(content):
            read, write = os.pipe()
            stack.callback(os.close, read)
            os.write(write, content)
            os.close(write)
            return f"/dev/fd/{read}"

        pipe = pipe_with(b"one\ntwo\n")
        message = f"two texts. Received: the same pipe, {pipe}, for both"
        with pytest.raises(ValueError, match=message):
            next(line_pairs(pipe, Path(pipe)))
        pairs = line_pairs(pipe_with(b"one\n"), pipe_with(b"eins\n"))
        assert list(pairs) == [("one", "eins")]


def test_last_line_needs_no_newline(write):
    assert list(read_lines(write("one\ntwo"))) == ["one", "two"]


def test_empty_file_has_no_lines(write):
    assert list(read_lines(write(""))) == []


def test_white_space_around_a_line_stays(write):
    assert list(read_lines(write(" \tone \n"))) == [" \tone "]


def test_byte_order_mark_is_no_text(write):
    path = write("\ufeffone\ntwo\n")
    assert list(read_lines(path)) == ["one", "two"]


def test_byte_order_mark_within_a_file_is_text(write):
    path = write("one\n\ufefftwo\n")
    assert list(read_lines(path)) == ["one", "\ufefftwo"]


def test_what_is_not_utf8_names_file_line_and_byte(write):
    path = write("grün\n".encode() + "Käse\n".encode("latin1"))
    expected = (
        f"Text must be UTF-8. Received: {str(path)!r}, line 2, byte 2 is 0xe4."
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        list(read_lines(path))


def test_byte_is_counted_with_a_byte_order_mark(write):
    path = write("\ufeffKä".encode() + b"\xe4se\n")
    with pytest.raises(ValueError, match=r"line 1, byte 7 is 0xe4\."):
        list(read_lines(path))


@pytest.mark.parametrize(
    "encoding", ["utf-16le", "utf-16be", "utf-32le", "utf-32be"]
)
def test_other_unicode_encodings_are_known_without_a_mark(write, encoding):
    path = write("green\n".encode(encoding))
    with pytest.raises(
        ValueError, match=f"must be UTF-8.*`iconv -f {encoding}"
    ):
        list(read_lines(path))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_other_unicode_encodings_are_refused(write, encoding):
    path = write("grün\n".encode(encoding))
    with pytest.raises(ValueError, match="must be UTF-8.*line 1, byte 1 is"):
        list(read_lines(path))


@pytest.mark.parametrize(
    "content, advice",
    [
        (gzip.compress(b"green\n"), "It is compressed: `gunzip` it."),
        (lzma.compress(b"green\n"), "It is compressed: `unxz` it."),
        (bz2.compress(b"green\n"), "It is compressed: `bunzip2` it."),
        ("grün\n".encode("utf-16"), "`iconv -f utf-16 -t utf-8`"),
        ("grün\n".encode("utf-32"), "`iconv -f utf-32 -t utf-8`"),
        ("grün\n".encode("latin-1"), "`iconv -f cp1252 -t utf-8`"),
        (b"green\n\x1f\x8b\n", "`iconv -f cp1252 -t utf-8`"),
    ],
    # The bytes themselves would name the tests by the time within gzip's.
    ids=[
        "gzip",
        "xz",
        "bzip2",
        "utf-16",
        "utf-32",
        "latin-1",
        "latin-1 with gzip's mark",
    ],
)
def test_what_is_no_text_has_a_way_out(write, content, advice):
    with pytest.raises(ValueError, match=re.escape(advice)):
        list(read_lines(write(content)))


def test_stream_is_called_by_its_name():
    stream = io.BytesIO(b"one\ntw\xf6\n")
    with pytest.raises(ValueError, match="'the input', line 2, byte 3 is 0xf6"):
        list(read_stream(stream, "the input"))


def test_missing_file_is_named(tmp_path):
    path = tmp_path / "missing.en"
    with pytest.raises(FileNotFoundError, match="No such file.*missing.en"):
        list(read_lines(path))


def test_folder_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file"):
        list(read_lines(tmp_path))


def test_string_is_a_path(write):
    assert list(lines_of(str(write("one\ntwo\n")))) == ["one", "two"]


def test_string_that_is_no_file_is_an_error():
    with pytest.raises(FileNotFoundError, match="No such file.*A sentence"):
        list(lines_of("A sentence."))


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("sequence", [list, tuple])
def test_paths_are_read_one_after_another(write, kind, sequence):
    paths = [write("one\ntwo\n", "a"), write("three\n", "b")]
    given = sequence(kind(path) for path in paths)
    assert list(lines_of(given)) == ["one", "two", "three"]


@pytest.mark.parametrize("kind", [str, Path])
def test_many_paths_are_read_too(write, kind):
    paths = [write(f"{number}\n", f"{number}.en") for number in range(101)]
    expected = [str(number) for number in range(101)]
    assert list(lines_of([*map(kind, paths)])) == expected
    with pytest.raises(FileNotFoundError, match="No such file: 'missing'"):
        list(lines_of(["missing", *map(kind, paths)]))
    words = [*map(str, range(51)), *map(str, paths)]
    assert list(lines_of(words)) == words


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array])
def test_strings_that_are_no_files_are_lines(kind):
    lines = ["one", "", "two\x00three", "a" * 5000]
    assert list(lines_of(kind(lines))) == lines


@pytest.mark.parametrize(
    "text", ["3.50", "etc.", "a.b c", ".", "a/b", "Hello.World", "a@b.de"]
)
def test_words_with_points_are_lines(text):
    assert list(lines_of([text, text])) == [text, text]
    assert list(lines_of([text, "train.en"])) == [text, "train.en"]


@pytest.mark.parametrize("dtype", [str, object])
def test_paths_may_be_in_an_array(write, dtype):
    paths = np.array(
        [str(write("one\n", "a")), str(write("two\n", "b"))], dtype
    )
    assert list(lines_of(paths)) == ["one", "two"]
    assert name_of(paths) == ", ".join(paths)


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_names_of_files_that_are_missing_are_no_lines(kind):
    paths = kind(["data/train.en", "data/train.2.txt"])
    with pytest.raises(FileNotFoundError, match="file: 'data/train.en'. Strin"):
        list(lines_of(paths))
    assert list(lines_of(iter(paths))) == list(paths)


def test_tables_are_no_lines():
    message = r"type ndarray and shape \(2, 1\). Pass one column."
    with pytest.raises(TypeError, match=message):
        list(lines_of(np.array([["one"], ["two"]])))


def test_no_strings_are_no_lines():
    assert list(lines_of([])) == []


@pytest.mark.parametrize("order", [1, -1])
def test_one_missing_path_among_files_is_named(write, tmp_path, order):
    paths = [str(write("one\n", "a")), str(tmp_path / "missing")][::order]
    with pytest.raises(FileNotFoundError, match="No such file.*missing"):
        list(lines_of(paths))


def test_missing_paths_are_named_where_they_are_path_objects(tmp_path):
    paths = [tmp_path / "first", tmp_path / "second"]
    with pytest.raises(FileNotFoundError, match="No such file.*first"):
        list(lines_of(paths))


@pytest.mark.parametrize(
    "given", [None, 7, 1.5, b"bytes", {"one"}, {"one": "eins"}]
)
def test_what_holds_no_text_in_order_is_refused(given):
    message = f"Text must be a path.*of type {type(given).__name__}."
    with pytest.raises(TypeError, match=message):
        list(lines_of(given))


@pytest.mark.parametrize(
    "given", [["one", 2], [b"one"], [None], iter([["one"]])]
)
def test_lines_that_are_no_strings_are_refused(given):
    with pytest.raises(TypeError, match="Lines must be strings. Received: "):
        list(lines_of(given))


def test_a_line_that_is_missing_from_a_table_is_named():
    column = np.array(["one", np.nan], object)
    message = "Received: nan of type float as line 2."
    with pytest.raises(TypeError, match=message):
        list(lines_of(column))


def test_lines_are_read_when_they_are_needed():
    def endless():
        while True:
            yield "line"

    lines = lines_of(endless())
    assert [next(lines), next(lines)] == ["line", "line"]


def test_chunks_cover_all_items_in_order():
    assert list(chunks(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(chunks([], 3)) == []


def test_further_texts_are_read_beside_a_pair(tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "three")]
    for path in paths:
        path.write_text(f"{path.name}\nline\n")
    expected = [[path.name, "line"] for path in paths]
    assert read_pairs(*paths) == expected
    assert read_pairs(iter(["a", "b"]), *paths[1:])[1:] == expected[1:]
    paths[2].write_text("three\n")
    message = r"2 lines in source \(.*one\), 1 lines in target \(.*three\)\."
    with pytest.raises(ValueError, match=message):
        read_pairs(*paths)
    once = iter(["a", "b"])
    with pytest.raises(ValueError, match="same list_iterator for both, which"):
        read_pairs(paths[0], once, once)

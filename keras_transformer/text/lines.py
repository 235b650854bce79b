"""Reading lines of text, from files or from memory."""

import collections
import itertools
import os
import re
import stat
from collections.abc import Iterable
from collections.abc import Iterator

from keras_transformer.checks import check_in_order
from keras_transformer.checks import is_sequence
from keras_transformer.pieces import check_encodable
from keras_transformer.system.paths import check_file

# In a short list of strings, one existing file is enough to tell paths from
# text; of a long list, which is text in most cases, so many are checked, and
# most must be files.
MOST_PATHS = 100

# Such as "data/train.en", but not "3.50", "etc.", "Hello.World" or "a@b.de".
NAME_OF_FILE = r"[^\s@]+\.[a-z][a-z0-9]{0,4}"

# What to do about files that do not begin like text in UTF-8.
OTHER_STARTS = {
    b"\x1f\x8b": "It is compressed: `gunzip` it.",
    b"\xfd7zXZ": "It is compressed: `unxz` it.",
    b"BZh": "It is compressed: `bunzip2` it.",
    b"\x28\xb5\x2f\xfd": "It is compressed: `unzstd` it.",
    b"PK\x03\x04": "It is compressed: `unzip` it.",
    b"\xff\xfe": "Convert it with `iconv -f utf-16 -t utf-8`.",
    b"\xfe\xff": "Convert it with `iconv -f utf-16 -t utf-8`.",
    b"\xff\xfe\x00\x00": "Convert it with `iconv -f utf-32 -t utf-8`.",
    b"\x00\x00\xfe\xff": "Convert it with `iconv -f utf-32 -t utf-8`.",
}

# Where the first four bytes have zeros without a mark, if ASCII has the
# characters too.
ZEROS = {
    (1, 3): "utf-16le",
    (0, 2): "utf-16be",
    (1, 2, 3): "utf-32le",
    (0, 1, 2): "utf-32be",
}


def read_lines(path) -> Iterator[str]:
    """Reads a UTF-8 file line by line, without the line ends.

    Only a newline ends a line: other characters that Unicode counts as line
    ends belong to the text, or the two files of a corpus would drift apart.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is not UTF-8; the message names file and line.
    """
    path = check_file(path)
    with open(path, "rb") as file:
        yield from read_stream(file, path)


def read_stream(stream, name: str) -> Iterator[str]:
    """Reads lines like `read_lines` from an open binary stream.

    Args:
        stream: An iterable of lines of bytes.
        name: What an error calls the stream.
    """
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            # Latin-1 has no character there where Windows has quotes.
            advice = "Convert it, for example with `iconv -f cp1252 -t utf-8`."
            for start, way_out in OTHER_STARTS.items():
                if number == 1 and line.startswith(start):
                    advice = way_out
            raise ValueError(
                f"Text must be UTF-8. Received: {name!r}, line {number}, byte "
                f"{error.start + 1} is 0x{error.object[error.start]:02x}. "
                f"{advice}"
            ) from None
        if number == 1:
            _check_no_zeros(line, name)
            text = text.removeprefix("\ufeff")  # a byte order mark
        yield text.rstrip("\r\n")


def _check_no_zeros(line, name):
    """Raises `ValueError` if a first line that decodes is UTF-16 or UTF-32."""
    places = tuple(place for place, byte in enumerate(line[:4]) if byte == 0)
    if places in ZEROS:
        raise ValueError(
            f"Text must be UTF-8. Received: {name!r}, with bytes 0x00 as "
            f"{ZEROS[places]} has them. Convert it with "
            f"`iconv -f {ZEROS[places]} -t utf-8`."
        )


def lines_of(files_or_lines) -> Iterator[str]:
    """Yields the lines of whatever a user may pass as text.

    Args:
        files_or_lines: A path; a sequence of paths; or any iterable of lines.
            A sequence of strings, also an array or a column, is taken as paths
            if one of at most a hundred is a file, or if most of the first
            hundred are; otherwise as lines.

    Raises:
        FileNotFoundError: If a path is no file, or if all of at most a hundred
            lines look like names of files, such as `train.en`.
        TypeError: If anything but paths and strings is found.
        ValueError: If a file is not UTF-8, or a string cannot be encoded.
    """
    if isinstance(files_or_lines, (str, os.PathLike)):
        yield from read_lines(files_or_lines)
        return
    check_in_order(
        "one",
        files_or_lines,
        "Text must be a path, a sequence of paths or an ordered iterable of "
        "lines.",
    )
    if _are_paths(files_or_lines):
        for path in files_or_lines:
            yield from read_lines(path)
        return
    _check_are_no_names(files_or_lines)
    for number, line in enumerate(files_or_lines, start=1):
        if not isinstance(line, str):
            raise TypeError(
                f"Lines must be strings. Received: {line!r} of type "
                f"{type(line).__name__} as line {number}."
            )
        check_encodable(line, f"line {number}")
        yield line


def line_pairs(source, target) -> Iterator[tuple[str, str]]:
    """Yields each line of one text with the same line of the other.

    Args:
        source: Text, as `lines_of` takes it.
        target: Text of as many lines.

    Raises:
        ValueError: After the last pair, if one text has more lines; or if
            both are the same iterator or pipe, which gives each line once.
    """
    _check_are_two(source, target)
    names = name_of(source), name_of(target)
    # `None` where a text has ended.
    pairs = itertools.zip_longest(lines_of(source), lines_of(target))
    for count, pair in enumerate(pairs):
        if None not in pair:
            yield pair
            continue
        longer = 1 - pair.index(None)
        rest = (each[longer] for each in itertools.chain([pair], pairs))
        has_words = collections.Counter(bool(line.strip()) for line in rest)
        counts = [count, count]
        counts[longer] += has_words.total()
        advice = "" if has_words[True] else " The last of them are empty."
        raise _unequal(names, counts, advice)


def read_pairs(source, target, *others) -> list[list[str]]:
    """The lines of texts, at least one, as `line_pairs` takes them.

    Args:
        source: Text.
        target: Text of as many lines.
        *others: Further texts of as many lines, other translations.

    Returns:
        The lines of the source, and as many of each other text.

    Raises:
        ValueError: As `line_pairs`, or if there are no lines.
    """
    pairs = list(line_pairs(source, target))
    if not pairs:
        raise ValueError(
            f"Text must not be empty. Received: {name_of(source)}."
        )
    texts = [[*side] for side in zip(*pairs, strict=True)]
    for index, other in enumerate(others):
        # Each is read only once: it may be a pipe.
        for earlier in (source, target, *others[:index]):
            _check_are_two(earlier, other)
        texts.append([*lines_of(other)])
        if len(texts[-1]) != len(pairs):
            names = name_of(source), name_of(other)
            raise _unequal(names, (len(pairs), len(texts[-1])))
    return texts


def _unequal(names, counts, advice=""):
    return ValueError(
        "`source` and `target` must have the same number of lines. "
        f"Received: {counts[0]:,} lines in source ({names[0]}), "
        f"{counts[1]:,} lines in target ({names[1]}).{advice}"
    )


def _check_are_two(source, target):
    """Raises `ValueError` if both would be read from one iterator or pipe."""
    once = None
    if source is target and isinstance(source, Iterator):
        once = type(source).__name__
    elif _are_one_pipe(source, target):
        once = f"pipe, {name_of(source)},"
    if once:
        raise ValueError(
            "Source and target, or two references, must be two texts. "
            f"Received: the same {once} for both, which gives each line once."
        )


def _are_one_pipe(source, target):
    """Whether both are paths of the same pipe, such as `/dev/stdin`."""
    texts = source, target
    return (
        all(isinstance(text, (str, os.PathLike)) for text in texts)
        and all(map(os.path.exists, texts))
        and os.path.samefile(source, target)
        and stat.S_ISFIFO(os.stat(source).st_mode)
    )


def name_of(files_or_lines) -> str:
    """What messages call the text: its files, or "lines"."""
    if isinstance(files_or_lines, (str, os.PathLike)):
        return os.fspath(files_or_lines)
    if _are_paths(files_or_lines):
        return ", ".join(map(os.fspath, files_or_lines))
    return "lines"


def check_line_lengths(
    lines,
    place,
    translator,
    encode=None,
    first=1,
    advice="Split it into sentences.",
):
    """Raises `ValueError` if a line is too long, which it names from 1.

    For a file, before any of it is translated: a translator that is called
    with some of the lines would count from the first of those.

    Args:
        lines: A list of strings.
        place: What a message calls the place they are from.
        translator: A `Translator` or `LiteRTTranslator`.
        encode: Function of strings to their token ids; by default the
            translator's, for sources.
        first: Number of the first line.
        advice: What to do about it.
    """
    limit = translator.longest_source
    encode = encode or translator.encode
    for number, length in long_lines(lines, limit, encode, first):
        raise ValueError(
            f"The lines of {place} must not be longer than {limit} tokens. "
            f"Received: line {number} with {length}. {advice}"
        )


def long_lines(lines, limit: int, encode, first=1):
    """Yields the numbers of lines that are too long, and their tokens.

    Args:
        lines: A list of strings.
        limit: Most tokens of a line, with its end token.
        encode: Function of strings to their token ids.
        first: Number of the first line.
    """
    rows = itertools.chain.from_iterable(map(encode, chunks(lines, 1000)))
    for number, ids in enumerate(rows, first):
        if len(ids) >= limit:
            yield number, len(ids) + 1


def chunks(items: Iterable, size: int) -> Iterator[list]:
    """Groups items into lists of `size`, the last one shorter."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _are_paths(items):
    if not is_sequence(items):
        return False  # a look would use an iterator up
    num_paths = sum(map(_is_path, itertools.islice(items, MOST_PATHS)))
    return num_paths > (0 if len(items) <= MOST_PATHS else MOST_PATHS // 2)


def _check_are_no_names(items):
    """Raises `FileNotFoundError` if all lines look like misspelt paths."""
    if not is_sequence(items) or not 0 < len(items) <= MOST_PATHS:
        return
    if all(map(_looks_like_path, items)):
        first = str(next(iter(items)))
        raise FileNotFoundError(
            f"No such file: {first!r}. Strings that all look like names of "
            "files are not taken for text. For lines, pass an iterator, "
            "`iter(lines)`."
        )


def _is_path(item):
    is_file = isinstance(item, str) and os.path.isfile(item)
    return is_file or isinstance(item, os.PathLike)


def _looks_like_path(item):
    """Whether it is a word that ends like the name of a file."""
    return (
        isinstance(item, str) and re.fullmatch(NAME_OF_FILE, item) is not None
    )

"""What commands read and print, and the translators that they load."""

import sys

from keras_transformer.cli.options import refuse
from keras_transformer.cli.options import set_search
from keras_transformer.cli.streams import log_kept_back
from keras_transformer.cli.streams import quiet_start
from keras_transformer.system.paths import check_file_to_write

# Lines that a command completes before it prints them.
LINES_AT_ONCE = 2000
STANDARD_INPUT = "standard input"


def check_output(option, path, overwrite, inputs=()):
    """Raises if a file may not be written, or if there is none to overwrite.

    Args:
        option: Name of the file's option, as it is typed.
        path: The file, or `None`.
        overwrite: Whether `--overwrite` is given.
        inputs: Files that are read, which it must not replace; or `None`.
    """
    if path:
        check_file_to_write(path, overwrite)
        for read in filter(None, inputs):
            if path.is_file() and read.exists() and path.samefile(read):
                raise ValueError(
                    f"`{option}` must be another file than what is read. "
                    f"Received: {path} for both."
                )
    elif overwrite:
        refuse(["overwrite"], f"`{option}`", "none")


def input_lines(input):
    """Reads the lines of a file or, without one, of standard input."""
    from keras_transformer.text.lines import read_lines

    return list(read_lines(input) if input else typed_lines())


def typed_lines():
    """Reads standard input, typed or piped in, line by line."""
    from keras_transformer.text.lines import read_stream

    if sys.stdin.isatty():
        print("Type sentences; Ctrl-D ends the input.", file=sys.stderr)
    yield from read_stream(sys.stdin.buffer, STANDARD_INPUT)


def output_lines(result, with_scores: bool = False):
    """Yields a line for each translation, or for each of its hypotheses."""
    if not with_scores:
        for found in result:
            hypotheses = [found] if isinstance(found, str) else found
            yield from (_spaced(text, "\n\r") + "\n" for text in hypotheses)
        return
    for found, found_scores in zip(result[0], result[1].tolist(), strict=True):
        if isinstance(found, str):
            found, found_scores = [found], [found_scores]
        for text, value in zip(found, found_scores, strict=True):
            text = _spaced(text, "\n\r\t")
            yield f"{value:.4f}\t{text}\n"


def printable_piece(piece: str) -> str:
    """A piece as it is printed among others, with SentencePiece's own space."""
    from keras_transformer.pieces import SPACE

    return _spaced(piece, " \t\n\r", SPACE)


def _spaced(text, separators, space=" "):
    """Replaces separators by spaces: vocabularies with bytes can spell them."""
    return text.translate(dict.fromkeys(map(ord, separators), space))


def check_folder(path):
    """Raises if it holds no translator: now, not after seconds of imports."""
    from keras_transformer.translator_folder import read_description

    read_description(path)


def check_any(path):
    """Raises if it is neither a translator's folder nor a LiteRT file."""
    from keras_transformer.serving.litert_file import check_litert_file

    if is_exported(path):
        check_litert_file(path)
    else:
        check_folder(path)


def load(folder, dtype=None, num_texts: int = 0):
    """Loads a translator.

    Args:
        folder: Its folder.
        dtype: The dtype policy to compute in; by default its own.
        num_texts: How many texts it will translate, if that is known: of many,
            each core decodes a batch of its own.
    """
    check_folder(folder)
    with quiet_start():
        from keras_transformer.tensorflow_only.threads import (
            give_cores_to_batches,
        )
        from keras_transformer.translator import Translator

    give_cores_to_batches(num_texts)
    translator = Translator.load(folder)
    return translator.with_dtype(dtype) if dtype else translator


def load_any(path, dtype, search_options, workers, num_texts):
    """Loads a translator's folder, or a LiteRT file."""
    if is_exported(path):
        from keras_transformer.serving.litert_translator import LiteRTTranslator

        with log_kept_back():
            return LiteRTTranslator(path, **workers)
    translator = load(path, dtype, num_texts)
    set_search(translator, search_options)
    return translator


def is_exported(path) -> bool:
    """Whether a path is, or by its name would be, a LiteRT file."""
    is_named_so = path.suffix.lower() == ".tflite"
    return path.is_file() or (is_named_so and not path.is_dir())


def refuse_of_the_other(path, of_folder, of_exported):
    """Raises for a folder's options with a LiteRT file, and vice versa.

    The file has its own search.
    """
    if is_exported(path):
        refuse(of_folder, "a translator's folder, as an export fixes it", path)
    else:
        refuse(of_exported, "a .tflite file", path)


def check_lines(lines, place, translator, truncate, first=1):
    """Raises if a line is too long to translate, or says that it is cut.

    Args:
        lines: A list of strings.
        place: What messages call the place they are from.
        translator: A `Translator` or `LiteRTTranslator`.
        truncate: Whether lines may be cut.
        first: Number of the first line.
    """
    from keras_transformer.text.lines import check_line_lengths
    from keras_transformer.text.lines import long_lines

    if not truncate:
        advice = "Split it into sentences, or pass `--truncate`."
        check_line_lengths(lines, place, translator, first=first, advice=advice)
        return
    limit = translator.longest_source
    for number, length in long_lines(lines, limit, translator.encode, first):
        print(
            f"Line {number} of {place} has {length} tokens, and is cut to "
            f"{limit}.",
            file=sys.stderr,
        )


def check_pair_lengths(translator, sources, source, translations, target):
    """Raises if lines of either file are too long for the translator."""
    from keras_transformer.text.lines import check_line_lengths

    encode = translator.target_tokenizer.encode
    check_line_lengths(sources, source, translator)
    check_line_lengths(translations, target, translator, encode)

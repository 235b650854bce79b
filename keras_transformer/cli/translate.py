"""`keras-transformer translate`."""

import itertools
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.command_io import LINES_AT_ONCE
from keras_transformer.cli.command_io import STANDARD_INPUT
from keras_transformer.cli.command_io import check_any
from keras_transformer.cli.command_io import check_lines
from keras_transformer.cli.command_io import check_output
from keras_transformer.cli.command_io import input_lines
from keras_transformer.cli.command_io import load_any
from keras_transformer.cli.command_io import output_lines
from keras_transformer.cli.command_io import refuse_of_the_other
from keras_transformer.cli.command_io import typed_lines
from keras_transformer.cli.options import Dtype
from keras_transformer.cli.options import MaxLength
from keras_transformer.cli.options import MinLength
from keras_transformer.cli.options import NumThreads
from keras_transformer.cli.options import NumWorkers
from keras_transformer.cli.options import Overwrite
from keras_transformer.cli.options import TokensPerBatch
from keras_transformer.cli.options import TranslatorOrFile
from keras_transformer.cli.options import Truncate
from keras_transformer.cli.options import given
from keras_transformer.cli.options import path_option
from keras_transformer.cli.options import refuse
from keras_transformer.system.atomic import write_file
from keras_transformer.system.paths import check_file


def translate(
    folder: TranslatorOrFile,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Sentences; by default the lines of --input or standard input."
        ),
    ] = None,
    input: Annotated[
        Path | None, path_option("--input", "-i", help="File to read.")
    ] = None,
    output: Annotated[
        Path | None, path_option("--output", "-o", help="File to write.")
    ] = None,
    min_length: MinLength = None,
    max_length: MaxLength = None,
    target_prefix: Annotated[
        str | None,
        typer.Option(
            help="Text that translations begin with; empty lines stay empty."
        ),
    ] = None,
    target_prefixes: Annotated[
        Path | None,
        path_option(help="File with one such prefix per sentence."),
    ] = None,
    truncate: Truncate = False,
    tokens_per_batch: TokensPerBatch = None,
    line_by_line: Annotated[
        bool,
        typer.Option(
            "--line-by-line",
            help="Translate each line of standard input as it arrives, for a "
            "program that waits for the answer; much slower for many lines.",
        ),
    ] = False,
    num_threads: NumThreads = None,
    num_workers: NumWorkers = None,
    scores: Annotated[
        bool,
        typer.Option(
            "--scores",
            help="Put its score before each line: the log-probability in "
            "nats, divided by the length penalty in beam search.",
        ),
    ] = False,
    dtype: Dtype = None,
    overwrite: Overwrite = False,
    *,
    search_options,
):
    """Translate arguments, a file or standard input, one line per sentence.

    Without --output, translations are written as they are done, 2,000 at a
    time; typed lines are translated one by one. Piped input is read to its end
    first, so that a line that is too long is reported before hours of work,
    except with --line-by-line.

    \b
    Example:
      keras-transformer translate runs/en-de "A man rides a bike."
      keras-transformer translate runs/en-de < test.en > test.out
      keras-transformer translate runs/en-de --search beam \\
        --num-hypotheses 4 --scores "A man rides a bike."
      keras-transformer translate en-de.tflite --num-workers 2 < test.en
    """  # noqa: D301
    workers = given(num_threads=num_threads, num_workers=num_workers)
    limits = given(min_length=min_length, max_length=max_length)
    of_folder = limits | given(
        target_prefix=target_prefix,
        target_prefixes=target_prefixes,
        dtype=dtype,
    )
    refuse_of_the_other(folder, of_folder | search_options, workers)
    _check_texts(texts, input, target_prefix, target_prefixes)
    for path in filter(None, [input, target_prefixes]):
        check_file(path)
    read = [folder, input, target_prefixes]
    check_output("--output", output, overwrite, read)
    one_by_one = _is_one_by_one(
        texts, input, output, line_by_line, target_prefixes
    )

    options = {
        "return_scores": scores,
        "truncate": truncate,
        "verbose": int(output is not None and not one_by_one),
        **limits,
        **given(tokens_per_batch=tokens_per_batch),
    }
    place = "the arguments" if texts else input or STANDARD_INPUT
    if not (texts or one_by_one):
        check_any(folder)  # not after all of a pipe
        texts = input_lines(input)
    translator = load_any(
        folder, dtype, search_options, workers, num_texts=len(texts or ())
    )

    if one_by_one:
        texts = _checked_lines(typed_lines(), translator, truncate)
        lines_at_once = 1
        prefixes = (
            [] if target_prefix is None else itertools.repeat(target_prefix)
        )
    else:
        lines_at_once = LINES_AT_ONCE
        check_lines(texts, place, translator, truncate)
        if output:  # written when all is done: one progress bar for all
            lines_at_once = max(len(texts), 1)
        prefixes = _checked_prefixes(
            target_prefix, target_prefixes, translator, texts, max_length
        )

    results = _translated(translator, texts, prefixes, lines_at_once, options)
    if output:
        write_file(output, "".join(results).encode())
        return
    for result in results:
        sys.stdout.write(result)
        sys.stdout.flush()


def _check_texts(texts, input, target_prefix, target_prefixes):
    """Raises if sentences or prefixes are given twice, or files instead."""
    if texts and input:
        raise ValueError(
            "Give sentences or `--input`, not both. Received: "
            f"{len(texts)} sentences and --input {input}."
        )
    # A word alone may be a file's name by chance.
    named_like_files = (re.search(r"[./]", text) for text in texts or ())
    if texts and all(named_like_files) and all(map(os.path.isfile, texts)):
        raise ValueError(
            "Arguments must be sentences. Received: the name of a file, "
            f"{texts[0]!r}. Pass it with `--input`."
        )
    if target_prefix is not None and target_prefixes:
        raise ValueError(
            "Give `--target-prefix` or `--target-prefixes`, not both. "
            f"Received: {target_prefix!r} and {target_prefixes}."
        )


def _is_one_by_one(texts, input, output, line_by_line, target_prefixes):
    """Whether lines are translated as they come; raises if they cannot be."""
    is_piped = not (input or texts)
    if line_by_line and not is_piped:
        refuse(
            ["line_by_line"],
            "lines that are piped in",
            "sentences as arguments" if texts else "`--input`",
        )
    if line_by_line and output:
        refuse(["line_by_line"], "standard output", f"--output {output}")
    one_by_one = is_piped and (line_by_line or sys.stdin.isatty())
    if one_by_one and target_prefixes:
        refuse(
            ["target_prefixes"],
            "all sentences at once",
            "lines that are typed, or `--line-by-line`",
        )
    return one_by_one


def _checked_prefixes(prefix, path, translator, texts, max_length):
    """Gives the prefix of each translation, none longer than that may be.

    Args:
        prefix: That of all, or `None`.
        path: File with one for each, or `None`.
        translator: What translates.
        texts: Their sources.
        max_length: Most tokens of a translation, or `None`.

    Returns:
        As many prefixes as texts; none where neither is given.
    """
    from keras_transformer.lengths import check_limits
    from keras_transformer.lengths import check_prefix_lengths
    from keras_transformer.pieces import end_sources

    if prefix is not None:
        prefixes, place = [prefix] * len(texts), "--target-prefix"
    elif path:
        prefixes, place = _read_prefixes(path, len(texts)), path
    else:
        return []
    check_limits(0, max_length)
    limit = translator.longest_source  # to which longer ones are cut
    rows = end_sources(translator.encode(texts))
    check_prefix_lengths(
        [*map(len, translator.target_tokenizer.encode(prefixes))],
        [min(len(row), limit) for row in rows],
        max_length,
        translator.model,
        describe=lambda index: f"{place}, line {index + 1},",
    )
    return prefixes


def _read_prefixes(path, num_texts):
    """Reads the prefix of each translation."""
    from keras_transformer.text.lines import read_lines

    prefixes = list(read_lines(path))
    if len(prefixes) != num_texts:
        raise ValueError(
            "`--target-prefixes` must have a line for each sentence. Received: "
            f"{path} of {len(prefixes)} lines, {num_texts} sentences."
        )
    return prefixes


def _checked_lines(lines, translator, truncate):
    """Yields lines as they come, of which none may be too long."""
    for number, line in enumerate(lines, 1):
        check_lines([line], STANDARD_INPUT, translator, truncate, first=number)
        yield line


def _translated(translator, texts, prefixes, lines_at_once, options):
    """Translates `lines_at_once` texts at a time; yields the text to print."""
    from keras_transformer.text.lines import chunks

    prefixes = iter(prefixes)
    for some in chunks(texts, lines_at_once):
        beginnings = list(itertools.islice(prefixes, len(some)))
        prefixed = {"target_prefix": beginnings} if beginnings else {}
        found = translator(some, **options, **prefixed)
        yield "".join(output_lines(found, options["return_scores"]))

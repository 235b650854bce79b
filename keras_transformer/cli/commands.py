"""The commands, and how errors of the user end one."""

import functools
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated
from typing import Literal

import typer

from keras_transformer.atomic import write_file
from keras_transformer.cli.command_io import LINES_AT_ONCE
from keras_transformer.cli.command_io import STANDARD_INPUT
from keras_transformer.cli.command_io import check_output
from keras_transformer.cli.command_io import input_lines
from keras_transformer.cli.command_io import load
from keras_transformer.cli.command_io import load_with_check
from keras_transformer.cli.command_io import output_lines
from keras_transformer.cli.command_io import refuse_of_the_other
from keras_transformer.cli.options import CommandWithHeadings
from keras_transformer.cli.options import Dtype
from keras_transformer.cli.options import NumThreads
from keras_transformer.cli.options import NumWorkers
from keras_transformer.cli.options import Overwrite
from keras_transformer.cli.options import TranslatorOrFile
from keras_transformer.cli.options import given
from keras_transformer.cli.options import refuse
from keras_transformer.cli.options import set_search
from keras_transformer.cli.options import with_search_options
from keras_transformer.cli.streams import forget_output
from keras_transformer.cli.streams import open_closed_streams
from keras_transformer.cli.streams import quiet_start
from keras_transformer.cli.streams import write_utf_8
from keras_transformer.cli.train import train
from keras_transformer.cli.translate import translate
from keras_transformer.extras import not_installed
from keras_transformer.paths import check_absent
from keras_transformer.signals import end_by_signal
from keras_transformer.signals import signals_handled
from keras_transformer.version import __version__

# A line of a TensorFlow error that says where, not what: frames are indented.
GRAPH_PLACE = re.compile(
    r"\s|Graph execution error:|Detected at node |Node: |<stack traces"
)

# The extras of what a light install, which only translates, lacks, and of the
# JAX backend; `None` for what every other install has.
EXTRAS = {
    "keras": None,
    "rich": None,
    "sacrebleu": None,
    "safetensors": None,
    "tensorflow": None,
    "tensorflow_text": None,
    "jax": "jax",
}

# What a user sees a line of.
ERRORS = (
    ImportError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)

app = typer.Typer(
    name="keras-transformer",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

TranslatorFolder = Annotated[
    Path, typer.Argument(help="Folder of a trained translator.")
]


def main():
    """Runs the command; errors of the user are one line and exit code 2."""
    open_closed_streams()
    write_utf_8()
    if "--traceback" in sys.argv:
        sys.argv.remove("--traceback")
        app()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # or Python would, with a traceback, as it ends
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            _end_with(error)
        extra = EXTRAS[error.name]
        _end_with(not_installed("This", error.name, extra))
    except ERRORS as error:
        _end_with(error)
    except Exception as error:
        # TensorFlow's are none of Python's, and say where in a graph they were.
        tensorflow = sys.modules.get("tensorflow")
        if not tensorflow or not isinstance(error, tensorflow.errors.OpError):
            raise
        _end_with(_reason(error.message) or type(error).__name__)


def _reason(message):
    """The first line of TensorFlow's message that says what is wrong.

    Before it come the nodes of the graph, and where they were defined; before
    what is wrong in an operation of no graph, the operation.
    """
    message = re.sub(r"^\{\{.*?\}\}\s*", "", message)
    lines = (line for line in message.splitlines() if line.strip())
    return next((line for line in lines if not GRAPH_PLACE.match(line)), "")


def _end_with(error):
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Keras's are bold
    message = " ".join(message.split()) or type(error).__name__
    print(f"keras-transformer: {message}", file=sys.stderr)
    forget_output()
    sys.exit(2)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
):
    """Train, use, score, export and verify Transformers that translate text.

    COMMAND --help shows an example of each command. --traceback after any
    command shows where an error came from.
    """
    if version:
        print(f"keras-transformer {__version__}")
        raise typer.Exit


command = functools.partial(app.command, cls=CommandWithHeadings)
command()(train)
command()(with_search_options(translate))


@command()
@with_search_options
def evaluate(
    folder: TranslatorOrFile,
    source: Annotated[Path, typer.Argument(help="Text to translate.")],
    target: Annotated[Path, typer.Argument(help="Reference translation.")],
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Ignore case.")
    ] = False,
    tokenize: Annotated[
        str,
        typer.Option(
            help="How sacreBLEU splits text: 13a, zh, ja-mecab, ko-mecab, "
            "intl, char, flores200, or none where it is split already."
        ),
    ] = "13a",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for the translations."),
    ] = None,
    num_threads: NumThreads = None,
    num_workers: NumWorkers = None,
    dtype: Dtype = None,
    overwrite: Overwrite = False,
    *,
    search_options,
):
    """Translate a test set and score it with sacreBLEU.

    Prints BLEU, with the signature to quote beside it, and chrF.

    \b
    Example:
      keras-transformer evaluate runs/en-de test.en test.de --search beam
      keras-transformer evaluate runs/en-zh test.en test.zh --tokenize zh \\
        --output test.out
      keras-transformer evaluate en-de-int8.tflite test.en test.de
    """  # noqa: D301
    workers = given(num_threads=num_threads, num_workers=num_workers)
    refuse_of_the_other(folder, given(dtype=dtype) | search_options, workers)
    with quiet_start():
        from keras_transformer.text import corpus_scores
        from keras_transformer.text.bleu import bleu_metric
        from keras_transformer.translator import first_of

    bleu_metric(lowercase, tokenize)  # raises now, not after minutes of work
    check_output("--output", output, overwrite)
    sources, references = _read_pairs(source, target)
    translator, check = load_with_check(
        folder, dtype, search_options, workers, is_much=True
    )
    check(sources, source)
    found = first_of(translator(sources, verbose=1))
    if output:
        write_file(output, "".join(output_lines(found)).encode())
    scores = corpus_scores(found, references, lowercase, tokenize)
    print(f"BLEU {scores.bleu:.2f}")
    print(f"chrF {scores.chrf:.2f}")
    print(scores.signature)


@command()
def score(
    folder: TranslatorFolder,
    source: Annotated[Path, typer.Argument(help="Text file.")],
    target: Annotated[Path, typer.Argument(help="Translations to score.")],
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Print the score of each token as well."),
    ] = False,
    dtype: Dtype = None,
):
    """Say how probable given translations are, one line per sentence.

    Prints natural-logarithm probabilities, in nats: of the whole translation
    and, with --tokens, of each of its tokens.

    \b
    Example:
      keras-transformer score runs/en-de test.en test.de > scores.txt
    """  # noqa: D301
    sources, translations = _read_pairs(source, target)
    translator = load(folder, dtype)
    _check_line_lengths(translator, sources, source, translations, target)
    tokenizer = translator.target_tokenizer
    scores, token_scores = translator.score(sources, translations, verbose=1)
    for text, total, of_tokens in zip(
        translations, scores, token_scores, strict=True
    ):
        line = f"{total:.4f}"
        if tokens:
            ids = [*tokenizer.encode(text), tokenizer.end_token_id]
            line += "".join(
                f"\t{tokenizer.pieces[token_id]} {value:.4f}"
                for token_id, value in zip(ids, of_tokens, strict=True)
            )
        print(line)


@command()
def align(
    folder: TranslatorFolder,
    source: Annotated[Path, typer.Argument(help="Text file.")],
    target: Annotated[Path, typer.Argument(help="Translation, line by line.")],
    pieces: Annotated[
        bool,
        typer.Option("--pieces", help="Print the pieces before the links."),
    ] = False,
    layer: Annotated[
        int,
        typer.Option(
            help="Decoder layer, from 0; negative numbers count from the last."
        ),
    ] = -1,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw the weights of the first line here."),
    ] = None,
    overwrite: Overwrite = False,
    dtype: Dtype = None,
):
    """Say what the pieces of translations look at in the source.

    Prints one line per sentence: 0-0 2-1 where the first piece of the
    translation looks at the first of the source most, and the second at the
    third, the end token of the source aside. With --pieces, those of the
    source, those of the translation, and then the links, with tabs between.

    \b
    Example:
      keras-transformer align runs/en-de test.en test.de --picture links.png
    """  # noqa: D301
    if picture:
        from keras_transformer.alignment import check_picture

        check_picture(picture)
    check_output("--picture", picture, overwrite)
    sources, translations = _read_pairs(source, target)
    if picture and not sources[0].strip():
        raise ValueError(
            "`--picture` draws the first pair, which must have text. Received: "
            f"{source}, line 1 empty."
        )
    translator = load(folder, dtype)
    _check_line_lengths(translator, sources, source, translations, target)
    for start in range(0, len(sources), LINES_AT_ONCE):
        some = slice(start, start + LINES_AT_ONCE)
        alignments = translator.align(sources[some], translations[some], layer)
        if picture and start == 0:
            alignments[0].draw(picture)
        for alignment in alignments:
            columns = [[f"{x}-{y}" for x, y in alignment.links()]]
            if pieces:
                both = alignment.source_pieces, alignment.target_pieces
                columns = [*(side[:-1] for side in both), *columns]
            print("\t".join(map(" ".join, columns)))


@command()
@with_search_options
def export(
    folder: TranslatorFolder,
    output: Annotated[
        Path,
        typer.Argument(
            help="Folder to write, named by a number for TF Serving, or "
            ".tflite file."
        ),
    ],
    format: Annotated[
        Literal["saved_model", "litert", "ctranslate2"] | None,
        typer.Option(
            help="What to write; by default LiteRT for a name that ends in "
            ".tflite, else a SavedModel."
        ),
    ] = None,
    quantization: Annotated[
        Literal["float16", "int8"] | None,
        typer.Option(help="LiteRT: smaller weights instead of float32."),
    ] = None,
    text: Annotated[
        bool | None,
        typer.Option(
            "--text/--no-text",
            help="LiteRT: split text in the file too; unigram models only.",
        ),
    ] = None,
    steps: Annotated[
        bool | None,
        typer.Option(
            "--steps/--no-steps",
            help="LiteRT: signatures for a search in the host program; without "
            "them the file needs less memory.",
        ),
    ] = None,
    source_length: Annotated[
        int | None,
        typer.Option(
            help="LiteRT: fixed shapes, as browsers need them, for one source "
            "of at most this many tokens; without text and steps.",
        ),
    ] = None,
    dtype: Dtype = None,
    overwrite: Overwrite = False,
    *,
    search_options,
):
    """Write the translator for another engine.

    A SavedModel takes and returns strings, with its search inside; so does a
    LiteRT file, for small machines. A CTranslate2 model takes and returns
    pieces of the SentencePiece models beside it, and searches as it is told
    when it is called.

    \b
    Example:
      keras-transformer export runs/en-de exported/en-de/1 --search beam
      keras-transformer export runs/en-de en-de.tflite --quantization int8
      keras-transformer export runs/en-de page/model.tflite --source-length 64
      keras-transformer export runs/en-de exported/ct2 --format ctranslate2
    """  # noqa: D301
    if format is None:
        format = "litert" if output.suffix == ".tflite" else "saved_model"
    litert_options = given(
        quantization=quantization,
        text=text,
        steps=steps,
        source_length=source_length,
    )
    for options, formats in (
        (given(dtype=dtype), ["saved_model"]),
        (litert_options, ["litert"]),
        (search_options, ["saved_model", "litert"]),
    ):
        if format not in formats:
            needed = " or ".join(f"--format {known}" for known in formats)
            refuse(options, needed, f"--format {format}")
    if source_length is not None:
        dropped = [
            name for name in ("text", "steps") if litert_options.get(name)
        ]
        refuse(dropped, "any length", f"--source-length {source_length}")
    check_absent(output, overwrite)
    with signals_handled(end_by_signal, signal.SIGTERM, signal.SIGHUP):
        translator = load(folder, dtype)
        set_search(translator, search_options)
        if litert_options.get("text") and translator.search.num_hypotheses > 1:
            refuse(
                ["text"],
                "a search for one hypothesis",
                f"num_hypotheses={translator.search.num_hypotheses}",
            )
        if format == "ctranslate2":
            translator.export_ctranslate2(output, overwrite=overwrite)
            message = (
                f"CTranslate2 model in {output}. Load it with "
                "ctranslate2.Translator, and sentencepiece."
            )
        elif format == "litert":
            print("Converting; a minute for base size.", file=sys.stderr)
            translator.export_litert(
                output, **litert_options, overwrite=overwrite
            )
            message = (
                f"LiteRT file {output}. Load it with "
                "keras_transformer.LiteRTTranslator, or `keras-transformer "
                f"translate {shlex.quote(str(output))}`."
            )
        else:
            translator.export_saved_model(output, overwrite=overwrite)
            message = (
                f"SavedModel in {output}, signatures serving_default (text) "
                "and translate_ids, and the two compiled. Load it with "
                "tensorflow and tensorflow_text."
            )
    print(message, file=sys.stderr)


@command()
@with_search_options
def verify(
    folder: TranslatorFolder,
    exports: Annotated[
        list[Path],
        typer.Argument(help="SavedModel folders and .tflite files."),
    ],
    input: Annotated[
        Path | None,
        typer.Option(
            "--input", "-i", help="Lines to translate; by default piped in."
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Nats per token by which a line that differs may be less "
            "probable; int8 needs more, such as 0.1, and so does a translator "
            "in half precision without --dtype float32."
        ),
    ] = 0.01,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="File for the full report, as JSON."),
    ] = None,
    dtype: Dtype = None,
    overwrite: Overwrite = False,
    *,
    search_options,
):
    """Compare exports with the translator they were made from.

    Prints how many lines are the same, the first that is not and the one that
    differs most, and size, times and memory of each export. The exit code is 1
    if a line differs by more than --tolerance, or an export has operations that
    not every runtime has.

    \b
    Example:
      keras-transformer verify runs/en-de exported/en-de/1 en-de.tflite \\
        --input test.en
      keras-transformer verify runs/en-de en-de-int8.tflite -i test.en \\
        --tolerance 0.1 --json report.json
    """  # noqa: D301
    with quiet_start():
        import rich.console

        from keras_transformer.lengths import check_line_lengths
        from keras_transformer.serving import verify_report
        from keras_transformer.serving.verify import check_tolerance
        from keras_transformer.serving.verify import verify_export

    check_output("--json", json_file, overwrite)
    check_tolerance(tolerance)
    for path in exports:  # before minutes are spent on the first
        if not path.exists():
            raise FileNotFoundError(f"No such export: {str(path)!r}.")
    translator = load(folder, dtype)
    set_search(translator, search_options)
    lines, place = input_lines(input), input or STANDARD_INPUT
    if not lines:
        raise ValueError(f"Text must not be empty. Received: {place}.")
    check_line_lengths(
        lines,
        place,
        translator.tokenizer.encode,
        translator.longest_source,
    )
    expected = translator(lines, return_scores=True)
    reports, errors = [], []
    try:
        with signals_handled(end_by_signal, signal.SIGTERM, signal.SIGHUP):
            for path in exports:
                try:
                    report = verify_export(
                        translator, path, lines, tolerance, expected
                    )
                except ValueError as error:  # damaged, or another program's
                    errors.append(str(error))
                else:
                    reports.append(report)
    finally:  # an error of one does not lose what is known of others
        if reports:
            if json_file:  # first: nobody may read the table to its end
                content = verify_report.to_json(reports)
                write_file(json_file, content.encode())
            verify_report.show(
                reports,
                rich.console.Console(
                    markup=False, emoji=False, highlight=False
                ),
            )
    if errors:
        raise ValueError(" ".join(errors))
    if not all(report.passed for report in reports):
        raise typer.Exit(1)


def _read_pairs(source, target):
    """Reads two files of as many lines as each other, at least one."""
    with quiet_start():
        from keras_transformer.lines import line_pairs

    pairs = list(line_pairs(source, target))
    if not pairs:
        raise ValueError(f"Text must not be empty. Received: {source}.")
    return [[*side] for side in zip(*pairs, strict=True)]


def _check_line_lengths(translator, sources, source, translations, target):
    from keras_transformer.lengths import check_line_lengths

    for lines, path, tokenizer in (
        (sources, source, translator.tokenizer),
        (translations, target, translator.target_tokenizer),
    ):
        check_line_lengths(
            lines, path, tokenizer.encode, translator.longest_source
        )

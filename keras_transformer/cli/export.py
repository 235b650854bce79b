"""`keras-transformer export`."""

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated
from typing import Literal

import typer

from keras_transformer.cli.command_io import load
from keras_transformer.cli.options import Dtype
from keras_transformer.cli.options import Overwrite
from keras_transformer.cli.options import TranslatorFolder
from keras_transformer.cli.options import given
from keras_transformer.cli.options import path_argument
from keras_transformer.cli.options import refuse
from keras_transformer.cli.options import set_search
from keras_transformer.system.atomic import end_by_signal
from keras_transformer.system.atomic import own_temporary_files
from keras_transformer.system.paths import check_absent
from keras_transformer.system.paths import check_file_to_write
from keras_transformer.system.signals import signals_handled


def export(
    folder: TranslatorFolder,
    output: Annotated[
        Path,
        path_argument(
            help="Folder to write, whose name is a number for TF Serving, or "
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
        typer.Option(help="LiteRT: smaller weights than float32."),
    ] = None,
    text: Annotated[
        bool | None,
        typer.Option(
            "--text/--no-text",
            help="LiteRT: split text in the file too; the default. For unigram "
            "vocabularies only; others need --no-text.",
        ),
    ] = None,
    steps: Annotated[
        bool | None,
        typer.Option(
            "--steps/--no-steps",
            help="LiteRT: signatures for a search run by the host program; the "
            "default. Without them the file needs less memory.",
        ),
    ] = None,
    source_length: Annotated[
        int | None,
        typer.Option(
            help="LiteRT: fixed shapes, as browsers need them, for one source "
            "of at most this many tokens; without text and steps.",
        ),
    ] = None,
    screening: Annotated[
        bool | None,
        typer.Option(
            "--screening/--no-screening",
            help="LiteRT: faster searches by weights of the logits in 8 bits, "
            "beside those in float32. The default, where it is of use.",
        ),
    ] = None,
    dtype: Dtype = None,
    overwrite: Overwrite = False,
    *,
    search_options,
):
    """Write the translator for another engine.

    A SavedModel takes and returns strings, and includes the search; so does a
    LiteRT file, for small machines. A CTranslate2 model takes and returns
    pieces of the SentencePiece models beside it, and its search is chosen with
    each call.

    \b
    Example:
      keras-transformer export runs/en-de exported/en-de/1
      keras-transformer export runs/en-de exported/beam/1 --search beam
      keras-transformer export runs/en-de en-de.tflite --quantization int8
      keras-transformer export runs/en-de page/model.tflite --source-length 64
      keras-transformer export runs/en-de exported/ct2 --format ctranslate2
    """  # noqa: D301
    is_litert = output.suffix.lower() == ".tflite"
    if format is None:
        format = "litert" if is_litert else "saved_model"
    elif format != "litert" and is_litert:
        refuse(["format"], "another name than that of a LiteRT file", output)
    litert_options = given(
        quantization=quantization,
        text=text,
        steps=steps,
        source_length=source_length,
        screening=screening,
    )
    _check_options(format, dtype, litert_options, search_options)
    check = check_file_to_write if format == "litert" else check_absent
    check(output, overwrite)
    translator = load(folder, dtype)
    set_search(translator, search_options)
    if litert_options.get("text") and translator.search.num_hypotheses > 1:
        refuse(
            ["text"],
            "a search for one hypothesis",
            f"num_hypotheses={translator.search.num_hypotheses}",
        )
    write = WRITERS[format]
    # Ctrl-C as well: TensorFlow may drop an exception while it traces.
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    with signals_handled(end_by_signal, *numbers), own_temporary_files():
        message = write(translator, output, overwrite, **litert_options)
    print(message, file=sys.stderr)


def _check_options(format, dtype, litert_options, search_options):
    """Raises for options of another format, or that exclude each other."""
    for options, formats in (
        (given(dtype=dtype), ["saved_model"]),
        (litert_options, ["litert"]),
        (search_options, ["saved_model", "litert"]),
    ):
        if format not in formats:
            needed = " or ".join(f"--format {known}" for known in formats)
            refuse(options, needed, f"--format {format}")
    length = litert_options.get("source_length")
    if length is not None:
        names = ("text", "steps", "screening")
        dropped = [name for name in names if litert_options.get(name)]
        refuse(dropped, "sources of any length", f"--source-length {length}")
    quantization = litert_options.get("quantization")
    if quantization and litert_options.get("screening"):
        refuse(["screening"], "float32", f"--quantization {quantization}")


def _write_saved_model(translator, output, overwrite):
    translator.export_saved_model(output, overwrite=overwrite)
    return (
        f"SavedModel in {output}, signatures serving_default (text) and "
        "translate_ids, and both compiled by XLA. Load it with tensorflow and "
        "tensorflow_text."
    )


def _write_litert(translator, output, overwrite, **options):
    translator.export_litert(output, **options, overwrite=overwrite, verbose=1)
    return (
        f"LiteRT file {output}. Load it with "
        "keras_transformer.LiteRTTranslator, or `keras-transformer translate "
        f"{shlex.quote(str(output))}`."
    )


def _write_ctranslate2(translator, output, overwrite):
    translator.export_ctranslate2(output, overwrite=overwrite)
    return (
        f"CTranslate2 model in {output}. Load it with ctranslate2.Translator, "
        "and sentencepiece."
    )


# Each writes an export and returns a message on how to load it.
WRITERS = {
    "saved_model": _write_saved_model,
    "litert": _write_litert,
    "ctranslate2": _write_ctranslate2,
}

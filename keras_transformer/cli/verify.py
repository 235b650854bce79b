"""`keras-transformer verify`."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.command_io import STANDARD_INPUT
from keras_transformer.cli.command_io import check_folder
from keras_transformer.cli.command_io import check_output
from keras_transformer.cli.command_io import input_lines
from keras_transformer.cli.command_io import load
from keras_transformer.cli.options import Dtype
from keras_transformer.cli.options import Overwrite
from keras_transformer.cli.options import TranslatorFolder
from keras_transformer.cli.options import path_argument
from keras_transformer.cli.options import path_option
from keras_transformer.cli.options import set_search
from keras_transformer.cli.streams import quiet_start
from keras_transformer.system.atomic import end_by_signal
from keras_transformer.system.atomic import write_file
from keras_transformer.system.paths import check_file
from keras_transformer.system.signals import signals_handled


def verify(
    folder: TranslatorFolder,
    exports: Annotated[
        list[Path],
        path_argument(
            help="SavedModel folders, .tflite files, CTranslate2 folders."
        ),
    ],
    input: Annotated[
        Path | None,
        path_option(
            "--input", "-i", help="File to translate; by default piped in."
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="How much less probable a line that differs may be, in nats "
            "per token; int8 needs more, such as 0.1, and so does a translator "
            "in half precision without --dtype float32."
        ),
    ] = 0.01,
    json_file: Annotated[
        Path | None,
        path_option("--json", help="File for the full report, as JSON."),
    ] = None,
    dtype: Dtype = None,
    overwrite: Overwrite = False,
    *,
    search_options,
):
    """Compare exports with the translator they were made from.

    Prints, for each export, how many lines are the same, the first that differs
    and the one that differs most, and its size, times and memory. The search
    must be that of the export: give the options that the export command had. A
    CTranslate2 folder has none; it searches greedily, or with --search beam
    --patience 1 --length-penalty-form power.
    The exit code is 1 if a line, or the score of an identical line, differs by
    more than --tolerance, if an export was made from other weights or
    vocabularies, or if it has operations that not every runtime has.

    \b
    Example:
      keras-transformer verify runs/en-de exported/en-de/1 en-de.tflite \\
        --input test.en
      keras-transformer verify runs/en-de exported/beam/1 -i test.en \\
        --search beam
      keras-transformer verify runs/en-de en-de-int8.tflite -i test.en \\
        --tolerance 0.1 --json report.json
    """  # noqa: D301
    check_output("--json", json_file, overwrite, [input, *exports])
    for path in exports:  # before minutes are spent on the first
        if not path.exists():
            raise FileNotFoundError(f"No such export: {str(path)!r}.")
    if input:
        check_file(input)
    check_folder(folder)
    from keras_transformer.checks import check_not_negative_number
    from keras_transformer.text.lines import check_line_lengths

    check_not_negative_number(tolerance=tolerance)
    lines, place = input_lines(input), input or STANDARD_INPUT
    if not lines:
        raise ValueError(f"Text must not be empty. Received: {place}.")
    with quiet_start():
        from keras_transformer.serving.verify import Reference
        from keras_transformer.serving.verify import compare

    translator = load(folder, dtype)
    set_search(translator, search_options)
    check_line_lengths(lines, place, translator)
    sound, errors = _inspected(translator, exports)
    reports, reference = [], Reference(translator, lines)
    try:
        if any(export.format != "CTranslate2" for export in sound):
            _ = reference.outputs  # now, as an error here is no export's
        with signals_handled(end_by_signal, signal.SIGTERM, signal.SIGHUP):
            for export in sound:
                try:
                    report = compare(reference, export, tolerance)
                # Damaged, its engine is not installed, or its process died.
                except (ImportError, RuntimeError, ValueError) as error:
                    errors.append(str(error))
                else:
                    reports.append(report)
    finally:  # an error in one export does not lose the other reports
        if reports:
            _write_and_show(reports, json_file)
    if errors:
        raise ValueError(" ".join(errors))
    if not all(report.passed for report in reports):
        raise typer.Exit(1)


def _inspected(translator, paths):
    """What can be compared, and the errors of what cannot."""
    from keras_transformer.serving.export_note import note_of
    from keras_transformer.serving.verify import inspect_export

    exports, errors, note = [], [], note_of(translator)
    for path in paths:
        try:
            exports.append(inspect_export(translator, note, path))
        except ValueError as error:  # not ours, or with another search
            errors.append(str(error))
    return exports, errors


def _write_and_show(reports, json_file):
    """Writes reports as JSON, if there is a file for it, and prints them."""
    import rich.console

    from keras_transformer.serving import verify_report

    if json_file:  # first: the table's reader may close the pipe
        write_file(json_file, verify_report.to_json(reports).encode())
    console = rich.console.Console(markup=False, emoji=False, highlight=False)
    verify_report.show(reports, console)

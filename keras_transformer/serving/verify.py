"""Whether an export translates as the translator does, and at what cost."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import keras_transformer
from keras_transformer.checks import check_kind
from keras_transformer.checks import check_not_negative_number
from keras_transformer.checks import check_texts
from keras_transformer.serving import litert_contents
from keras_transformer.serving import saved_model_contents
from keras_transformer.serving.ctranslate2 import NUM_POSITIONS
from keras_transformer.serving.ctranslate2 import as_exported
from keras_transformer.serving.ctranslate2 import check_lines
from keras_transformer.serving.ctranslate2 import is_ctranslate2
from keras_transformer.serving.ctranslate2 import search_options
from keras_transformer.serving.differences import Difference
from keras_transformer.serving.differences import differences_of
from keras_transformer.serving.differences import score_gap
from keras_transformer.serving.export_note import CTRANSLATE2_FILE
from keras_transformer.serving.export_note import compare_note
from keras_transformer.serving.export_note import note_of
from keras_transformer.serving.export_note import read_note
from keras_transformer.system.atomic import temporary_folder
from keras_transformer.translator import Translator

# Another order of float32 sums changes a token's log-probability by far less,
# and no reader of the translations would notice a difference this small.
TOLERANCE = 0.01

PROGRAM = pathlib.Path(__file__).with_name("run_export.py")
ERRORS = {"ImportError": ImportError, "ValueError": ValueError}


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What `verify_export` has found.

    Attributes:
        path: The export.
        format: `"SavedModel"`, `"LiteRT"` or `"CTranslate2"`.
        lines: Number of lines.
        identical: Number of lines translated to the same text.
        beyond_tolerance: Number of lines that differ by more than `tolerance`.
        tolerance: As given, in nats.
        score_gap: The largest difference between the scores of the same text,
            in nats per token.
        first_difference: The first `Difference`, or `None`.
        worst_difference: The one with the largest `severity`, or `None`.
        size_bytes: Size on disk.
        load_seconds: Time until the export can be called, without imports.
        seconds_per_sentence: Time of one call with all lines, divided by
            their number, after a call to warm up; CTranslate2 gets a call for
            each length, as it has one limit for all targets of a call.
        peak_memory_bytes: Peak resident memory of the process that ran it,
            libraries included.
        foreign_operations: Operations that not every runtime has.
        other_parts: What the export was made from and the translator has
            otherwise: `"weights"`, `"source vocabulary"`, `"target
            vocabulary"`, `"max_length"`.
    """

    path: str
    format: str
    lines: int
    identical: int
    beyond_tolerance: int
    tolerance: float
    score_gap: float
    first_difference: Difference | None
    worst_difference: Difference | None
    size_bytes: int
    load_seconds: float
    seconds_per_sentence: float
    peak_memory_bytes: int
    foreign_operations: tuple[str, ...]
    other_parts: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the export is not the same model: none if it is."""
        reasons = {
            "lines": self.beyond_tolerance,
            # Not `>`, which would be false of what is not a number.
            "scores": not self.score_gap <= self.tolerance,
            "operations": self.foreign_operations,
        }
        return (
            *(f"made from other {part}" for part in self.other_parts),
            *(reason for reason, is_one in reasons.items() if is_one),
        )

    @property
    def passed(self) -> bool:
        """Whether it was made from this translator, and all is the same.

        All lines are within tolerance, and no operation is foreign.
        """
        return not self.reasons


class Export(NamedTuple):
    """What is known of an export without running it.

    Attributes:
        path: Where it is.
        format: `"SavedModel"`, `"LiteRT"` or `"CTranslate2"`.
        foreign_operations: Operations that not every runtime has.
        other_parts: Parts of what it was made from that are not the
            translator's.
        options: What it must be told to search as the translator does.
    """

    path: str
    format: str
    foreign_operations: tuple[str, ...]
    other_parts: tuple[str, ...]
    options: dict


def verify_export(
    translator, path, lines, tolerance: float = TOLERANCE
) -> ExportReport:
    """Compares an export with the translator it was made from.

    The export runs in a process of its own: a SavedModel with tensorflow and
    tensorflow-text and without this library, a LiteRT file with
    `LiteRTTranslator`, without TensorFlow and Keras, a folder of CTranslate2
    with ctranslate2 and sentencepiece, in float32. In CTranslate2, tokens that
    are never chosen (padding and start) have no share of the probability; so it
    is compared with a copy of the translator where that is so too.

    Outputs may differ although nothing is wrong: where two tokens are equally
    probable but for rounding, the order of sums decides between them, and all
    that follows may differ. So the translator's model judges the export's
    output. A line is beyond tolerance if, according to the model, the first two
    tokens that differ have different probabilities after the same prefix, and
    the export's whole output is less probable per token, both by more than
    `tolerance` nats; or if it cannot compare the two, as one is too long for
    it, or both have the same tokens. Of several hypotheses, the one that
    differs most counts. Where the texts are the same, their scores must be,
    within `tolerance`. What a search forbids is not judged: an output that the
    model finds more probable is within tolerance.

    An export that was made from other weights or vocabularies, such as those
    before the last training, or with another `max_length`, is not the same
    model, whatever it says.

    Args:
        translator: The `Translator`, with the search it was exported with;
            for CTranslate2, to which none is exported, `GreedySearch()`, or
            `BeamSearch` with `patience=1` and `length_penalty_form="power"`.
        path: Folder of a SavedModel or of CTranslate2, or a LiteRT file.
        lines: Texts to translate, a sequence of strings.
        tolerance: Tolerance, in nats. 0.01 suits float32; `"int8"` weights need
            more, such as 0.1, and so does a translator that computes in
            bfloat16.

    Returns:
        An `ExportReport`.

    Raises:
        FileNotFoundError: If there is no such folder or file.
        ImportError: If the export is a LiteRT file and ai-edge-litert is not
            installed, or one of CTranslate2 and ctranslate2 is not.
        RuntimeError: If the process that runs the export fails.
        TypeError: If `translator` is not a `Translator`, `lines` are not
            strings, or `tolerance` is not a number.
        ValueError: If there are no lines, `tolerance` is negative, or the
            export is damaged, was not written by `export_saved_model`,
            `export_litert` or `export_ctranslate2`, or has another search than
            the translator; or if it is one of CTranslate2, and that does not
            compute what the translator's model does, or a line is longer than
            its positions.
    """
    check_kind("translator", translator, Translator)
    check_not_negative_number(tolerance=tolerance)
    lines = check_texts("lines", lines)
    if not lines:
        raise ValueError("`lines` must not be empty. Received: no line.")
    export = inspect_export(translator, note_of(translator), path)
    return compare(Reference(translator, lines), export, tolerance)


class Reference:
    """What exports are compared with; nothing is translated before it is used.

    Args:
        translator: The `Translator`.
        lines: As for `verify_export`.
    """

    def __init__(self, translator: Translator, lines):
        self.translator = translator
        self.lines = lines

    @functools.cached_property
    def outputs(self):
        """Translations of the lines, and their scores."""
        return self.translator(self.lines, return_scores=True)

    @functools.cached_property
    def of_ctranslate2(self):
        """The same for exports to CTranslate2, whose scores differ.

        Raises:
            ValueError: If CTranslate2 does not compute what the model does, or
                a line is longer than its positions.
        """
        check_lines(self.translator, self.lines)
        return Reference(as_exported(self.translator), self.lines)


def inspect_export(translator, note: bytes, path) -> Export:
    """Inspects an export without running it.

    Args:
        translator: The `Translator` that it is compared with.
        note: The `note_of` it, which takes long to make.
        path: As for `verify_export`.

    Raises:
        FileNotFoundError: If there is no such folder or file.
        ValueError: As `verify_export`, except for what only running it shows.
    """
    path = os.fsdecode(path)
    if os.path.isdir(path) and is_ctranslate2(path):
        exported = read_note(os.path.join(path, CTRANSLATE2_FILE))
        other_parts = compare_note(note, exported, path, has_search=False)
        options = {
            "longest": translator.model.max_length or NUM_POSITIONS,
            "is_fast": translator.target_tokenizer.is_fast,
            **search_options(translator.search),
        }
        return Export(path, "CTranslate2", (), other_parts, options)
    kind, contents = "LiteRT", litert_contents
    if os.path.isdir(path):
        kind, contents = "SavedModel", saved_model_contents
    foreign, exported = contents.read(path)
    other_parts = compare_note(note, exported, path)
    return Export(path, kind, tuple(foreign), other_parts, {})


def compare(reference: Reference, export, tolerance) -> ExportReport:
    """Runs an export and compares its translations with the translator's.

    Args:
        reference: The `Reference`.
        export: The `Export`, from `inspect_export`.
        tolerance: As for `verify_export`.
    """
    if export.format == "CTranslate2":
        reference = reference.of_ctranslate2
    translator, lines = reference.translator, reference.lines
    expected, expected_scores = reference.outputs
    measured = _measured(export, lines)
    found, scores = measured.pop("translations"), measured.pop("scores")
    differences = differences_of(translator, lines, expected, found)
    return ExportReport(
        path=export.path,
        format=export.format,
        foreign_operations=export.foreign_operations,
        other_parts=export.other_parts,
        **measured,
        lines=len(lines),
        identical=len(lines) - len(differences),
        beyond_tolerance=sum(not x.severity <= tolerance for x in differences),
        tolerance=tolerance,
        score_gap=score_gap(
            translator,
            expected,
            found,
            expected_scores,
            scores,
        ),
        first_difference=differences[0] if differences else None,
        worst_difference=max(
            differences, key=lambda x: x.severity, default=None
        ),
        size_bytes=_size(export.path),
    )


def _measured(export, lines):
    """Runs the export in a process of its own."""
    # All but a SavedModel need this library, from whatever directory.
    root = pathlib.Path(keras_transformer.__file__).parents[1]
    # On the CPU: this process may hold all memory of a GPU.
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    if export.format != "SavedModel":
        paths = (str(root), environment.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with temporary_folder() as folder, _open_while_alive() as pipe:
        task, result = (pathlib.Path(folder) / name for name in ("task", "out"))
        content = {
            "format": export.format,
            "path": export.path,
            "lines": lines,
            "options": export.options,
        }
        task.write_text(json.dumps(content), "utf-8")
        # Without -P, the modules beside the program would hide others.
        process = subprocess.run(
            [sys.executable, "-P", str(PROGRAM), str(task), str(result)],
            env=environment,
            stdin=pipe,  # at whose end the program ends
            capture_output=True,
            text=True,
            errors="replace",
        )
        if process.returncode or not result.is_file():
            *_, last = ["", *process.stderr.strip().splitlines()]
            raise RuntimeError(
                f"The process that runs {export.path!r} ended with code "
                f"{process.returncode}. {last}"
            )
        measured = json.loads(result.read_text("utf-8"))
    if "error" in measured:
        name, message = measured["error"]
        if export.path not in message:  # as of text too long for it
            message = f"{export.path}: {message}"
        raise ERRORS[name](message)
    return measured


@contextlib.contextmanager
def _open_while_alive():
    """Yields a pipe to read, which ends when this process does, however."""
    reader, writer = os.pipe()
    try:
        yield reader
    finally:
        os.close(reader)
        os.close(writer)


def _size(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(
        file.stat().st_size
        for file in pathlib.Path(path).rglob("*")
        if file.is_file()
    )

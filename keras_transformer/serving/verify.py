"""Whether an export says what the translator says, and what it costs."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys

import numpy as np

import keras_transformer
from keras_transformer.atomic import temporary_folder
from keras_transformer.checks import check_finite
from keras_transformer.checks import check_kind
from keras_transformer.checks import check_texts
from keras_transformer.serving import litert
from keras_transformer.serving import portable
from keras_transformer.serving.search_note import check_note
from keras_transformer.serving.search_note import read_note
from keras_transformer.translator import Translator

# Float32 sums in another order change a token's log-probability by far less,
# and a reader of the translations would not notice this much.
TOLERANCE = 0.01

PROGRAM = pathlib.Path(__file__).with_name("run_export.py")
ERRORS = {"ImportError": ImportError, "ModuleNotFoundError": ImportError}


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where an export says something else than the translator.

    Attributes:
        line: Number of the line, from 1.
        source: The line.
        expected: What the translator makes of it.
        found: What the export makes of it.
        position: Number of tokens that both begin with.
        expected_token: The translator's token after them, `</s>` at its end.
        found_token: The export's.
        expected_score: Log-probability of `expected`, in nats, as the
            translator's model computes it.
        found_score: That of `found`.
        token_gap: By how much less probable the model thinks the export's
            token than the translator's, in nats; less than 0 where it thinks
            it more probable, as a beam search may.
        gap: By how much less probable it thinks the export's text, in nats
            per token; less than 0 where it thinks it more probable.
    """

    line: int
    source: str
    expected: str
    found: str
    position: int
    expected_token: str
    found_token: str
    expected_score: float
    found_score: float
    token_gap: float
    gap: float

    @property
    def severity(self) -> float:
        """The smaller gap, in nats: what is compared with the tolerance.

        A token that is more probable excuses nothing: that a search leaves it
        is what the export must do too.
        """
        return min(abs(self.token_gap), self.gap)


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What `verify_export` has found.

    Attributes:
        path: The export.
        format: `"SavedModel"` or `"LiteRT"`.
        lines: Number of lines.
        identical: Number of lines translated to the same text.
        beyond_tolerance: Number of lines that differ by more than `tolerance`.
        tolerance: As given, in nats.
        score_gap: The largest difference of the scores of the same text, in
            nats per token.
        first_difference: The first `Difference`, or `None`.
        worst_difference: The one with the largest `severity`, or `None`.
        size_bytes: Size on disk.
        load_seconds: Time until the export can be called; imports not
            counted.
        seconds_per_sentence: Time of one call with all lines, divided by
            their number, after a call to warm up.
        peak_memory_bytes: Most resident memory of the process that ran it,
            libraries included.
        foreign_operations: Operations that not every runtime has.
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

    @property
    def passed(self) -> bool:
        """Whether all is within tolerance, and all operations known."""
        is_same = not self.beyond_tolerance and self.score_gap <= self.tolerance
        return is_same and not self.foreign_operations


def verify_export(
    translator,
    path,
    lines,
    tolerance: float = TOLERANCE,
    expected=None,
) -> ExportReport:
    """Compares an export with the translator it was made from.

    The export runs in a process of its own: a SavedModel with tensorflow and
    tensorflow-text and without this library, a LiteRT file with
    `LiteRTTranslator`, without TensorFlow and Keras.

    Two outputs may differ without a fault: sums in another order decide where
    two tokens are equally probable but for rounding, and all that follows may
    differ then. So the translator's model judges the export's output. A line
    is beyond tolerance if the model thinks the first two tokens that differ,
    given the same ones before, not equally probable, and the whole output less
    probable per token, both by more than `tolerance` nats; of several
    hypotheses, the one that differs most counts. Where the text is the same,
    so must be its score. What a search forbids is not judged: an output that
    the model thinks more probable is within tolerance.

    Args:
        translator: The `Translator`, with the search it was exported with.
        path: Folder of a SavedModel, or a LiteRT file.
        lines: Texts to translate, a sequence of strings.
        tolerance: In nats. 0.01 suits float32; weights of `"int8"` need more,
            such as 0.1, and so does a translator that computes in bfloat16.
        expected: What `translator(lines, return_scores=True)` gives, where
            that is known already.

    Returns:
        An `ExportReport`.

    Raises:
        FileNotFoundError: If there is no such folder or file.
        ImportError: If a LiteRT file is to be run without ai-edge-litert.
        RuntimeError: If the process that runs the export fails.
        TypeError: If `translator` is no `Translator`, or `lines` no strings.
        ValueError: If there are no lines, `expected` is not of as many, or
            the export is damaged, not one of `export_saved_model` or
            `export_litert`, or has another search than the translator.
    """
    check_kind("translator", translator, Translator)
    check_tolerance(tolerance)
    lines = check_texts("lines", lines)
    if not lines:
        raise ValueError("`lines` must not be empty. Received: no line.")
    path = os.fsdecode(path)
    kind, foreign = inspected(translator, path)
    if expected is None:
        expected = translator(lines, return_scores=True)
    counts = [len(lines)] * 2
    if [len(part) for part in expected] != counts:
        raise ValueError(
            "`expected` must be two: the translations, one for each line, and "
            f"their scores. Received: {len(expected)} parts of "
            f"{', '.join(str(len(part)) for part in expected)}, for "
            f"{len(lines)} lines."
        )
    expected, expected_scores = expected
    count = translator.search.num_hypotheses
    for line in expected:
        if (1 if isinstance(line, str) else len(line)) != count:
            raise ValueError(
                "`expected` must have as many translations of a line as the "
                f"search has hypotheses. Received: {line!r}, num_hypotheses="
                f"{count}."
            )
    measured = _measured(kind, path, lines)
    found, scores = measured.pop("translations"), measured.pop("scores")
    unequal = [
        (index, pair)
        for index, outputs in enumerate(zip(expected, found, strict=True))
        for pair in _unequal(*outputs)
    ]
    differences = [
        max(of_a_line, key=lambda x: x.severity)
        for _, of_a_line in itertools.groupby(
            _differences(translator, lines, unequal), key=lambda x: x.line
        )
    ]
    return ExportReport(
        path=path,
        format=kind,
        lines=len(lines),
        identical=len(lines) - len(differences),
        beyond_tolerance=sum(x.severity > tolerance for x in differences),
        tolerance=tolerance,
        score_gap=_score_gap(
            translator.target_tokenizer,
            expected,
            found,
            expected_scores,
            scores,
        ),
        first_difference=differences[0] if differences else None,
        worst_difference=max(
            differences, key=lambda x: x.severity, default=None
        ),
        size_bytes=_size(path),
        foreign_operations=tuple(foreign),
        **measured,
    )


def check_tolerance(tolerance):
    """Raises unless it is a finite number of at least 0."""
    check_finite(tolerance=tolerance)
    if tolerance < 0:
        raise ValueError(
            "`tolerance` must not be negative. Received: "
            f"tolerance={tolerance}."
        )


def inspected(translator, path) -> tuple[str, list[str]]:
    """Looks at an export, without running it.

    Returns:
        Its format, and its foreign operations.

    Raises:
        FileNotFoundError: If there is no such folder or file.
        ValueError: As `verify_export`, but for what a run of it finds.
    """
    path = os.fsdecode(path)
    if os.path.isdir(path):
        kind, note = "SavedModel", read_note(path)
        foreign = portable.foreign_operations(portable.read_saved_model(path))
    else:
        kind = "LiteRT"
        foreign, note = litert.inspected(path)
    check_note(translator.search, note, path)
    return kind, foreign


def _measured(kind, path, lines):
    """Runs the export in a process of its own."""
    # For a LiteRT file this library must be found from anywhere.
    root = pathlib.Path(keras_transformer.__file__).parents[1]
    # On the CPU: this process may hold all memory of a GPU.
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    if kind == "LiteRT":
        paths = (str(root), environment.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with temporary_folder() as folder, _while_alive() as alive:
        task, result = (pathlib.Path(folder) / name for name in ("task", "out"))
        content = {"format": kind, "path": path, "lines": lines}
        task.write_text(json.dumps(content), "utf-8")
        # Without -P the modules beside the program would hide others.
        process = subprocess.run(
            [sys.executable, "-P", str(PROGRAM), str(task), str(result)],
            env=environment,
            stdin=alive,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if process.returncode or not result.is_file():
            *_, last = ["", *process.stderr.strip().splitlines()]
            raise RuntimeError(
                f"The process that runs {path!r} ended with code "
                f"{process.returncode}. {last}"
            )
        measured = json.loads(result.read_text("utf-8"))
    if "error" in measured:
        name, message = measured["error"]
        raise ERRORS.get(name, ValueError)(message)
    return measured


@contextlib.contextmanager
def _while_alive():
    """Gives a file that has an end once this process has ended, however."""
    end, alive = os.pipe()
    try:
        yield end
    finally:
        os.close(end)
        os.close(alive)


def _unequal(expected, found):
    """The hypotheses of a line that differ, in pairs."""
    if isinstance(expected, str):
        expected, found = [expected], [found]
    pairs = zip(expected, found, strict=True)
    return [pair for pair in pairs if len({*pair}) > 1]


def _score_gap(tokenizer, expected, found, expected_scores, scores):
    """The largest difference of the scores of the same text."""
    shape = (len(expected), -1)
    texts = np.reshape(np.array(expected, object), shape)
    is_same = texts == np.reshape(np.array(found, object), shape)
    expected_scores, scores = (
        np.reshape(x, shape)[is_same] for x in (expected_scores, scores)
    )
    lengths = [len(ids) + 1 for ids in tokenizer.encode([*texts[is_same]])]
    # What does not exist has an infinite score, on both sides.
    unequal = expected_scores != scores
    gaps = np.abs(expected_scores[unequal] - scores[unequal])
    return float(np.max(gaps / np.array(lengths)[unequal], initial=0.0))


def _differences(translator, lines, unequal):
    """Says of each pair of outputs how probable the model thinks it."""
    sources = [lines[index] for index, _ in unequal]
    sides = [
        _scored(translator, sources, [pair[side] for _, pair in unequal])
        for side in (0, 1)
    ]
    return [
        _difference(index + 1, lines[index], pair, expected, found)
        for (index, pair), expected, found in zip(unequal, *sides, strict=True)
    ]


def _scored(translator, sources, texts):
    """The tokens of each text, and the log-probability of each."""
    tokenizer = translator.target_tokenizer
    pieces = tokenizer.pieces
    rows = [
        [pieces[token] for token in (*ids, tokenizer.end_token_id)]
        for ids in tokenizer.encode(texts)
    ]
    # The model cannot score a text that is longer than it may be.
    longest = translator.longest_source
    is_scored = [len(row) <= longest for row in rows]
    _, scores = translator.score(
        sources,
        [text * known for text, known in zip(texts, is_scored, strict=True)],
    )
    return [
        (row, of_tokens if known else np.full(len(row), -np.inf))
        for row, of_tokens, known in zip(rows, scores, is_scored, strict=True)
    ]


def _difference(line, source, texts, expected, found):
    (tokens, scores), (found_tokens, found_scores) = expected, found
    shorter = min(len(tokens), len(found_tokens))
    # Different texts may have the same tokens, such as unknown characters:
    # equally probable, and within any tolerance.
    position = next(
        (i for i in range(shorter) if tokens[i] != found_tokens[i]), shorter - 1
    )
    return Difference(
        line=line,
        source=source,
        expected=texts[0],
        found=texts[1],
        position=position,
        expected_token=tokens[position],
        found_token=found_tokens[position],
        expected_score=float(np.sum(scores)),
        found_score=float(np.sum(found_scores)),
        token_gap=_gap(scores[position], found_scores[position]),
        gap=_gap(np.mean(scores), np.mean(found_scores)),
    )


def _gap(expected, found):
    # Of two texts that the model cannot score, neither is within a tolerance.
    if -math.inf in (expected, found):
        return math.inf
    return float(expected - found)


def _size(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(
        file.stat().st_size
        for file in pathlib.Path(path).rglob("*")
        if file.is_file()
    )

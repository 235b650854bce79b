"""`verify_export` tells a fault from a tie, and what an export costs."""

import contextlib
import dataclasses
import errno
import io
import json
import os
import shutil
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import rich.console

import keras_transformer as kt
from keras_transformer import cli
from keras_transformer.serving import differences
from keras_transformer.serving import export_note
from keras_transformer.serving import litert_contents
from keras_transformer.serving import saved_model_contents
from keras_transformer.serving import verify
from keras_transformer.serving import verify_report

LINES = [
    "the cat sees the dog",
    "",
    "fox",
    "the hen 😀 sees the fox",
    "[bold] the dog " * 9,
]


def with_weights(translator, change):
    """The same translator with other weights."""
    config = translator.model.get_config()
    model = kt.Transformer.from_config(config)
    model.set_weights([change(x) for x in translator.model.get_weights()])
    return kt.Translator(model, translator.tokenizer)


def pretend(monkeypatch, translations, scores=None):
    """Lets the export say this, by default with the right scores.

    Whatever search it has.
    """
    monkeypatch.setattr(verify, "compare_note", lambda *_: ())
    if scores is None:
        scores = np.zeros(len(translations))
        monkeypatch.setattr(verify, "score_gap", lambda *_: 0.0)
    monkeypatch.setattr(
        verify,
        "_measured",
        lambda export, lines: {
            "translations": translations,
            "scores": scores.tolist(),
            "load_seconds": 1.0,
            "seconds_per_sentence": 2.0,
            "peak_memory_bytes": 3,
        },
    )


def num_tokens(translator, lines):
    """How many tokens each line's translation is made of."""
    rows = [[*ids, 3] if ids else [] for ids in translator.encode(lines)]
    longest = max(map(len, rows))
    ids, _ = translator.model.generate(
        [[*row, *[0] * (longest - len(row))] for row in rows],
        translator.search,
    )
    return np.maximum(np.sum(ids != 0, axis=-1), 1)


def run(*arguments, stdin=b""):
    """Types a command; gives its exit code and what it printed."""
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        monkeypatch.setattr(
            sys, "argv", ["keras-transformer", *map(str, arguments)]
        )
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    return types.SimpleNamespace(
        code=code, output=output.getvalue(), errors=errors.getvalue()
    )


@pytest.mark.slow
def test_export_runs_without_this_library(small, tmp_path, monkeypatch):
    (tmp_path / "keras_transformer.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = kt.verify_export(small.translator, small.saved_model, LINES)
    assert report.passed
    assert (report.format, report.lines, report.identical) == (
        *("SavedModel", 5, 5),
    )
    assert report.first_difference is report.worst_difference is None
    assert report.beyond_tolerance == 0
    assert report.foreign_operations == ()
    assert report.size_bytes == sum(
        path.stat().st_size
        for path in small.saved_model.rglob("*")
        if path.is_file()
    )
    assert 0 < report.load_seconds < 60
    assert 0 < report.seconds_per_sentence < 60
    # TensorFlow alone needs more than the first.
    assert 100e6 < report.peak_memory_bytes < 10e9


def test_export_of_another_search_is_named(small, tmp_path):
    command = ("verify", small.folder, small.saved_model, "--search", "beam")
    result = run(*command, stdin=b"fox\n")
    assert (result.code, result.output) == (2, "")
    assert (
        "Received: BeamSearch(length_penalty=0.6, length_penalty_form='gnmt', "
        "num_hypotheses=1, patience=None, width=4), but GreedySearch() in "
        f"'{small.saved_model}'. Set `translator.search`, or give the command "
        "the options that `export` had."
    ) in result.errors
    search = kt.GreedySearch(no_repeat_ngram_size=2)
    translator = kt.Translator(
        small.translator.model, small.translator.tokenizer, search=search
    )
    message = r"GreedySearch\(no_repeat_ngram_size=2\), but GreedySearch\(no_r"
    with pytest.raises(ValueError, match=message):
        kt.verify_export(translator, small.saved_model, LINES)
    path = tmp_path / "1"
    shutil.copytree(small.saved_model, path)
    for note in (b"{", b"[1]", b"{}", b"\xff"):
        (path / export_note.FILE).write_bytes(note)
        with pytest.raises(ValueError, match="The export is damaged.*/1', who"):
            kt.verify_export(small.translator, path, LINES)
    shutil.rmtree(path / "assets.extra")
    with pytest.raises(ValueError, match="does not say what it was made from"):
        kt.verify_export(small.translator, path, LINES)


def test_the_same_search_may_be_written_otherwise(small):
    model, tokenizer = small.translator.model, small.translator.tokenizer
    one, other = (
        kt.Translator(model, tokenizer, search=kt.BeamSearch(length_penalty=x))
        for x in (1, 1.0)
    )
    note = export_note.note_of(one)
    assert (
        export_note.compare_note(export_note.note_of(other), note, "path") == ()
    )


def test_export_of_another_translator_is_named(small, monkeypatch):
    """Even if it says the same, as that before the last update may."""
    retrained = with_weights(small.translator, lambda x: x + 1e-7)
    pretend(monkeypatch, retrained(LINES))
    monkeypatch.setattr(verify, "compare_note", export_note.compare_note)
    report = kt.verify_export(retrained, small.saved_model, LINES)
    assert report.identical == len(LINES)
    assert not report.passed
    assert report.other_parts == ("weights",)
    assert report.reasons == ("made from other weights",)
    output = io.StringIO()
    verify_report.show([report], rich.console.Console(file=output, width=80))
    assert "no: made from other weights" in output.getvalue()
    assert "than the translator has: export it again" in output.getvalue()

    translator = small.translator
    lines = ["a quick brown fox jumps over the lazy dog"] * 9
    size = translator.tokenizer.vocabulary_size
    tokenizer = kt.Tokenizer.train(lines, size, verbose=0)
    other = kt.Translator(translator.model, translator.tokenizer, tokenizer)
    note = export_note.note_of(translator)
    found = export_note.compare_note(export_note.note_of(other), note, "path")
    assert found == ("target vocabulary",)


@pytest.mark.slow
def test_rounded_weights_are_not_told_from_others(small):
    note = export_note.note_of(small.translator)
    for dtype in ("mixed_bfloat16", "bfloat16"):
        other = small.translator.with_dtype(dtype)
        assert (
            export_note.compare_note(export_note.note_of(other), note, "path")
            == ()
        )


def test_a_search_is_checked_before_lines_are_translated(small, monkeypatch):
    monkeypatch.delattr(kt.Translator, "__call__")
    command = ("verify", small.folder, small.saved_model, "--search", "beam")
    result = run(*command, stdin=b"fox\n")
    assert result.code == 2
    assert "must have the search that was exported" in result.errors


def test_exports_that_are_not_there_are_found_first():
    result = run("verify", "no translator", "missing.tflite")
    assert result.code == 2
    assert "No such export: 'missing.tflite'" in result.errors


def test_fault_is_found(small, monkeypatch):
    faulty = with_weights(small.translator, lambda x: -x)
    expected, found = small.translator(LINES), faulty(LINES)
    pretend(monkeypatch, found)
    report = kt.verify_export(small.translator, small.saved_model, LINES)
    assert not report.passed
    differing = [x for x, y in enumerate(found) if y != expected[x]]
    assert report.identical == len(LINES) - len(differing) < len(LINES)
    assert 0 < report.beyond_tolerance <= len(differing)

    first = report.first_difference
    assert first.line == differing[0] + 1
    assert first.source == LINES[differing[0]]
    texts = (expected[differing[0]], found[differing[0]])
    assert (first.expected, first.found) == texts
    tokenizer = small.translator.tokenizer
    ids = [[*row, 3] for row in tokenizer.encode(texts)]
    place = first.position
    assert ids[0][:place] == ids[1][:place]
    assert ids[0][place] != ids[1][place]
    tokens = [tokenizer.pieces[row[place]] for row in ids]
    assert [first.expected_token, first.found_token] == tokens

    scores, of_tokens = small.translator.score([first.source] * 2, texts)
    np.testing.assert_allclose(
        (first.expected_score, first.found_score), scores, rtol=1e-4
    )
    np.testing.assert_allclose(
        first.token_gap, of_tokens[0][place] - of_tokens[1][place], rtol=1e-3
    )
    np.testing.assert_allclose(
        first.gap, of_tokens[0].mean() - of_tokens[1].mean(), rtol=1e-3
    )
    assert report.worst_difference.severity >= first.severity

    lenient = kt.verify_export(
        *(small.translator, small.saved_model, LINES), tolerance=100.0
    )
    assert lenient.passed
    assert lenient.identical == report.identical


def test_tie_is_no_fault(small, monkeypatch):
    indifferent = with_weights(small.translator, lambda x: 0 * x)
    found = ["Katze", "", "Hund sieht", "Fuchs", "Henne"]
    expected = ["Hund", "", "Fuchs", "Fuchs", "Katze"]
    pretend(monkeypatch, found)
    export = verify.inspect_export(
        indifferent, export_note.note_of(indifferent), small.saved_model
    )
    reference = verify.Reference(indifferent, LINES)
    reference.outputs = expected, np.zeros(len(LINES))
    report = verify.compare(reference, export, tolerance=1e-4)
    assert (report.identical, report.beyond_tolerance) == (2, 0)
    assert report.passed
    assert abs(report.first_difference.token_gap) < 1e-4


def test_what_another_search_finds_is_a_fault(small, monkeypatch):
    translator = kt.Translator(
        small.translator.model,
        small.translator.tokenizer,
        search=kt.BeamSearch(4, length_penalty=0),
    )
    pretend(monkeypatch, small.translator(LINES))
    report = kt.verify_export(translator, small.saved_model, LINES)
    assert report.beyond_tolerance > 0


@pytest.mark.parametrize(
    ("token_gap", "gap", "severity"),
    [
        (2.0, 3.0, 2.0),
        (-2.0, 3.0, 2.0),  # more probable, but where does it lead
        (-0.001, 3.0, 0.001),  # a tie
        (2.0, -3.0, -3.0),  # better than what the translator found
        (np.inf, np.inf, np.inf),
    ],
)
def test_a_more_probable_token_is_no_excuse(token_gap, gap, severity):
    texts = ["a", "b", "c", 0, "b", "c", -1.0, -2.0]
    assert verify.Difference(1, *texts, token_gap, gap).severity == severity


def test_other_scores_are_a_fault(small, monkeypatch):
    translator = kt.Translator(
        small.translator.model,
        small.translator.tokenizer,
        search=kt.BeamSearch(3, 0.0, num_hypotheses=2),
    )
    found, scores = translator(LINES, return_scores=True)
    assert scores[1].tolist() == [0, -np.inf]  # empty text has one translation
    pretend(monkeypatch, found, scores)
    report = kt.verify_export(translator, small.saved_model, LINES)
    assert report.passed
    assert report.score_gap == 0
    pretend(monkeypatch, found, np.nan * scores)
    report = kt.verify_export(translator, small.saved_model, LINES)
    assert report.reasons == ("scores",)
    pretend(monkeypatch, found, 2 * scores)
    report = kt.verify_export(translator, small.saved_model, LINES)
    assert (report.identical, report.beyond_tolerance) == (5, 0)
    assert not report.passed
    ids = translator.target_tokenizer.encode(sum(found, []))
    lengths = np.reshape([len(row) + 1 for row in ids], scores.shape)
    gaps = np.abs(scores / lengths)
    np.testing.assert_allclose(
        report.score_gap, gaps[np.isfinite(scores)].max(), rtol=1e-5
    )
    assert report.score_gap > report.tolerance


@pytest.mark.parametrize("form", ["gnmt", "power"])
def test_scores_are_compared_without_their_length_penalty(
    small, monkeypatch, form
):
    search = kt.BeamSearch(3, length_penalty=1.0, length_penalty_form=form)
    translator = kt.Translator(
        small.translator.model, small.translator.tokenizer, search=search
    )
    found, scores = translator(LINES, return_scores=True)
    lengths = num_tokens(translator, LINES)
    # Each token is less probable by 0.05 nats.
    divisors = lengths if form == "power" else (5 + lengths) / 6
    pretend(monkeypatch, found, scores - 0.05 * lengths / divisors)
    report = kt.verify_export(translator, small.saved_model, LINES)
    np.testing.assert_allclose(report.score_gap, 0.05, rtol=1e-3)
    assert report.reasons == ("scores",)


def test_text_made_of_nothing_is_a_fault(small, monkeypatch):
    found = small.translator(LINES)
    found[1] = "Katze"
    pretend(monkeypatch, found)
    report = kt.verify_export(small.translator, small.saved_model, LINES)
    assert report.first_difference.line == 2
    assert report.first_difference.severity == np.inf
    assert report.beyond_tolerance == 1


def test_every_hypothesis_is_compared(small, monkeypatch):
    translator = kt.Translator(
        small.translator.model,
        small.translator.tokenizer,
        search=kt.BeamSearch(3, num_hypotheses=2),
    )
    found = translator(LINES)
    found[2] = [found[2][0], "Katze sieht"]
    pretend(monkeypatch, found)
    report = kt.verify_export(translator, small.saved_model, LINES)
    assert report.identical == 4
    assert report.first_difference.found == "Katze sieht"


def test_every_hypothesis_is_judged(small, make_small, monkeypatch):
    translator = kt.Translator(
        small.translator.model,
        small.translator.tokenizer,
        search=kt.BeamSearch(3, num_hypotheses=2),
    )
    found = translator(LINES)

    def report(*hypotheses):
        pretend(monkeypatch, [*found[:2], [*hypotheses], *found[3:]])
        return kt.verify_export(translator, small.saved_model, LINES)

    first, second = found[2]
    words = ["Katze", "Hund", "sieht", "Fuchs Fuchs", "die Hund"]
    worst = max(
        words, key=lambda text: report(first, text).worst_difference.severity
    )
    assert report(first, worst).beyond_tolerance == 1
    nearest = min(
        words, key=lambda text: report(text, second).worst_difference.severity
    )
    gaps = [
        report(*found).worst_difference.severity
        for found in ((nearest, second), (first, worst))
    ]
    assert gaps[0] < gaps[1]
    both = report(nearest, worst)
    assert (both.identical, both.beyond_tolerance) == (4, 1)
    assert both.first_difference.found == worst


@pytest.mark.parametrize(
    "text",
    ["", " ", "  ", "Katze", " Katze", "Katze   sieht ", " ⁇ ", "a ⁇  ⁇ z"],
)
def test_tokens_of_a_text_have_its_spaces(small, text):
    tokenizer = small.translator.tokenizer
    [row] = differences._tokens_of(small.translator, [text])
    assert tokenizer.decode(row) == text


def test_spaces_that_encoding_drops_are_a_difference(small, monkeypatch):
    expected = small.translator(LINES)
    found = [f"{text}  " if text else "" for text in expected]
    tokenizer = small.translator.tokenizer
    assert tokenizer.encode(found) == tokenizer.encode(expected)
    pretend(monkeypatch, found)
    report = kt.verify_export(small.translator, small.saved_model, LINES)
    assert (report.identical, report.beyond_tolerance) == (1, 4)
    first = report.first_difference
    assert (first.expected_token, first.found_token) == ("</s>", "▁")
    assert np.isfinite(first.gap)


def test_texts_of_the_same_tokens_are_a_difference(small, monkeypatch):
    found = small.translator(LINES)
    found[0] = f"{found[0]}\u3000"  # a space that becomes another
    pretend(monkeypatch, found)
    report = kt.verify_export(small.translator, small.saved_model, LINES)
    assert report.beyond_tolerance == 1
    output = io.StringIO()
    verify_report.show([report], rich.console.Console(file=output, width=80))
    assert "</s> or </s>, which the model cannot compare" in output.getvalue()


def test_scores_are_divided_by_the_tokens_that_were_decoded(small, monkeypatch):
    text = f"Katze{' ' * 40}"
    pretend(monkeypatch, [text], np.array([-10.0]))
    gap = verify.score_gap(
        small.translator, [text], [text], np.array([-10.0]), np.array([-10.1])
    )
    [word] = small.translator.tokenizer.encode(["Katze"])
    np.testing.assert_allclose(gap, 0.1 / (len(word) + 41))


def test_another_limit_of_length_is_named(small, monkeypatch):
    limited = small.translator
    notes = [export_note.note_of(limited)]
    monkeypatch.setattr(limited.model, "max_length", 24)
    notes.append(export_note.note_of(limited))
    found = export_note.compare_note(*notes, "path")
    assert found == ("max_length",)
    # CTranslate2 is told the limit each time.
    notes[1] = export_note.note_of(limited, has_search=False)
    assert export_note.compare_note(*notes, "path", has_search=False) == ()


def test_text_too_long_for_the_model_is_a_fault(small, make_small, monkeypatch):
    translator = make_small(positional_encoding="learned", max_length=32)
    found = translator(LINES[:3])
    found[0] = "Katze sieht Hund " * 40
    pretend(monkeypatch, found)
    report = kt.verify_export(translator, small.saved_model, LINES[:3])
    assert report.beyond_tolerance == 1


def test_text_as_long_as_the_model_takes_is_no_excuse(
    small, make_small, monkeypatch
):
    translator = make_small(positional_encoding="learned", max_length=32)
    pretend(monkeypatch, ["Hund"])
    reference = verify.Reference(translator, LINES[:1])
    reference.outputs = ["Katze sieht Hund " * 40], np.zeros(1)
    report = verify.compare(
        reference,
        verify.inspect_export(
            translator, export_note.note_of(translator), small.saved_model
        ),
        tolerance=verify.TOLERANCE,
    )
    assert not report.passed


def test_foreign_operations_are_a_fault(small, monkeypatch):
    monkeypatch.setattr(
        saved_model_contents, "foreign_operations", lambda graph: ["XlaSort"]
    )
    pretend(monkeypatch, small.translator(LINES))
    report = kt.verify_export(small.translator, small.saved_model, LINES)
    assert report.identical == 5
    assert report.foreign_operations == ("XlaSort",)
    assert not report.passed


def test_arguments_are_checked(small):
    check = [small.translator, small.saved_model]
    with pytest.raises(TypeError, match="`translator` must be a Translator"):
        kt.verify_export(str(small.folder), small.saved_model, ["fox"])
    with pytest.raises(ValueError, match="`lines` must not be empty"):
        kt.verify_export(*check, [])
    for lines in ("the cat", [b"the cat"]):
        with pytest.raises(TypeError, match="`lines` must be a sequence of"):
            kt.verify_export(*check, lines)
    with pytest.raises(ValueError, match="`tolerance` must not be negative"):
        kt.verify_export(*check, ["fox"], tolerance=-0.5)
    with pytest.raises(ValueError, match="`tolerance` must be finite"):
        kt.verify_export(*check, ["fox"], tolerance=np.nan)


def test_damaged_weights_are_named(small, tmp_path):
    path = tmp_path / "1"
    shutil.copytree(small.saved_model, path)
    (path / "variables" / "variables.index").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="SavedModel is damaged. Received: "):
        kt.verify_export(small.translator, path, LINES)


def test_file_that_is_no_litert_model_is_named(small, tmp_path):
    path = tmp_path / "x.tflite"
    with pytest.raises(FileNotFoundError, match="No such file: '.*x.tflite'"):
        kt.verify_export(small.translator, path, LINES)
    path.write_bytes(b"notes")
    with pytest.raises(ValueError, match="must be a LiteRT model.*5 bytes"):
        kt.verify_export(small.translator, path, LINES)
    path.write_bytes(b"\x1c\0\0\0TFL3\xff\xff\xff")
    with pytest.raises(ValueError, match="The LiteRT model is damaged"):
        litert_contents.read(path)


def test_process_that_dies_is_named(small, tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text("import os, sys; print('no memory', file=sys.stderr);"
                       "sys.stderr.flush(); os._exit(9)")  # fmt: skip
    monkeypatch.setattr(verify, "PROGRAM", program)
    with pytest.raises(RuntimeError, match="ended with code 9. no memory"):
        kt.verify_export(small.translator, small.saved_model, LINES)


def test_the_export_does_not_outlive_who_runs_it(tmp_path):
    """Where that is killed there is no time to tell it."""
    pid = tmp_path / "pid"
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, sys, threading, time\n"
        "from keras_transformer.serving.run_export import end_with_parent\n"
        "threading.Thread(target=end_with_parent, daemon=True).start()\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    runner = (
        "import pathlib\n"
        "from keras_transformer.serving import verify\n"
        f"verify.PROGRAM = pathlib.Path({str(program)!r})\n"
        "export = verify.Export('x', 'SavedModel', (), (), {})\n"
        "verify._measured(export, ['fox'])\n"
    )
    with subprocess.Popen([sys.executable, "-c", runner]) as process:
        try:
            wait_until(lambda: pid.exists() and pid.read_text())
            os.kill(int(pid.read_text()), 0)
        finally:
            process.kill()
    wait_until(lambda: has_ended(pid.read_text()))


def has_ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_missing_package_is_named(small, tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys; json.dump({'error': ['ImportError', 'x needs y']},"
        " open(sys.argv[2], 'w'))"
    )
    monkeypatch.setattr(verify, "PROGRAM", program)
    with pytest.raises(ImportError, match=f"{small.saved_model}: x needs y"):
        kt.verify_export(small.translator, small.saved_model, LINES)


def test_command_compares_several_exports(small, tmp_path, monkeypatch):
    found = small.translator(LINES)
    found[1] = "Katze [b]"
    pretend(monkeypatch, found)
    text = tmp_path / "text.en"
    text.write_text("\n".join(LINES) + "\n")
    command = ("verify", small.folder, small.saved_model, small.saved_model)
    report = tmp_path / "report.json"
    result = run(*command, "-i", text, "--json", report)
    assert (result.code, result.errors) == (1, "")
    assert result.output.count("4 of 5") == 2
    assert result.output.count("differs first in line 2") == 2
    assert "Katze [b]  (-inf nats)" in result.output

    assert result.output.count("no: lines") == 2
    first, second = json.loads(report.read_text())
    assert first == second
    assert not first["passed"]
    assert first["reasons"] == ["lines"]
    names = {field.name for field in dataclasses.fields(verify.ExportReport)}
    assert set(first) == {*names, "passed", "reasons"}
    assert first["first_difference"]["found"] == "Katze [b]"
    assert first["first_difference"]["found_score"] is None

    result = run(*command, "-i", text, "--json", report)
    assert result.code == 2
    assert "exists already" in result.errors


def test_error_of_one_export_does_not_lose_what_another_showed(
    small, tmp_path, monkeypatch
):
    pretend(monkeypatch, small.translator(LINES))
    bad, report = tmp_path / "bad.tflite", tmp_path / "report.json"
    bad.write_bytes(b"notes")
    command = ("verify", small.folder, bad, small.saved_model, tmp_path)
    result = run(*command, "--json", report, stdin="\n".join(LINES).encode())
    assert result.code == 2
    assert "5 of 5" in result.output
    (line,) = result.errors.splitlines()
    assert "must be a LiteRT model" in line and "hold a SavedModel" in line
    (first,) = json.loads(report.read_text())
    assert first["passed"]


@pytest.mark.parametrize("kind", [ImportError, RuntimeError])
def test_an_export_that_cannot_run_does_not_keep_others_from_it(
    small, monkeypatch, kind
):
    pretend(monkeypatch, small.translator(LINES))
    measured, exports = verify._measured, []

    def first_fails(export, lines):
        exports.append(export)
        if len(exports) == 1:
            raise kind("It has ended.")
        return measured(export, lines)

    monkeypatch.setattr(verify, "_measured", first_fails)
    command = ("verify", small.folder, small.saved_model, small.saved_model)
    result = run(*command, stdin="\n".join(LINES).encode())
    assert (result.code, len(exports)) == (2, 2)
    assert "5 of 5" in result.output
    assert result.errors.endswith("It has ended.\n")


def test_report_is_written_where_the_table_cannot_be(
    small, tmp_path, monkeypatch
):
    def show(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    pretend(monkeypatch, small.translator(LINES))
    monkeypatch.setattr(verify_report, "show", show)
    report = tmp_path / "report.json"
    command = ("verify", small.folder, small.saved_model, "--json", report)
    result = run(*command, stdin="\n".join(LINES).encode())
    assert result.code == 2
    assert "No space left on device" in result.errors
    (found,) = json.loads(report.read_text())
    assert found["passed"]


def test_the_difference_that_fails_is_shown_too(small, monkeypatch):
    found = small.translator(LINES)
    found[:2] = "Hund", "Katze [b]"  # the second of an empty line
    pretend(monkeypatch, found)
    command = ("verify", small.folder, small.saved_model, "--tolerance", "1e9")
    result = run(*command, stdin="\n".join(LINES).encode())
    assert "differs first in line 1:" in result.output
    assert "differs most in line 2:" in result.output
    assert "Katze [b]  (-inf nats)" in result.output


def test_tolerance_is_checked_before_anything_is_translated(small, monkeypatch):
    monkeypatch.setattr(kt.Translator, "load", None)
    command = ("verify", small.folder, small.saved_model, "--tolerance", "-1")
    result = run(*command, stdin=b"fox\n")
    assert (result.code, result.output) == (2, "")
    assert "`--tolerance` must not be negative" in result.errors


def test_command_reads_lines_that_are_piped_in(small, monkeypatch):
    lines = LINES[:3]
    pretend(monkeypatch, small.translator(lines))
    command = ("verify", small.folder, small.saved_model)
    result = run(*command, stdin="\n".join(lines).encode())
    assert (result.code, result.errors) == (0, "")
    assert "3 of 3" in result.output
    assert "differs" not in result.output
    result = run(*command)
    assert (result.code, result.output) == (2, "")
    message = "Text must not be empty. Received: standard input."
    assert result.errors == f"keras-transformer: {message}\n"


def test_command_compares_with_the_search_that_was_exported(small, monkeypatch):
    translator = kt.Translator.load(small.folder)
    translator.search = kt.BeamSearch(3, 1.5)
    pretend(monkeypatch, translator(LINES))
    command = ("verify", small.folder, small.saved_model, "--search", "beam")
    options = ("--width", "3", "--length-penalty", "1.5")
    result = run(*command, *options, stdin="\n".join(LINES).encode())
    assert result.code == 0, result.output
    assert "5 of 5" in result.output


def test_command_names_what_is_no_export(small, tmp_path):
    result = run("verify", small.folder, tmp_path, stdin=b"fox\n")
    assert result.code == 2
    assert result.output == ""
    assert "The folder must hold a SavedModel" in result.errors
    assert len(result.errors.splitlines()) == 1
    assert os.listdir(tmp_path) == []

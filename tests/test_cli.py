"""The `keras-transformer` command, as it is typed."""

import contextlib
import csv
import errno
import glob
import importlib.metadata
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import typing
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import tensorflow as tf
import typer

import keras_transformer as kt
from keras_transformer import cli
from keras_transformer import transformer
from keras_transformer.cli import align as align_command
from keras_transformer.cli import options as cli_options
from keras_transformer.cli import score as score_command
from keras_transformer.cli import translate as translate_command
from keras_transformer.search import beam
from keras_transformer.serving import litert
from keras_transformer.system import atomic
from keras_transformer.tensorflow_only import threads
from keras_transformer.text import lines as lines_module
from keras_transformer.text import vocabulary
from keras_transformer.training_run import callbacks
from keras_transformer.training_run import distribution
from keras_transformer.training_run import fitting
from keras_transformer.training_run import run as training_run
from keras_transformer.training_run.interrupt import Interrupt
from keras_transformer.training_run.options import TrainingOptions

ANIMALS = {
    "cat": "Katze",
    "dog": "Hund",
    "fox": "Fuchs",
    "hen": "Henne",
    "owl": "Eule",
    "pig": "Schwein",
}
PAIRS = [
    (f"{one} sees {other}", f"{ANIMALS[one]} sieht {ANIMALS[other]}")
    for one in ANIMALS
    for other in ANIMALS
] * 2

SMALL = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "dropout": 0.1,
}
# Whole words are pieces, so that all batches have one shape.
TRAINING = [
    *("--vocabulary-size", "60", "--model-type", "bpe"),
    *("--tokens-per-batch", "32"),
    *("--max-length", "32"),
    *("--warmup-steps", "10"),
]


def run(*arguments, stdin=b"", sample=False):
    """Types a command; gives its exit code and what it printed.

    A training translates a sample if it is asked to.
    """
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        # Smaller than any real preset, for speed.
        monkeypatch.setitem(transformer.PRESETS, "tiny", SMALL)
        if not sample:
            monkeypatch.setattr(training_run, "choose_sample", lambda *_: None)
        monkeypatch.setattr(
            sys, "argv", ["keras-transformer", *map(str, arguments)]
        )
        if isinstance(stdin, bytes):
            stdin = io.TextIOWrapper(io.BytesIO(stdin))
        monkeypatch.setattr(sys, "stdin", stdin)
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    return types.SimpleNamespace(
        code=code, output=output.getvalue(), errors=errors.getvalue()
    )


def assert_is_one_line(result, pattern):
    """Checks what a user sees of an error."""
    assert result.code == 2
    assert result.output == ""
    assert len(result.errors.splitlines()) == 1, result.errors
    expected = f"keras-transformer: {pattern}\n"
    assert re.fullmatch(expected, result.errors), result.errors


def files_in(folder):
    return {
        str(path.relative_to(folder)): path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }


def write_text(folder, pairs=PAIRS):
    """Writes the two files of a corpus."""
    paths = [folder / "text.en", folder / "text.de"]
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What training for 2 epochs with validation leaves and prints."""
    folder = tmp_path_factory.mktemp("trained")
    source, target = write_text(folder)
    result = run(
        *("train", source, target, "--output", folder / "run"),
        *("--validation", source, target, "--epochs", "2"),
        *TRAINING,
        sample=True,
    )
    assert result.code == 0, result.errors
    return types.SimpleNamespace(
        source=source,
        target=target,
        folder=folder / "run",
        output=result.output,
        errors=result.errors,
        translator=kt.Translator.load(folder / "run"),
    )


def epochs_in_log(folder):
    with open(folder / "training" / "log.csv") as file:
        return [int(row["epoch"]) for row in csv.DictReader(file)]


# Help


def test_command_is_installed():
    (script,) = importlib.metadata.entry_points(
        group="console_scripts", name="keras-transformer"
    )
    assert script.load() is cli.main


@pytest.mark.parametrize(
    "command",
    [
        *("train", "translate", "evaluate", "score", "align"),
        *("export", "verify", "convert", "vocabulary"),
    ],
)
def test_help_of_every_command_shows_an_example(command):
    result = run(command, "--help")
    assert result.code == 0
    words = " ".join(result.output.split())
    assert re.search(rf"Example: keras-transformer {command} ", words)


@pytest.mark.parametrize(
    "command, headings",
    [
        (
            "train",
            ["Model", "Vocabulary", "Learning", "Validation", "How it runs"],
        ),
        ("translate", ["With a .tflite file", "Search"]),
        ("score", []),
    ],
)
def test_help_has_options_under_headings(command, headings):
    help_text = run(command, "--help").output
    found = re.findall(r"^(\S.*):$", help_text, re.MULTILINE)
    assert found == ["Arguments", "Options", *headings]
    options = typer.main.get_command(cli.app).commands[command].params
    for option in options:
        if option.param_type_name == "option":
            line = rf"^  (-\w, )?{option.opts[0]} "
            assert len(re.findall(line, help_text, re.MULTILINE)) == 1


def test_options_without_a_panel_have_a_heading(monkeypatch):
    """As `--help` itself in some versions of typer."""
    command = typer.main.get_command(cli.app).commands["score"]
    parameters = [
        types.SimpleNamespace(
            param_type_name="option",
            get_help_record=lambda context: ("--help", "Show this."),
        )
    ]
    monkeypatch.setattr(command, "get_params", lambda context: parameters)
    sections = []

    class Formatter:
        def section(self, heading):
            sections.append(heading)
            return contextlib.nullcontext()

        def write_dl(self, records):
            sections.append(records)

    command.format_options(None, Formatter())
    assert sections == ["Options", [("--help", "Show this.")]]


def test_help_names_every_command():
    result = run("--help")
    assert result.code == 0
    commands = typer.main.get_command(cli.app).commands
    assert {"train", "translate", "convert"} < set(commands)
    for command in commands:
        assert re.search(rf"^.? *{command} ", result.output, re.MULTILINE)


def test_without_a_command_help_is_shown():
    result = run()
    assert (result.code, result.output) == (2, "")
    assert "Usage: " in result.errors


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("tran", "No such command 'tran'.*"),
        ("--vocabulary", "No such option:? .?--vocabulary.*"),
        ("train", "Missing argument 'source'."),
        ("train a b --foo 1", "No such option:? .?--foo.*"),
        ("train a b --epochs two", "Invalid value for '--epochs': .*"),
        ("train a b --output", "Option '--output' requires an argument."),
        ("train --validation a", "Option '--validation' requires 2 arguments."),
        ("--version=3", "Option '--version' does not take a value."),
        ("export a b --format onnx", "Invalid value for '--format': .*"),
    ],
)
def test_what_cannot_be_parsed_is_one_line_that_names_the_help(typed, message):
    result = run(*typed.split())
    assert_is_one_line(result, rf"(?i:{message}) See `.*keras.transformer.*`\.")
    assert "?." not in result.errors
    [first, *_] = typed.split()
    command = f"{first} " if first in ("train", "export") else ""
    assert f"keras-transformer {command}--help`" in result.errors


def test_version():
    result = run("--version")
    assert (result.code, result.errors) == (0, "")
    assert result.output == f"keras-transformer {kt.__version__}\n"


def test_module_is_the_command_and_version_needs_no_tensorflow():
    code = (
        "import runpy, sys; sys.modules['tensorflow'] = None;"
        "sys.modules['keras'] = None; sys.argv[1:] = ['--version'];"
        "runpy.run_module('keras_transformer', run_name='__main__')"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output == f"keras-transformer {kt.__version__}\n"


def test_translate_without_keras_says_what_to_install(trained):
    code = (
        "import sys; sys.modules['keras'] = None; from keras_transformer import"
        " cli; cli.main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "translate", trained.folder],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "needs keras, which is not installed. `pip install .`" in line


# Train


def test_training_prints_losses_samples_and_what_to_do_next(trained):
    assert "val_loss" in trained.output
    assert len(re.findall(r"^ +-> ", trained.output, re.MULTILINE)) == 2
    assert "text.en" in trained.errors
    assert "72 pairs, 72 kept" in trained.errors
    assert re.search(r"^Training on .*\.$", trained.errors, re.MULTILINE)
    assert "learning rate peaks" not in trained.errors
    assert f"after epoch 2 is in {trained.folder}" in trained.errors
    assert f"keras-transformer translate {trained.folder}" in trained.errors


def test_training_leaves_a_translator_and_a_log(trained):
    assert len(trained.translator(["the cat"])) == 1
    assert trained.translator.tokenizer.vocabulary_size == 60
    assert epochs_in_log(trained.folder) == [0, 1]


def test_every_option_of_a_training_reaches_it(told, tmp_path):
    """As the text that is typed, of the type that it declares."""
    command = typer.main.get_command(cli.app).commands["train"]
    switches = {x.name: x.opts[0] for x in command.params}
    hints = typing.get_type_hints(TrainingOptions)
    assert hints.keys() <= switches.keys()
    del hints["output"]
    for name, hint in hints.items():
        while typing.get_args(hint):  # of what may be `None`, of a choice
            hint = typing.get_args(hint)[0]
        typed, expected = {
            bool: ([], True),
            int: (["7"], 7),
            float: (["0.25"], 0.25),
            str: (["x.model"], "x.model"),
        }.get(hint) or ([hint], hint)
        typed = [switches[name], *typed]
        result = run("train", "a.en", "a.de", "-o", tmp_path, *typed)
        assert result.code == 0, (typed, result.errors)
        training = told.pop()
        assert getattr(training.options, name) == expected
        assert training.options.output == str(tmp_path)
        assert not training.resume and not training.overwrite


def test_options_may_be_in_a_file(told, tmp_path):
    file = tmp_path / "recipe.yml"
    file.write_text(
        """
        source: a.en
        target: a.de
        output: runs/a
        validation: [b.en, b.de]
        tokens-per-batch: 2048
        learning_rate: 1e-3
        normalize-first: true
        bleu: true
        keep-best: false
        preset: null
        dropout: NULL
        symbols: "~"  # in quotes, and so given
        seed:
        """
    )
    typed = ["--learning-rate", "0.5", "--seed", "3"]
    result = run("train", "--config", file, *typed)
    assert result.code == 0, result.errors
    [training] = told
    assert training.texts == (
        Path("a.en"),
        Path("a.de"),
        (Path("b.en"), Path("b.de")),
    )
    assert training.options == TrainingOptions(
        output="runs/a",
        tokens_per_batch=2048,
        learning_rate=0.5,
        normalize_first=True,
        bleu=True,
        symbols="~",
        seed=3,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'.*' must hold options .*Received: nothing."),
        ("- epochs", "'.*' must hold options .*Received: sequence."),
        ("epochs: [1", "'.*' must be YAML: .*line 1.*"),
        ("epochs: \0", "'.*' must be YAML: .*"),
        (
            "seed: 1\nseed: 2",
            "'.*' must have each option once. .*'seed' twice.",
        ),
        ("? [a]\n: 1", ".* by their names. Received: sequence for a name."),
        ("max-length: 9\nmax_length: 8", "'.*' must have each option once. .*"),
        ("[" * 3000, "'.*' must be YAML: .*"),
        ("epoch: 2", ".*there is no option 'epoch'. Did you mean 'epochs'?.*"),
        ("xyz: 2", ".*there is no option 'xyz'. See .*"),
        ("config: a.yml", ".*--config must be on the command line, .*"),
        ("overwrite: true", ".*--overwrite must be on the command line, .*"),
        ("epochs: 2.5", "Invalid value for '--epochs': '2.5' in '.*': .*"),
        ("seed: true", "Invalid value for '--seed': 'true' in '.*': .*"),
        ("bleu: maybe", "Invalid value for '--bleu': 'maybe' in '.*': .*"),
        ("preset: huge", "Invalid value for '--preset': 'huge' in '.*': .*"),
        ("symbols: [a]", "'symbols' in '.*' must be a single value. .*"),
        ("seed: {a: 1}", "'seed' in '.*' must be a single value. .*"),
        ("validation: ab", "'validation' in '.*' must be a list of 2 .*"),
        ("validation: [a, [b]]", "'validation' in '.*' must be a list of 2 .*"),
        (
            "symbols:\n- &a [x]\n- &b [*a, *a, *a, *a, *a, *a, *a, *a]",
            r"'symbols' in '.*' must be a single .*: \[\[.*, \.\.\.\]\]\.",
        ),
        ("validation: [a, b, c]", "Invalid value for '--validation': .* in .*"),
    ],
)
def test_file_of_options_must_hold_them(told, tmp_path, text, message):
    file = tmp_path / "recipe.yml"
    file.write_text(text)
    result = run("train", "a.en", "a.de", "-o", tmp_path, "--config", file)
    assert_is_one_line(result, message)
    assert not told


def test_file_of_options_must_be_there(told):
    result = run("train", "a.en", "a.de", "-o", "c", "--config", "absent.yml")
    assert_is_one_line(result, "No such file: 'absent.yml'.")


@pytest.fixture
def told(monkeypatch, tmp_path):
    """The options of each training that is typed, and other arguments."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.en", "a.de", "b.en", "b.de"):
        (tmp_path / name).touch()
    trainings = []
    monkeypatch.setattr(
        training_run.TrainingRun,
        "train",
        lambda run, *texts, **others: trainings.append(
            types.SimpleNamespace(options=run.options, texts=texts, **others)
        ),
    )
    monkeypatch.setattr(training_run.TrainingRun, "state", lambda run: "")
    monkeypatch.setattr(
        training_run.TrainingRun, "has_translator", lambda run: True
    )
    return trainings


@pytest.mark.parametrize(
    ("command", "option", "choices"),
    [
        ("train", "preset", transformer.PRESETS),
        ("train", "model_type", vocabulary.MODEL_TYPES),
        ("vocabulary", "normalization", vocabulary.NORMALIZATIONS),
        ("train", "distribute", distribution.DISTRIBUTIONS),
        ("translate", "length_penalty_form", beam.LENGTH_PENALTY_FORMS),
        ("export", "quantization", litert.QUANTIZATIONS[1:]),
    ],
)
def test_a_choice_is_among_what_there_is(command, option, choices):
    """Which the command names without importing it."""
    help_text = " ".join(run(command, "--help").output.split())
    # Typer has had both brackets.
    help_text = help_text.replace("[", "<").replace("]", ">")
    switch = "--" + option.replace("_", "-")
    assert f"{switch} <{'|'.join(choices)}>" in help_text


def test_overwrite_starts_anew(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained.folder, folder)
    before = files_in(folder)
    command = [
        *("train", trained.source, trained.target, "-o", folder, *TRAINING),
        *("--vocabulary-size", "50"),
    ]
    result = run(*command)
    assert_is_one_line(
        result, "`--vocabulary-size` must be .* 60.*--overwrite.*"
    )
    assert files_in(folder) == before
    result = run(*command, "--overwrite", "--epochs", "1")
    assert result.code == 0, result.errors
    assert epochs_in_log(folder) == [0]
    translator = kt.Translator.load(folder)
    assert translator.tokenizer.vocabulary_size == 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--start-from", "x", "--vocabulary-size", "60"),
            "`--vocabulary-size` must be left out with .*",
        ),
        (
            ("--tokenizer", "x.model", "--model-type", "bpe"),
            "`--model-type` must be left out with .*",
        ),
        (("--average-last", "9" * 20), "`--average-last` must be less than .*"),
        (
            ("--warmup-steps", "9" * 400),
            "`--warmup-steps` must be less than .*",
        ),
    ],
)
def test_options_that_cannot_be_are_found_first(
    text, tmp_path, options, message
):
    result = run("train", *text, "-o", tmp_path / "run", *options)
    assert_is_one_line(result, message)
    assert not (tmp_path / "run").exists()


def test_same_command_after_the_end_says_so(trained, tmp_path):
    before = files_in(trained.folder)
    result = run(
        *("train", trained.source, trained.target, "-o", trained.folder),
        *("--validation", trained.source, trained.target),
        *("--epochs", "2", *TRAINING),
    )
    assert result.code == 0, result.errors
    assert f"after epoch 2 is in {trained.folder}" in result.errors
    assert "Training on" not in result.errors
    after = files_in(trained.folder)
    assert after["translator.json"] == before["translator.json"]
    assert epochs_in_log(trained.folder) == [0, 1]


def test_a_translator_that_is_gone_cannot_be_tried(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained.folder, folder)
    (folder / "translator.json").unlink()
    result = run(
        *("train", trained.source, trained.target, "-o", folder),
        *("--validation", trained.source, trained.target),
        *("--epochs", "2", *TRAINING),
    )
    assert result.code == 2
    lines = result.errors.splitlines()
    assert lines[-1] == (
        f"keras-transformer: The translator after epoch 2 was in {folder}, and "
        "is gone. Train for more epochs, or pass `--overwrite` to start again."
    )


@pytest.mark.slow
def test_interrupted_training_goes_on_with_the_same_command(
    text, tmp_path, monkeypatch
):
    class Interrupted(Interrupt):
        requested = property(
            lambda self: signal.SIGTERM, lambda self, value: None
        )

    folder = tmp_path / "run"
    command = ["train", *text, "-o", folder, "--epochs", "1", "--overwrite"]
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "Interrupt", Interrupted)
        result = run(*command, *TRAINING)
    assert result.code == 128 + signal.SIGTERM
    assert "Traceback" not in result.errors
    *_, state, command = result.errors.splitlines()
    assert state.startswith("Stopped. No epoch has ended")
    # There may be that of a training that is overwritten.
    assert state.endswith(
        f"{folder} has no translator of this training yet. Resume with:"
    )
    program, *again = shlex.split(command)
    assert program == "keras-transformer"
    assert "--overwrite" not in again
    result = run(*again, "--resume")
    assert result.code == 0, result.errors
    assert "Resuming the training" in result.errors
    assert "after epoch 0 and 1 batch." in result.errors
    assert epochs_in_log(folder) == [0]
    commands = (folder / "training" / "commands.txt").read_text().splitlines()
    assert commands[1] == f"{command.strip()} --resume"


def test_training_whose_output_nobody_reads_says_how_to_go_on(
    text, tmp_path, monkeypatch
):
    def begin(self):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(callbacks.OneTraining, "begin", begin)
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    command = ["train", *text, "-o", tmp_path / "run", *TRAINING]
    result = run(*command, "--overwrite")
    assert result.code == 1
    *_, state, again = result.errors.splitlines()
    assert state.startswith("Stopped. No epoch has ended")
    assert again.split() == [
        *("KERAS_BACKEND=tensorflow", "keras-transformer"),
        *map(str, command),
    ]


@pytest.mark.parametrize("place", ["gs://bucket/run", "s3://bucket/run"])
def test_an_address_is_no_place_for_a_result(
    trained, tmp_path, monkeypatch, place
):
    monkeypatch.chdir(tmp_path)
    files = trained.source, trained.target
    for command in (
        ["train", *files, "-o", place, *TRAINING],
        ["export", trained.folder, place],
        ["translate", trained.folder, "the cat", "-o", place],
        ["verify", trained.folder, trained.folder, "--json", place],
    ):
        assert_is_one_line(
            run(*command), "The path must be on this machine's file system. .*"
        )
    assert not os.listdir(tmp_path)


@pytest.mark.slow
def test_interrupt_of_the_terminal_stops_training(text, tmp_path):
    folder = tmp_path / "run"
    code = (
        "from keras_transformer import cli, transformer;"
        f"transformer.PRESETS['tiny'] = {SMALL};"
        "cli.main()"
    )
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", code),
            *("train", *map(str, text), "-o", str(folder)),
            *("--epochs", "1000", *TRAINING),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = iter(process.stdout.readline, "")
        assert any("->" in line for line in lines)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()  # where it has not ended
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert re.search(r"The translator after epoch \d+ is in", errors)
    assert len(kt.Translator.load(folder)(["the cat"])) == 1


def test_an_error_that_cannot_be_printed_has_the_same_code(monkeypatch):
    class FullDisk(io.StringIO):
        def write(self, text=""):
            raise OSError(errno.ENOSPC, "No space left on device")

        flush = write

    command = ["keras-transformer", "score", "missing", "a", "b"]
    monkeypatch.setattr(sys, "argv", command)
    with contextlib.redirect_stderr(FullDisk()) as messages:
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert sys.stderr is messages
    assert end.value.code == 2


# Errors of training


def test_missing_file(text, tmp_path):
    missing = tmp_path / "missing.de"
    for files in ((text[0], missing), (missing, text[0]), (missing, missing)):
        result = run("train", *files, "-o", tmp_path / "run", *TRAINING)
        assert_is_one_line(result, r"No such file: '.*missing\.de'\.")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--updates", "0"], "`--updates` must be at least 1. Received: .*0."),
        (
            ["--updates", "3", "--epochs", "2"],
            "Give `--epochs` or `--updates`, .*",
        ),
    ],
)
def test_epochs_or_updates(text, tmp_path, options, message):
    command = ("train", *text, "-o", tmp_path / "run", *TRAINING, *options)
    assert_is_one_line(run(*command), message)


def test_files_of_unequal_length_are_found_before_a_vocabulary_is_learned(
    text, tmp_path
):
    longer = tmp_path / "longer.de"
    longer.write_text("eins\n" * 3 + text[1].read_text())
    too_many_pieces = ("--vocabulary-size", 100_000)
    of_validation = (*text, "--validation", text[0], longer)
    for files in ((text[0], longer), of_validation):
        result = run(
            *("train", *files, "-o", tmp_path / "run"),
            *(*TRAINING, *too_many_pieces),
        )
        assert_is_one_line(
            result,
            r".*72 lines in source .*en\), 75 lines in target .*longer.de\)\.",
        )
        assert not (tmp_path / "run").exists()


def test_file_that_is_not_utf8(text, tmp_path):
    text[1].write_bytes("grün\n".encode("latin1") * 64)
    result = run("train", *text, "-o", tmp_path / "run", *TRAINING)
    assert_is_one_line(
        result, "Text must be UTF-8. Received: .*de', line 1, .*"
    )


def test_vocabulary_larger_than_the_text_allows(text, tmp_path):
    result = run("train", *text, "-o", tmp_path / "run")
    pattern = "`--vocabulary-size` must be at most [0-9]+ for this text.*8000.*"
    assert_is_one_line(result, pattern)


def test_empty_files(text, tmp_path):
    for path in text:
        path.write_text("\n\n")
    result = run("train", *text, "-o", tmp_path / "run", *TRAINING)
    assert_is_one_line(result, "Text must not be empty.*")


def test_sizes_out_of_range(text, tmp_path):
    for option, value in (
        ("--epochs", "0"),
        ("--vocabulary-size", "-1"),
        ("--tokens-per-batch", "0"),
        ("--dropout", "1.0"),
        ("--label-smoothing", "2"),
        ("--average-decay", "1"),
        ("--warmup-steps", "0"),
        ("--accumulate", "0"),
        ("--clip-norm", "-1"),
        ("--patience", "1"),
        ("--save-every", "-1"),
    ):
        result = run(
            *("train", *text, "-o", tmp_path / "run", *TRAINING, option, value)
        )
        assert result.code == 2, option
        name = option.strip("-").replace("-", "_")
        last = result.errors.splitlines()[-1]
        assert last.startswith("keras-transformer: ") and name in last
        assert not (tmp_path / "run").exists(), option


def test_resume_without_a_translator(text, tmp_path):
    result = run("train", *text, "-o", tmp_path / "run", "--resume", *TRAINING)
    assert_is_one_line(result, "There is no training to resume in .*")


# Translate


def test_arguments_are_translated(trained):
    texts = ["the cat sees the dog", "", "the fox"]
    result = run("translate", trained.folder, *texts)
    assert (result.code, result.errors) == (0, "")
    assert result.output.split("\n") == [*trained.translator(texts), ""]


def test_what_may_not_be_read_may_be_written(trained, monkeypatch, tmp_path):
    output = tmp_path / "output"
    output.touch()
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: mode != os.R_OK and access(path, mode)
    )
    result = run(
        *("translate", trained.folder, "the cat"),
        *("--output", output, "--overwrite"),
    )
    assert (result.code, result.output) == (0, "")
    assert output.read_text().splitlines() == trained.translator(["the cat"])


def test_standard_input_is_translated_line_by_line(trained):
    result = run(
        *("translate", trained.folder),
        stdin="the cat\r\n\nthe\u2028fox 😀\nno newline".encode(),
    )
    assert (result.code, result.errors) == (0, "")
    texts = ["the cat", "", "the\u2028fox 😀", "no newline"]
    assert result.output.split("\n") == [*trained.translator(texts), ""]


def test_a_line_that_is_too_long_is_named_before_any_is_translated(
    trained, monkeypatch, tmp_path
):
    monkeypatch.setattr(translate_command, "LINES_AT_ONCE", 2)
    lines = ["the cat", "the dog", "the fox " * 3000]
    file = tmp_path / "lines"
    file.write_text("\n".join(lines))
    message = (
        "The lines of {} must not be longer than 4096 tokens. "
        r"Received: line 3 with \d+\. Split it into sentences, or pass "
        r"`--truncate`\."
    )
    for arguments, stdin, place in (
        ([], file.read_bytes(), "standard input"),
        (["-i", file], b"", ".*lines"),
        (lines, b"", "the arguments"),
    ):
        result = run("translate", trained.folder, *arguments, stdin=stdin)
        assert_is_one_line(result, message.format(place))


@pytest.mark.parametrize("options", [[], ["--line-by-line"]])
def test_lines_that_are_too_long_may_be_cut(trained, monkeypatch, options):
    lines = ["the cat", "the cat sees the dog", "the dog sees the cat"]
    limit, *lengths = [len(x) + 1 for x in trained.translator.encode(lines)]
    assert limit < min(lengths)
    monkeypatch.setattr(kt.Translator, "longest_source", limit)
    result = run(
        *("translate", trained.folder, "--truncate", *options),
        *("--target-prefix", "die"),
        stdin="\n".join(lines).encode(),
    )
    expected = trained.translator(
        lines, target_prefix=["die"] * 3, truncate=True
    )
    assert result.code == 0
    assert result.output.split("\n")[:-1] == expected
    assert result.errors.splitlines() == [
        f"Line {number} of standard input has {length} tokens, and is cut to "
        f"{limit}."
        for number, length in enumerate(lengths, 2)
    ]


def test_lines_to_evaluate_may_be_cut(trained, monkeypatch):
    monkeypatch.setattr(kt.Translator, "longest_source", 3)
    command = ("evaluate", trained.folder, trained.source, trained.target)
    result = run(*command)
    assert_is_one_line(result, ".*text.en must not be .*pass `--truncate`.")
    result = run(*command, "--truncate")
    translations = trained.translator(
        [source for source, _ in PAIRS], truncate=True
    )
    expected = sacrebleu.corpus_bleu(translations, [[x for _, x in PAIRS]])
    assert result.output.startswith(f"BLEU {expected.score:.2f}\n")
    assert re.search(r"^Line 1 of .*text.en has \d+ tokens", result.errors)


def test_empty_input_gives_empty_output(trained):
    result = run("translate", trained.folder)
    assert (result.code, result.output, result.errors) == (0, "", "")


def test_file_is_translated_to_a_file(trained, tmp_path):
    output = tmp_path / "new" / "out.de"
    result = run(
        "translate", trained.folder, "-i", trained.source, "-o", output
    )
    assert (result.code, result.output, result.errors) == (0, "", "")
    expected = trained.translator([source for source, _ in PAIRS])
    assert output.read_text().split("\n") == [*expected, ""]


@pytest.mark.parametrize(
    ("command", "num_texts"),
    [
        (["translate", "-i", "SOURCE"], len(PAIRS)),
        (["translate"], 3),  # what is piped in
        (["translate", "--line-by-line"], 0),
        (["evaluate", "SOURCE", "TARGET"], len(PAIRS)),
        (["translate", "the cat"], 1),
        (["score", "SOURCE", "TARGET"], 0),
    ],
)
def test_cores_are_given_to_as_many_texts_as_there_are(
    trained, monkeypatch, command, num_texts
):
    calls = []
    monkeypatch.setattr(threads, "give_cores_to_batches", calls.append)
    files = {"SOURCE": trained.source, "TARGET": trained.target}
    name, *arguments = (files.get(word, word) for word in command)
    result = run(name, trained.folder, *arguments, stdin=b"cat\n" * 3)
    assert result.code == 0
    assert calls == [num_texts]


def test_a_vocabulary_is_learned_for_trainings(trained, tmp_path):
    files = (trained.source, trained.target)
    model = tmp_path / "a joint.model"
    options = ("--vocabulary-size", "60", "--model-type", "bpe")
    command = ("vocabulary", *files, "-o", model, *options)
    result = run(*command, "--symbols", "<2de>, <2fr>")
    assert (result.code, result.output) == (0, "")
    assert f"--tokenizer '{model}'" in result.errors
    expected = kt.Tokenizer.train(
        files, 60, model_type="bpe", symbols=["<2de>", "<2fr>"], verbose=0
    )
    assert model.read_bytes() == expected.model
    assert_is_one_line(run(*command), ".*joint.model' exists already.*")
    assert run(*command, "--overwrite").code == 0
    assert kt.Tokenizer.load(model).vocabulary_size == 60
    for wrong, pattern in (
        ((tmp_path / "missing", "-o", model), "No such file: '.*missing'."),
        (
            (files[0], "-o", tmp_path / "x", "--vocabulary-size", "4"),
            "`--vocabulary-size` must be at least 5.*",
        ),
        ((files[0], "-o", files[0], "--overwrite"), "`--output` must be ano.*"),
    ):
        assert_is_one_line(run("vocabulary", *wrong), pattern)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["missing", "missing.tflite"])
def test_a_translator_is_looked_for_before_text_is_read(tmp_path, name):
    stdin = io.TextIOWrapper(io.BytesIO(b"cat\n"))
    result = run("translate", tmp_path / name, stdin=stdin)
    assert_is_one_line(result, f"No such f.*: '.*{name}'.*")
    assert stdin.buffer.read() == b"cat\n"


def test_text_is_read_before_a_translator_is_loaded(trained, monkeypatch):
    monkeypatch.setattr(kt.Translator, "load", None)
    result = run("translate", trained.folder, stdin=b"cat\n\xff\n")
    assert_is_one_line(result, ".*UTF-8.*standard input', line 2.*")


def test_existing_output_is_left_untouched(trained, tmp_path):
    output = tmp_path / "out.de"
    output.write_text("precious")
    command = ["translate", trained.folder, "the cat", "--output", output]
    assert_is_one_line(run(*command), ".*out.de' exists already.*--overwrite.*")
    assert output.read_text() == "precious"
    assert run(*command, "--overwrite").code == 0
    assert output.read_text() == "".join(
        f"{line}\n" for line in trained.translator(["the cat"])
    )


def test_arguments_and_a_file_are_too_much(trained):
    result = run("translate", trained.folder, "a", "b", "-i", trained.source)
    assert_is_one_line(result, "Give sentences or `--input`.*2 sentences.*")


def test_missing_input(trained, tmp_path):
    result = run("translate", trained.folder, "-i", tmp_path / "missing.en")
    assert_is_one_line(result, "No such file: '.*missing.en'.")


def test_standard_input_that_is_not_utf8(trained):
    result = run("translate", trained.folder, stdin=b"the cat\ngr\xfcn\n")
    assert_is_one_line(result, "Text must be UTF-8.*'standard input', line 2.*")


@pytest.mark.parametrize(
    ("is_typed", "options", "errors"),
    [
        (True, [], "Type sentences; Ctrl-D ends the input.\n"),
        (False, ["--line-by-line"], ""),
    ],
)
def test_what_is_typed_is_translated_line_by_line(
    trained, is_typed, options, errors
):
    typed, answered = [b"the cat\n", b"\n", b"the dog"], []

    def terminal():
        for line in typed:
            answered.append(len(sys.stdout.getvalue().splitlines()))
            yield line

    stdin = types.SimpleNamespace(isatty=lambda: is_typed, buffer=terminal())
    result = run("translate", trained.folder, *options, stdin=stdin)
    assert answered == [0, 1, 2]
    expected = trained.translator(["the cat", "", "the dog"])
    assert result.output.splitlines() == expected
    assert result.errors == errors


def test_a_line_that_is_too_long_is_named_when_it_comes(trained):
    lines = ["the cat", "the dog", "cat " * 5000]
    stdin = "\n".join(lines).encode()
    result = run("translate", trained.folder, "--line-by-line", stdin=stdin)
    assert result.code == 2
    assert result.output.splitlines() == trained.translator(lines[:2])
    assert "standard input must not be longer than" in result.errors
    assert "Received: line 3 with" in result.errors


def test_what_is_read_is_not_replaced(trained, text, tmp_path):
    source, target = text
    export = tmp_path / "export.tflite"
    export.write_bytes(b"export")
    before = [path.read_bytes() for path in text]
    for *command, option, output in (
        ("translate", trained.folder, "-i", source, "--output", source),
        ("translate", export, "-i", source, "--output", export),
        ("evaluate", trained.folder, source, target, "--output", target),
        ("evaluate", export, source, target, "--output", export),
        ("verify", trained.folder, export, "-i", source, "--json", export),
    ):
        result = run(*command, option, output, "--overwrite")
        message = f"`{option}` must be another file than what is read. .*"
        assert_is_one_line(result, message)
    assert before == [path.read_bytes() for path in text]
    assert export.read_bytes() == b"export"


def test_only_what_is_piped_in_comes_line_by_line(trained):
    result = run("translate", trained.folder, "the cat", "--line-by-line")
    message = "`--line-by-line` needs lines that are piped in. Received: .*"
    assert_is_one_line(result, message)


def test_what_comes_line_by_line_goes_to_who_waits_for_it(trained, tmp_path):
    result = run(
        *("translate", trained.folder, "--line-by-line"),
        *("--output", tmp_path / "out"),
        stdin=b"the cat",
    )
    message = "`--line-by-line` needs standard output. Received: --output .*"
    assert_is_one_line(result, message)


@pytest.mark.parametrize("command", ["translate", "export", "evaluate"])
def test_folder_that_is_no_translator(command, text, tmp_path):
    arguments = {
        "translate": ["the cat"],
        "export": [tmp_path / "1"],
        "evaluate": text,
    }[command]
    result = run(command, tmp_path / "missing", *arguments)
    assert_is_one_line(result, "No such folder: '.*missing'.")
    result = run(command, tmp_path, *arguments)
    assert_is_one_line(result, "The folder must hold a translator.*")
    (tmp_path / "translator.json").write_text('{"format": 1}')
    result = run(command, tmp_path, *arguments)
    assert_is_one_line(result, ".*translator.json.*")


def test_traceback_is_shown_on_demand(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such folder"):
        run("translate", tmp_path / "missing", "the cat", "--traceback")


def test_error_is_all_that_a_shell_shows(tmp_path):
    (tmp_path / "translator.json").write_text("{}")  # read after the imports
    process = subprocess.run(
        [
            *(sys.executable, "-m", "keras_transformer"),
            *("translate", str(tmp_path), "the cat"),
        ],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 2
    assert process.stdout == ""
    pattern = r"keras-transformer: .*translator\.json.*\n"
    assert re.fullmatch(pattern, process.stderr), process.stderr


def test_output_that_cannot_be_written_is_an_error():
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [sys.executable, "-m", "keras_transformer", "--version"],
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.returncode == 2
    expected = "keras-transformer: [Errno 28] No space left on device\n"
    assert process.stderr == expected


# Evaluate


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sacrebleu", "This needs sacrebleu, .* `pip install .`, in a check.*"),
        (
            "jax",
            r"This needs jax, .* `pip install '.\[jax\]'`, in a checkout.*",
        ),
        ("elsewhere", "No module named 'elsewhere'"),
    ],
)
def test_a_module_that_is_missing_is_named(monkeypatch, name, message):
    def missing(*arguments, **options):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(score_command, "load", missing)
    monkeypatch.setattr(lines_module, "read_pairs", lambda *_: ([], []))
    assert_is_one_line(run("score", "folder", "source", "target"), message)


def test_lines_are_written_as_they_are_done(trained, monkeypatch):
    monkeypatch.setattr(translate_command, "LINES_AT_ONCE", 2)
    lines = ["cat sees dog", "", "fox", "owl sees pig", "hen"]
    stdin = "\n".join(lines).encode()
    translations = kt.Translator.load(trained.folder)(lines)
    result = run("translate", trained.folder, stdin=stdin)
    assert result.output.split("\n") == [*translations, ""]
    translate = kt.Translator.__call__

    def interrupted(self, texts, **options):
        if texts == lines[-1:]:
            raise KeyboardInterrupt
        return translate(self, texts, **options)

    monkeypatch.setattr(kt.Translator, "__call__", interrupted)
    result = run("translate", trained.folder, stdin=stdin)
    assert result.code == 130
    assert result.output.split("\n") == [*translations[:-1], ""]


def test_output_that_cannot_be_written_is_found_first(trained, tmp_path):
    options = ("--overwrite", "--output", tmp_path, "cat")
    assert_is_one_line(
        run("translate", trained.folder, *options),
        ".* is a folder, not a file.",
    )


def test_beam_search_gives_lines_for_each_sentence(trained):
    result = run(
        *("translate", trained.folder, "--search", "beam", "--width", "3"),
        *("--num-hypotheses", "2", "--scores", "--max-length", "9"),
        *("cat sees dog", "fox"),
    )
    assert result.code == 0
    lines = result.output.splitlines()
    assert len(lines) == 4
    translator = kt.Translator.load(trained.folder)
    translator.search = kt.BeamSearch(3, num_hypotheses=2)
    expected, scores = translator(
        ["cat sees dog", "fox"], max_length=9, return_scores=True
    )
    found = [line.split("\t") for line in lines]
    assert [text for _, text in found] == sum(expected, [])
    np.testing.assert_allclose(
        [float(score) for score, _ in found], scores.flatten(), atol=1e-3
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (
            kt.BeamSearch,
            {
                "width": 3,
                "length_penalty": 0.3,
                "length_penalty_form": "power",
                "patience": 2.0,
                "num_hypotheses": 2,
            },
        ),
        (
            kt.Sampling,
            {
                "num_hypotheses": 2,
                "temperature": 0.5,
                "top_k": 7,
                "top_p": 0.9,
                "seed": 3,
            },
        ),
    ],
)
def test_every_option_reaches_the_search(trained, monkeypatch, kind, options):
    options = {
        **options,
        "repetition_penalty": 1.5,
        "no_repeat_ngram_size": 1,
    }
    searches = []

    def spy(translator, texts, **_):
        searches.append(translator.search)
        return []

    monkeypatch.setattr(kt.Translator, "__call__", spy)
    name = {kt.BeamSearch: "beam", kt.Sampling: "sampling"}[kind]
    words = ["--search", name, "--forbid-unknown"]
    for option, value in options.items():
        words += ["--" + option.replace("_", "-"), value]
    assert run("translate", trained.folder, *words, "cat").code == 0
    [found] = searches
    assert type(found) is kind
    # All that there are, other than they are by default.
    expected = {
        **options,
        "forbidden_token_ids": [kt.Tokenizer.unknown_token_id],
    }
    config = found.get_config()
    assert config.pop("forbidden_sequences") == []  # for Python alone
    assert config == expected
    defaults = kind().get_config()
    assert not [name for name in expected if expected[name] == defaults[name]]


def test_options_are_added_to_what_a_search_of_a_user_has():
    class Weighted(kt.GreedySearch):
        def __init__(self, weights, **kwargs):
            super().__init__(**kwargs)
            self.weights = weights

        def get_config(self):
            return {**super().get_config(), "weights": list(self.weights)}

        @classmethod
        def from_config(cls, config):
            return cls(**{**config, "weights": np.array(config["weights"])})

    translator = types.SimpleNamespace(
        search=Weighted(np.ones(2), forbidden_token_ids=[1])
    )
    cli_options.set_search(translator, {"forbid_unknown": True})
    assert translator.search.forbidden_token_ids == (1,)
    cli_options.set_search(translator, {"no_repeat_ngram_size": 2})
    assert translator.search.no_repeat_ngram_size == 2
    np.testing.assert_array_equal(translator.search.weights, np.ones(2))


def test_translations_begin_as_told(trained):
    arguments = ("translate", trained.folder, "--target-prefix", "Hund sieht")
    result = run(*arguments, "cat sees dog", "fox sees owl")
    lines = result.output.splitlines()
    assert [line[:10] for line in lines] == ["Hund sieht"] * 2
    assert_is_one_line(
        run(*arguments, "--max-length", "1", "", "cat sees dog"),
        "A prefix must not be longer than the target may be. Received: "
        "--target-prefix, line 2, of .* tokens, max_length=1.",
    )


def test_each_translation_begins_as_a_file_says(trained, tmp_path):
    texts = ["cat sees dog", "", "fox sees owl"]
    prefixes = ["Hund sieht", "Katze", ""]
    expected = trained.translator(texts, target_prefix=prefixes)
    source, file = tmp_path / "text.en", tmp_path / "prefixes.de"
    source.write_text("\n".join([*texts, ""]))
    file.write_text("\n".join([*prefixes, ""]))
    command = ("translate", trained.folder, "--target-prefixes", file)
    for result in (run(*command, *texts), run(*command, "-i", source)):
        assert (result.code, result.errors) == (0, "")
        assert result.output.splitlines() == expected
    assert expected[0].startswith("Hund sieht")
    for wrong, message in (
        (["cat"], "`--target-prefixes` must have a line for each sentence. .*"),
        (["cat", "--target-prefix", "x"], "Give `--target-prefix` or .*"),
    ):
        assert_is_one_line(run(*command, *wrong), message)


def test_a_beginning_that_is_too_long_is_named_before_any_is_translated(
    trained, monkeypatch, tmp_path
):
    monkeypatch.setattr(translate_command, "LINES_AT_ONCE", 1)
    file = tmp_path / "prefixes"
    file.write_text("\n\nHund\nHund\n")
    result = run(
        *("translate", trained.folder, "cat", "fox", "", "owl"),
        *("--target-prefixes", file, "--max-length", 2),
    )
    assert_is_one_line(
        result,
        "A prefix must not be longer than the target may be. Received: .*"
        "prefixes, line 4, of 3 tokens, max_length=2.",
    )


def test_nothing_is_written_where_nothing_can_be(trained, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/missing")
    result = run("translate", trained.folder, "cat")
    assert (result.code, result.errors) == (0, "")
    assert result.output.splitlines() == trained.translator(["cat"])


def test_fewer_sentences_may_be_decoded_at_once(trained, monkeypatch):
    texts = ["cat sees dog"] * 9
    sizes = []
    generate = kt.Transformer.generate

    def counted(model, source_ids, **options):
        sizes.append(len(source_ids))
        return generate(model, source_ids, **options)

    monkeypatch.setattr(kt.Transformer, "generate", counted)
    command = ("translate", trained.folder, *texts, "--tokens-per-batch")
    result = run(*command, "120")
    assert result.output.splitlines() == trained.translator(texts[:1]) * 9
    assert sizes[:-1] == [2, 2, 2, 2, 1]
    assert_is_one_line(
        run(*command, "0"), "`--tokens-per-batch` must be at least 1. .*"
    )


def test_samples_are_repeatable_from_their_seed(trained):
    outputs = [
        run(
            *("translate", trained.folder, "--search", "sampling"),
            *("--temperature", "5", "--seed", seed, "--max-length", "20"),
            *("cat sees dog", "fox sees owl"),
        ).output
        for seed in ("1", "1", "2")
    ]
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--search", "beam", "--width", "0"),
            "`--width` must be at least 1.*",
        ),
        (
            ("--search", "greedy", "--num-hypotheses", "2"),
            "`--num-hypotheses` needs --search beam or --search sampling. "
            "Received: GreedySearch.",
        ),
        (("--width", "8"), "`--width` needs --search beam. Received: Greedy.*"),
        (
            ("--length-penalty-form", "power"),
            "`--length-penalty-form` needs --search beam. Received: Greedy.*",
        ),
        (
            ("--search", "beam", "--top-k", "5"),
            "`--top-k` needs --search sampling. Received: BeamSearch.",
        ),
        (("--search", "sampling", "--top-p", "2"), "`--top-p` must be in .*"),
        (("--min-length", "5", "--max-length", "4"), ".*not be more than.*"),
    ],
)
def test_search_options_out_of_range(trained, options, message):
    result = run("translate", trained.folder, *options, "cat")
    assert_is_one_line(result, message)


def test_given_translations_are_scored(untraced, trained):
    files = (trained.source, trained.target)
    result = run("score", trained.folder, *files, "--tokens")
    assert result.code == 0
    lines = [line.split("\t") for line in result.output.splitlines()]
    assert len(lines) == len(PAIRS)
    for total, *tokens in lines:
        assert tokens[-1].startswith("</s> ")
        of_tokens = [float(token.split()[-1]) for token in tokens]
        np.testing.assert_allclose(float(total), sum(of_tokens), atol=1e-2)
    again = run("score", trained.folder, *files, "--dtype", "mixed_bfloat16")
    totals = [float(total) for total, *_ in lines]
    others = [float(line) for line in again.output.splitlines()]
    assert others != totals
    np.testing.assert_allclose(others, totals, rtol=0.05, atol=0.5)


def test_a_picture_that_cannot_be_drawn_is_refused_first(trained, tmp_path):
    empty = tmp_path / "empty.en"
    empty.write_text(" \n")
    cases = [
        (
            empty,
            "links.png",
            r"`--picture` draws the first pair, .*line 1 em.*",
        ),
        (trained.source, "links.xyz", "A picture must end in one of .*xyz.*"),
    ]
    for source, name, message in cases:
        files = (source, empty if source == empty else trained.target)
        result = run(
            "align", tmp_path / "no", *files, "--picture", tmp_path / name
        )
        assert_is_one_line(result, message)
        assert not (tmp_path / name).exists()


def test_given_translations_are_aligned(trained, tmp_path):
    files = (trained.source, trained.target)
    picture = tmp_path / "links.png"
    result = run("align", trained.folder, *files, "--picture", picture)
    assert result.code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    alignments = trained.translator.align(
        *(path.read_text().splitlines() for path in files)
    )
    expected = [
        " ".join(f"{x}-{y}" for x, y in alignment.links())
        for alignment in alignments
    ]
    assert result.output.splitlines() == expected
    assert_is_one_line(
        run("align", trained.folder, *files, "--picture", picture),
        r".*links.png. exists already, .*--overwrite.*",
    )
    result = run("align", trained.folder, *files, "--pieces", "--layer", "0")
    lines = [line.split("\t") for line in result.output.splitlines()]
    for (source, target, links), alignment in zip(
        lines, alignments, strict=True
    ):
        assert source.split(" ") == alignment.source_pieces[:-1]
        assert target.split(" ") == alignment.target_pieces[:-1]
        assert len(links.split()) == len(alignment.target_pieces) - 1
    result = run("align", trained.folder, *files, "--pieces", "--words")
    texts = [path.read_text().splitlines() for path in files]
    for line, *pair in zip(result.output.splitlines(), *texts, strict=True):
        *words, links = line.split("\t")
        assert words == pair
        assert len(links.split()) == len(pair[1].split())


@pytest.mark.parametrize("command", ["score", "align"])
def test_tabs_in_pieces_are_no_columns(
    untraced, trained, monkeypatch, tmp_path, command
):
    translator = kt.Translator.load(trained.folder)
    pieces = translator.tokenizer.pieces
    for token_id in translator.tokenizer.encode("the cat"):
        pieces[token_id] = "\t\r \n"
    monkeypatch.setattr(
        {"score": score_command, "align": align_command}[command],
        "load",
        lambda *_: translator,
    )
    file = tmp_path / "text"
    file.write_text("the cat\n")
    option = {"score": "--tokens", "align": "--pieces"}[command]
    result = run(command, trained.folder, file, file, option)
    assert "\r" not in result.output
    num_pieces = len(translator.tokenizer.encode("the cat"))
    columns = result.output.rstrip("\n").split("\t")
    if command == "score":
        _, *columns = columns
        assert len(columns) == num_pieces + 1  # and the end token
        counts = {2}  # each a piece and its score
    else:
        _, _, links = columns
        assert len(links.split()) == num_pieces
        counts = {num_pieces}
    assert {len(column.split(" ")) for column in columns} == counts


def test_a_line_that_is_too_long_to_be_scored_is_named(trained, tmp_path):
    short, long = tmp_path / "short", tmp_path / "long"
    short.write_text("the cat\n" * 3)
    long.write_text("the cat\nthe dog\n" + "the fox " * 3000)
    for files in ((short, long), (long, short)):
        assert_is_one_line(
            run("score", trained.folder, *files),
            r"The lines of .*long must not be longer .*: line 3 with .*",
        )


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), "a\tb c "), (("--scores",), "0.0000\ta b c ")],
)
def test_a_line_stays_a_line(trained, monkeypatch, options, expected):
    def spelled_in_bytes(translator, texts, return_scores, **_):
        found = ["a\tb\nc\r" for _ in texts]
        return (found, np.zeros(len(found))) if return_scores else found

    monkeypatch.setattr(kt.Translator, "__call__", spelled_in_bytes)
    result = run("translate", trained.folder, *options, "cat", "dog")
    assert result.output == f"{expected}\n" * 2


def test_a_pipe_is_a_file_to_translate(trained, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("the cat\n",))
    writer.start()
    result = run("translate", trained.folder, "-i", pipe)
    writer.join()
    assert result.output == trained.translator(["the cat"])[0] + "\n"
    result = run("translate", trained.folder, "-i", tmp_path)
    assert_is_one_line(result, "No such file: '.*' is a folder.")


def test_a_file_is_no_sentence_to_translate(trained, tmp_path, monkeypatch):
    result = run("translate", trained.folder, trained.source)
    message = (
        "Arguments must be sentences. Received: the name of a file, "
        f"'{trained.source}'. Pass it with `--input`."
    )
    assert_is_one_line(result, re.escape(message))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat").touch()
    for sentences in ([trained.source, "the cat"], ["cat"]):
        result = run("translate", trained.folder, *sentences)
        assert len(result.output.splitlines()) == len(sentences)


@pytest.mark.slow
def test_closed_streams_are_empty(trained):
    command = [sys.executable, "-m", "keras_transformer", "translate"]
    command = shlex.join([*command, str(trained.folder)])
    for streams in ("<&-", "<&- >&-", "<&- 2>&-"):
        process = subprocess.run(
            f"{command} {streams}", shell=True, capture_output=True
        )
        assert process.returncode == 0
        assert process.stdout == process.stderr == b""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_export_that_is_ended_leaves_nothing(trained, tmp_path, number):
    """Nor what libraries write to the system's folder for such things."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "keras_transformer", "export"]
    process = subprocess.Popen(
        [*command, trained.folder, tmp_path / "x" / "1"],
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    until = time.monotonic() + 60
    while not glob.glob(str(tmp_path / "x" / ".1.*")):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert os.listdir(temporary)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert os.listdir(tmp_path / "x") == os.listdir(temporary) == []


@pytest.mark.parametrize("name", ["max_length", "min_length"])
def test_lengths_that_no_text_has(trained, name):
    option = "--" + name.replace("_", "-")
    result = run("translate", trained.folder, "fox", option, 3_000_000_000)
    pattern = (
        f"`{option}` must be at most 1,048,576 tokens. Received: {name}="
        "3000000000."
    )
    assert_is_one_line(result, pattern)


@pytest.mark.parametrize(
    "error, line",
    [
        (MemoryError(), "MemoryError"),
        (
            tf.errors.ResourceExhaustedError(None, None, ""),
            "ResourceExhaustedError",
        ),
        (
            tf.errors.ResourceExhaustedError(None, None, "OOM when\n  at x"),
            "OOM when",
        ),
        (
            tf.errors.ResourceExhaustedError(
                None, None, "{{function_node __wrapped__Add_device_/a:0}} OOM"
            ),
            "OOM",
        ),
        (
            tf.errors.ResourceExhaustedError(
                None,
                None,
                "Graph execution error:\n\nDetected at node a/b defined at "
                "(most recent call last):\n<stack traces unavailable>\n"
                "Detected at node c defined at (most recent call last):\n  "
                'File "x.py", line 1, in f\n    g()\nOOM when\n\t [[{{a}}]]',
            ),
            "OOM when",
        ),
    ],
)
def test_too_little_memory_is_one_line(trained, monkeypatch, error, line):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(kt.Translator, "__call__", fail)
    assert_is_one_line(run("translate", trained.folder, "fox"), line)


def test_output_is_utf_8_in_any_locale(monkeypatch):
    latin = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", latin)
    monkeypatch.setattr(sys, "argv", ["keras-transformer", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    print("„ü“")
    latin.flush()
    assert latin.buffer.getvalue().decode().endswith("\n„ü“\n")


def test_overwrite_needs_what_is_written(trained):
    result = run("translate", trained.folder, "fox", "--overwrite")
    pattern = "`--overwrite` needs `--output`. Received: none."
    assert_is_one_line(result, pattern)
    result = run("verify", trained.folder, trained.folder, "--overwrite")
    pattern = "`--overwrite` needs `--json`. Received: none."
    assert_is_one_line(result, pattern)


def test_evaluate_prints_scores_and_their_signature(trained):
    result = run("evaluate", trained.folder, trained.source, trained.target)
    assert (result.code, result.errors) == (0, "")
    bleu, chrf, signature = result.output.splitlines()
    translations = trained.translator([source for source, _ in PAIRS])
    references = [[target for _, target in PAIRS]]
    expected = sacrebleu.corpus_bleu(translations, references)
    assert bleu == f"BLEU {expected.score:.2f}"
    expected = sacrebleu.corpus_chrf(translations, references)
    assert chrf == f"chrF {expected.score:.2f}"
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a")


def test_evaluate_takes_the_best_of_several(trained, tmp_path):
    translator = kt.Translator.load(trained.folder)
    files = (trained.source, trained.target)
    outputs = []
    for number in (1, 2):
        translator.search = kt.BeamSearch(3, num_hypotheses=number)
        translator.save(tmp_path / str(number))
        outputs.append(run("evaluate", tmp_path / str(number), *files))
    assert outputs[0].code == 0
    assert outputs[0].output == outputs[1].output


def test_options_change_the_search_that_is_there(trained, tmp_path):
    translator = kt.Translator.load(trained.folder)
    translator.search = kt.BeamSearch(3, length_penalty=0.0)
    translator.save(tmp_path / "beam")
    result = run(
        *("translate", tmp_path / "beam", "--num-hypotheses", "2"),
        *("--max-length", "9", "cat sees dog"),
    )
    translator.search = kt.BeamSearch(3, 0.0, num_hypotheses=2)
    [expected] = translator(["cat sees dog"], max_length=9)
    assert result.output.splitlines() == expected


@pytest.mark.slow
def test_length_penalty_has_two_forms(trained):
    options = ("--search", "beam", "--length-penalty", "2", "--scores")
    text = "cat sees dog"
    for form in ("gnmt", "power"):
        result = run(
            *("translate", trained.folder, *options),
            *("--length-penalty-form", form, text),
        )
        translator = kt.Translator.load(trained.folder)
        translator.search = kt.BeamSearch(
            length_penalty=2.0, length_penalty_form=form
        )
        _, [score] = translator([text], return_scores=True)
        found = float(result.output.split("\t")[0])
        assert found == pytest.approx(score, abs=1e-3)


def test_evaluate_without_case(trained):
    files = (trained.source, trained.target)
    result = run("evaluate", trained.folder, *files, "--lowercase")
    assert result.code == 0
    assert "case:lc" in result.output


def test_evaluate_writes_what_it_scores(trained, tmp_path):
    output = tmp_path / "text.out"
    command = ("evaluate", trained.folder, trained.source, trained.target)
    result = run(*command, "--tokenize", "char", "--output", output)
    assert (result.code, result.errors) == (0, "")
    translations = trained.translator([source for source, _ in PAIRS])
    assert output.read_text() == "".join(f"{x}\n" for x in translations)
    references = [[target for _, target in PAIRS]]
    expected = sacrebleu.corpus_bleu(translations, references, tokenize="char")
    assert f"BLEU {expected.score:.2f}\n" in result.output
    assert "|tok:char|" in result.output
    for wrong, message in (
        (["--output", output], f"'{output}' exists already, .*"),
        (["--overwrite"], "`--overwrite` needs `--output`. Received: none."),
        (["--tokenize", "de"], "`--tokenize` must be one of 'none', .*"),
    ):
        assert_is_one_line(run(*command, *wrong), message)


def test_evaluate_has_the_limits_of_translate(trained, tmp_path):
    files = (trained.source, trained.target)
    sources = [source for source, _ in PAIRS]
    usual = trained.translator(sources)
    for limits in ({"max_length": 1}, {"min_length": 5, "max_length": 6}):
        output = tmp_path / f"{len(limits)}.out"
        options = [f"--{x.replace('_', '-')}={y}" for x, y in limits.items()]
        command = ("evaluate", trained.folder, *files, *options)
        result = run(*command, "--tokens-per-batch", "1", "--output", output)
        assert result.code == 0
        found = output.read_text().split("\n")[:-1]
        assert found == trained.translator(sources, **limits) != usual
    command = ("evaluate", trained.folder, *files, "--min-length", "-1")
    assert_is_one_line(run(*command), "`--min-length` must not be negative.*")
    command = ("evaluate", trained.folder, *files, "--tokens-per-batch", "0")
    assert_is_one_line(
        run(*command), "`--tokens-per-batch` must be at least .*"
    )
    file = tmp_path / "x.tflite"
    file.touch()
    command = ("evaluate", file, *files, "--max-length", "5")
    assert_is_one_line(run(*command), "`--max-length` needs a translator's .*")


def test_evaluate_takes_several_references(trained, tmp_path):
    other = tmp_path / "other.de"
    other.write_text("".join(f"{x.upper()}\n" for _, x in PAIRS))
    files = (trained.source, trained.target, other)
    result = run("evaluate", trained.folder, *files)
    assert (result.code, result.errors) == (0, "")
    translations = trained.translator([source for source, _ in PAIRS])
    references = [[x for _, x in PAIRS], [x.upper() for _, x in PAIRS]]
    expected = sacrebleu.corpus_bleu(translations, references)
    assert result.output.startswith(f"BLEU {expected.score:.2f}\n")
    assert "\nnrefs:2|" in result.output
    command = ("evaluate", trained.folder, *files)
    result = run(*command, "--output", other, "--overwrite")
    message = "`--output` must be another file than what is read.*"
    assert_is_one_line(result, message)
    other.write_text("Katze\n")
    message = r".*72 lines in source .*text.en\), 1 lines in .*other.de\)\."
    assert_is_one_line(run(*command), message)


def test_evaluate_needs_as_many_references(trained, tmp_path):
    target = tmp_path / "short.de"
    target.write_text("Katze\n")
    result = run("evaluate", trained.folder, trained.source, target)
    assert_is_one_line(
        result,
        r".*72 lines in source .*text.en\), 1 lines in target .*short.de\).",
    )


def test_evaluate_needs_text(trained, tmp_path):
    empty = tmp_path / "empty"
    empty.touch()
    result = run("evaluate", trained.folder, empty, empty)
    assert_is_one_line(result, "Text must not be empty. Received: .*empty.")


# Export


@pytest.mark.slow
def test_export_writes_a_saved_model(trained, tmp_path):
    folder = tmp_path / "exported" / "1"
    result = run("export", trained.folder, folder)
    assert (result.code, result.output) == (0, "")
    (line,) = result.errors.splitlines()
    assert line.startswith(f"SavedModel in {folder}, signatures")
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    texts = ["the cat", ""]
    found = serve(text=tf.constant(texts))["translation"].numpy()
    assert [text.decode() for text in found] == trained.translator(texts)


@pytest.mark.parametrize(
    ("options", "writer", "expected"),
    [
        (
            ("--quantization", "int8", "--no-text", "--no-steps"),
            "export_litert",
            {"quantization": "int8", "text": False, "steps": False},
        ),
        (
            ("--source-length", "64", "--no-screening", "--overwrite"),
            "export_litert",
            {"source_length": 64, "screening": False, "overwrite": True},
        ),
        (
            ("--dtype", "mixed_bfloat16"),
            "export_saved_model",
            {"overwrite": False},
        ),
    ],
)
def test_options_of_an_export_reach_it(
    trained, tmp_path, monkeypatch, options, writer, expected
):
    given = []

    def write(translator, path, **arguments):
        given.append((translator, os.fspath(path), arguments))

    monkeypatch.setattr(kt.Translator, writer, write)
    path = tmp_path / "file.tflite"
    if writer == "export_saved_model":
        path = tmp_path / "folder"
    search = ("--search", "beam", "--width", "3", "--length-penalty", "1")
    result = run("export", trained.folder, path, *options, *search)
    assert result.code == 0, result.errors
    [(translator, output, arguments)] = given
    assert output == str(path)
    assert expected.items() <= arguments.items()
    found = translator.search
    assert (type(found), found.width) == (kt.BeamSearch, 3)
    assert found.length_penalty == 1
    wanted = "mixed_bfloat16" if "--dtype" in options else "float32"
    assert translator.model.dtype_policy.name == wanted


def test_export_writes_a_ctranslate2_model(trained, tmp_path):
    options = ("--format", "ctranslate2")
    result = run("export", trained.folder, tmp_path / "ct2", *options)
    assert result.code == 0, result.errors
    assert (tmp_path / "ct2" / "model.bin").is_file()
    assert "CTranslate2 model in" in result.errors
    command = ("verify", trained.folder, tmp_path / "ct2", "-i", trained.source)
    result = run(*command)
    assert result.code == 0, result.errors
    assert "CTranslate2" in result.output
    beam = ("--search", "beam", "--width", "2")
    pattern = ".*must be one that CTranslate2 has.*--patience 1.*"
    assert_is_one_line(run(*command, *beam), pattern)
    power = ("--patience", "1", "--length-penalty-form", "power")
    assert run(*command, *beam, *power).code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--quantization", "int8"),
            "`--quantization` needs --format litert. Received: --format s.*",
        ),
        (
            ("--no-steps",),
            "`--no-steps` needs --format litert. Received: --format s.*",
        ),
        (
            ("--format", "litert", "--source-length", "64", "--steps"),
            "`--steps` needs sources of any length. Received: --source-l.* 64.",
        ),
        (
            ("--format", "litert", "--source-length", "64", "--screening"),
            "`--screening` needs sources of any length. Received: --sour.* 64.",
        ),
        (
            ("--format", "litert", "--quantization", "int8", "--screening"),
            "`--screening` needs float32. Received: --quantization int8.",
        ),
        (
            ("--format", "ctranslate2", "--search", "beam"),
            "`--search` needs --format saved_model or --format litert. .*",
        ),
        (
            ("--format", "litert", "--text", "--search", "beam")
            + ("--num-hypotheses", "2"),
            "`--text` needs a search for one hypothesis. Received: num_.*=2.",
        ),
        (
            ("--format", "litert", "--dtype", "float32"),
            "`--dtype` needs --format saved_model. Received: --format litert.",
        ),
    ],
)
def test_export_refuses_options_of_another_format(
    trained, tmp_path, options, message
):
    result = run("export", trained.folder, tmp_path / "x", *options)
    assert_is_one_line(result, message)


@pytest.mark.parametrize("name", ["x.tflite", "x.TFLITE"])
def test_a_litert_file_is_not_the_name_of_another_export(
    trained, tmp_path, name
):
    path = tmp_path / name
    assert_is_one_line(
        run("export", trained.folder, path, "--format", "saved_model"),
        f"`--format` needs another name than that of a LiteRT file. .*{name}.",
    )
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--width", "2"), "`--width` needs a translator's folder, .*tflite.*"),
        (("--min-length", "2"), "`--min-length` needs a translator's f.*"),
        (("--target-prefix", ""), "`--target-prefix` needs a transl.*"),
        (("--dtype", "float32"), "`--dtype` needs a translator's folder.*"),
        ((), "No such file: .*missing.tflite.*"),
    ],
)
def test_what_an_exported_file_cannot_do_is_refused(tmp_path, options, message):
    file = tmp_path / "missing.tflite"
    assert_is_one_line(run("translate", file, "a cat", *options), message)


def test_what_is_a_file_is_an_exported_one(trained, tmp_path):
    file = tmp_path / "exported.lite"
    file.write_bytes(b"no model")
    result = run("translate", file, "a cat")
    assert_is_one_line(result, "The file must be a LiteRT model. .*lite.*")
    shutil.copytree(trained.folder, tmp_path / "folder.tflite")
    result = run("translate", tmp_path / "folder.tflite", "a cat")
    assert result.code == 0, result.errors


def test_threads_are_for_an_exported_file(trained):
    for option in ("--num-threads", "--num-workers"):
        result = run("translate", trained.folder, "a cat", option, 2)
        assert_is_one_line(result, f"`{option}` needs a .tflite file. .*")


def test_export_to_litert_refuses_bpe_text(trained, tmp_path):
    options = ("--quantization", "int8")  # and LiteRT by the file's name
    result = run("export", trained.folder, tmp_path / "x.tflite", *options)
    assert result.code == 2
    assert "`--no-text`" in result.errors
    assert os.listdir(tmp_path) == []


def test_a_litert_file_may_go_into_a_pipe(trained, monkeypatch):
    read, write = os.pipe()
    pipe = f"/dev/fd/{write}"

    def export(translator, path, **options):
        atomic.write_file(path, b"LiteRT")

    monkeypatch.setattr(kt.Translator, "export_litert", export)
    result = run("export", trained.folder, pipe, "--format", "litert")
    os.close(write)
    assert result.code == 0, result.errors
    with open(read, "rb") as file:
        assert file.read() == b"LiteRT"


def test_export_leaves_what_is_there(trained, tmp_path):
    (tmp_path / "precious").write_text("precious")
    result = run("export", trained.folder, tmp_path)
    assert_is_one_line(result, ".*exists already.*--overwrite.*")
    assert files_in(tmp_path) == {"precious": b"precious"}

"""Training that is stopped, killed, damaged or repeated."""

import contextlib
import csv
import errno
import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import safetensors.numpy
import sentencepiece
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import bleu_callback
from keras_transformer import transformer
from keras_transformer import translator_folder
from keras_transformer.checkpoint import Checkpoint
from keras_transformer.event_log import EventLog
from keras_transformer.system import lock
from keras_transformer.system.progress import tracked
from keras_transformer.training_run import callbacks
from keras_transformer.training_run import data
from keras_transformer.training_run import folder as folder_module
from keras_transformer.training_run import logs
from keras_transformer.training_run import run as run_module
from keras_transformer.training_run.curves import draw_curves
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.fitting import Fitting
from keras_transformer.training_run.folder import RunFolder
from keras_transformer.training_run.history import History
from keras_transformer.training_run.interrupt import Interrupt
from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.training_run.run import TrainingRun
from keras_transformer.training_run.start import new_tokenizers

NOUNS = {
    "cat": "Katze",
    "dog": "Hund",
    "fox": "Fuchs",
    "hen": "Henne",
    "owl": "Eule",
}
PAIRS = [
    (f"{one} sees {other}", f"{NOUNS[one]} sieht {NOUNS[other]}")
    for one in NOUNS
    for other in NOUNS
] * 2
SMALL = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "dropout": 0.1,
}
SETTINGS = {
    "epochs": 2,
    "vocabulary_size": 54,
    "model_type": "bpe",
    "tokens_per_batch": 32,
    "max_length": 32,
    "learning_rate": 0.01,
    "warmup_steps": 10,
    "clip_norm": 1.0,
}


def write_text(folder, pairs=PAIRS):
    paths = [folder / "text.en", folder / "text.de"]
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


@pytest.fixture(scope="module", autouse=True)
def small_preset():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(transformer.PRESETS, "tiny", SMALL)
        # A sample takes longer than an epoch here.
        monkeypatch.setattr(run_module, "choose_sample", lambda *_: None)
        yield


choose_sample = run_module.choose_sample


@pytest.fixture(scope="module", autouse=True)
def graphs_as_traced():
    """Leaves graphs as in the quick tests, in the slow ones here too.

    Each trains anew, and stops or fails at once. Optimised graphs train in the
    processes below, and by the command.
    """
    options = tf.config.optimizer.get_experimental_options()
    name = "disable_meta_optimizer"
    tf.config.optimizer.set_experimental_options({name: True})
    yield
    tf.config.optimizer.set_experimental_options(
        {name: options.get(name, False)}
    )


def new_run(folder, **settings):
    """A training with the settings, and the rest of `SETTINGS`."""
    options = TrainingOptions(os.fspath(folder), **{**SETTINGS, **settings})
    return TrainingRun(options)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"))


def train(folder, text, settings=None, **options):
    """Trains with validation; gives the run."""
    run = new_run(folder, **(settings or {}))
    options = {"validation": text, "command": "train it", **options}
    run.train(*text, **options)
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text):
    """A training of 2 epochs with an average, which nothing disturbed."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = {"average_decay": 0.9}
    run = train(folder, text, settings)
    return types.SimpleNamespace(
        folder=folder,
        settings=settings,
        num_batches=run.fitting.data.num_batches,
        losses=losses(folder),
        weights=weights_in(folder),
    )


@pytest.fixture
def copied(trained, tmp_path):
    """The same in a folder of the test's own."""
    folder = tmp_path / "run"
    shutil.copytree(trained.folder, folder)
    return folder


@pytest.fixture
def untrained(monkeypatch):
    """Lets epochs end as soon as they begin, without a batch."""

    def end_at_once(self, epoch, skip, callbacks, progress):
        epochs = {"verbose": 0, "epochs": self.data.num_epochs, "steps": 1}
        callbacks.set_params(epochs)
        callbacks.on_epoch_begin(epoch)
        callbacks.on_epoch_end(epoch, {"loss": 1.0, "val_loss": 1.0})
        results = self.translator.model.history.history
        return {name: values[-1] for name, values in results.items()}

    monkeypatch.setattr(Fitting, "_fit_epoch", end_at_once)


def disk_is_full(self, folder, **options):
    """In place of a method that writes into a folder."""
    raise OSError(errno.ENOSPC, "No space left on device", folder)


def weights_in(folder):
    return kt.Translator.load(folder).model.get_weights()


def losses(folder):
    with open(folder / "training" / "log.csv") as file:
        return [
            (float(row["loss"]), float(row["val_loss"]))
            for row in csv.DictReader(file)
        ]


def checkpoints(folder):
    return sorted(
        path.name for path in (folder / "training/checkpoints").iterdir()
    )


def assert_same(folder, trained):
    np.testing.assert_allclose(losses(folder), trained.losses, rtol=1e-4)
    for found, weight in zip(weights_in(folder), trained.weights, strict=True):
        # Threads may add up in another order.
        np.testing.assert_allclose(found, weight, rtol=1e-3, atol=1e-4)


# What is in the folder.


def test_folder_has_all_that_is_needed_to_go_on_and_to_look_at(trained):
    folder = trained.folder / "training"
    assert sorted(path.name for path in folder.iterdir()) == [
        *("checkpoints", "commands.txt", "curves.png", "lock", "log.csv"),
        *("saved.json", "settings.json", "tensorboard", "tokenizer.model"),
    ]
    assert (folder / "commands.txt").read_text() == "train it\n"
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert checkpoints(trained.folder) == [
        "epoch-00001-batch-00000000.safetensors",
        "epoch-00002-batch-00000000.safetensors",
    ]


def test_tensorboard_shows_the_log(trained):
    for part, place in (("train", 0), ("validation", 1)):
        (path,) = (trained.folder / "training/tensorboard" / part).iterdir()
        found = {}
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag == "loss":
                    found[event.step] = tf.make_ndarray(value.tensor)
                    plugin = value.metadata.plugin_data.plugin_name
                    assert plugin == "scalars"
        expected = {n: row[place] for n, row in enumerate(trained.losses)}
        assert found == pytest.approx(expected)


def test_the_translator_has_the_average_and_the_checkpoint_has_not(trained):
    newest = (
        trained.folder
        / "training/checkpoints"
        / checkpoints(trained.folder)[-1]
    )
    raw = safetensors.numpy.load_file(newest)
    model = kt.Translator.load(trained.folder).model
    embeddings = model.target_embedding.get_weights()[0]
    averages = {
        name: array
        for name, array in raw.items()
        if name.startswith("averaging/0/") and array.shape == embeddings.shape
    }
    assert any(np.allclose(a, embeddings) for a in averages.values())
    weights = raw["weights/token_embedding/embeddings"]
    assert np.abs(weights - embeddings).max() > 1e-3


def test_curves_leave_out_what_is_not_known(tmp_path):
    from matplotlib.axes import Axes

    history = [
        {"epoch": 0, "loss": 3.0, "val_loss": 4.0, "val_bleu": math.nan},
        {"epoch": 1, "loss": 2.0, "val_loss": 3.5, "val_bleu": math.nan},
        {"epoch": 2, "loss": 1.0},  # without the validation text
    ]
    spy = {"autospec": True, "side_effect": Axes.plot}
    with mock.patch.object(Axes, "plot", **spy) as plot:
        draw_curves(tmp_path / "curves.png", history)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    drawn = [
        (call.kwargs["label"], *call.args[1:3]) for call in plot.call_args_list
    ]
    assert drawn == [
        ("training", (1, 2, 3), (3.0, 2.0, 1.0)),
        ("validation", (1, 2), (4.0, 3.5)),
    ]


@pytest.mark.parametrize("verbose", [0, 1])
def test_lines_that_are_read_are_counted(monkeypatch, capsys, verbose):
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm"}
    for name, value in terminal.items():
        monkeypatch.setenv(name, value)
    lines = tracked(map(str, range(1_234)), "Reading text", verbose)
    assert len([*lines]) == 1_234
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert ("Reading text 1,234 lines" in shown) == bool(verbose)


@pytest.mark.parametrize("is_shown", [True, False])
@pytest.mark.parametrize("seconds", [10, 1e9])
def test_without_a_terminal_there_are_lines(
    monkeypatch, capsys, seconds, is_shown
):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # as a workplace may have
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(callbacks, "SECONDS_BETWEEN_LINES", seconds)
    clock = itertools.count(100, 5)
    monkeypatch.setattr(
        callbacks, "time", types.SimpleNamespace(monotonic=clock.__next__)
    )
    progress = callbacks.BatchProgress(2_004, is_shown)
    with progress.of_epoch(2_000):
        for batch in range(4):
            progress.on_train_batch_end(batch, {"loss": 3.21098})
    shown = capsys.readouterr().err
    line = "2,002 of 2,004 batches, 0:00:10 left in the epoch: loss 3.211\n"
    assert shown == line * (seconds == 10 and is_shown)


@pytest.mark.parametrize("is_shown", [True, False])
def test_the_progress_of_an_epoch_is_one_line_and_counts_what_was_done(
    monkeypatch, capsys, is_shown
):
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm"}
    for name, value in terminal.items():
        monkeypatch.setenv(name, value)
    progress = callbacks.BatchProgress(16_000, is_shown)
    with progress.of_epoch(15_997):
        progress.on_train_batch_end(0, {"loss": 4.1234, "perplexity": 123.45})
        progress.bar.refresh()
        assert not progress.bar.finished
        for batch in (1, 2):
            progress.on_train_batch_end(batch, {"loss": 4.0})
        print("after the last batch", file=sys.stderr)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    *lines, last, end = re.split(r"[\r\n]+", shown)
    assert (last, end) == ("after the last batch", "")
    assert all(len(line) <= 80 for line in lines)
    pattern = r"Training .* 15998/16000 .*loss 4\.123, perplexity 123\.[45] *"
    found = [line for line in lines if re.fullmatch(pattern, line)]
    assert bool(found) == bool(lines) == is_shown


def test_events_are_written_whatever_a_folder_is_called(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    EventLog(os.fsdecode(folder)).write(0, {"loss": 1.0}, {"text": "word"})
    assert len(os.listdir(folder)) == 1


def test_training_says_if_it_ends_before_the_learning_rate_peaks(
    untrained, text, tmp_path, capsys
):
    settings = {"epochs": 1, "accumulate": 3, "warmup_steps": 4000}
    run = train(tmp_path / "run", text, settings)
    errors = capsys.readouterr().err.splitlines()
    assert not any(x.startswith(("Frozen", "Source and")) for x in errors)
    updates = run.fitting.data.num_batches // 3
    assert (
        f"Training ends after {updates} updates, before the learning rate "
        "peaks, at 4,000. Pass fewer `--warmup-steps`, or more `--epochs`."
    ) in errors


# Going on.


def interrupt_after(monkeypatch, batches):
    """Presses Ctrl-C while a training's so-manieth batch is computed."""
    on_batch_end = callbacks.Checkpoints.on_train_batch_end
    count = iter(range(1, 10**6))

    def presses(self, batch, logs=None):
        if next(count) == batches:
            signal.raise_signal(signal.SIGINT)
        on_batch_end(self, batch, logs)

    monkeypatch.setattr(callbacks.Checkpoints, "on_train_batch_end", presses)


@pytest.mark.slow
def test_interrupted_training_goes_on_in_the_middle_of_an_epoch(
    trained, text, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        interrupt_after(patch, trained.num_batches + 3)
        with pytest.raises(KeyboardInterrupt):
            train(folder, text, trained.settings)
    assert signal.getsignal(signal.SIGINT) is before
    assert "Interrupt once more to stop now" in capsys.readouterr().err
    assert checkpoints(folder)[-1] == "epoch-00001-batch-00000003.safetensors"
    keras.utils.set_random_seed(99)
    with mock.patch.object(
        keras.Model,
        "test_on_batch",
        autospec=True,
        side_effect=keras.Model.test_on_batch,
    ) as tested:
        train(folder, text, trained.settings)
    [call] = tested.call_args_list  # to create metrics, with a row a device
    assert len(call.args[1]["source_ids"]) == 1
    errors = capsys.readouterr().err
    assert f"Resuming the training in {folder} after epoch 1 and 3" in errors
    assert_same(folder, trained)
    assert (folder / "training/commands.txt").read_text() == "train it\n" * 2


@pytest.mark.slow
def test_interrupt_at_the_end_of_an_epoch_waits_for_the_end(
    trained, text, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_after(patch, trained.num_batches)
        with pytest.raises(KeyboardInterrupt):
            train(folder, text, trained.settings)
    assert checkpoints(folder) == ["epoch-00001-batch-00000000.safetensors"]
    assert len(losses(folder)) == 1
    interrupt_after(monkeypatch, trained.num_batches)
    train(folder, text, trained.settings)  # nothing is left to stop
    assert_same(folder, trained)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_second_interrupt_stops_at_once(first):
    interrupt = Interrupt()
    with interrupt:
        signal.raise_signal(first)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_terminal_that_hangs_up_twice_lets_training_be_saved():
    with Interrupt() as interrupt:
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
        assert interrupt.requested == signal.SIGHUP


@pytest.mark.parametrize("has_errors", [False, True])
def test_a_pipe_that_hangs_up_too_lets_training_be_saved(tmp_path, has_errors):
    code = """
import signal
from keras_transformer.training_run.interrupt import Interrupt
with Interrupt() as interrupt:
    signal.raise_signal(signal.SIGHUP)
    print("on", flush=True)
    assert interrupt.requested
"""
    ours, pipe = os.pipe()
    os.close(ours)
    path = tmp_path / "errors"
    with open(path, "w") as errors:
        process = subprocess.run(
            [sys.executable, "-c", code],
            stdout=pipe,
            stderr=errors if has_errors else pipe,
        )
    os.close(pipe)
    assert process.returncode == 0
    assert ("Stopping" in path.read_text()) == has_errors


@pytest.mark.skipif(
    not os.path.exists("/dev/full"),
    reason="needs /dev/full, as Linux has it: a file on a full disk",
)
def test_a_message_that_cannot_be_written_ends_nothing():
    code = """
import signal
from keras_transformer.training_run.interrupt import Interrupt
with Interrupt() as interrupt:
    signal.raise_signal(signal.SIGTERM)
    assert interrupt.requested
    print("on")
"""
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
        )
    assert process.stdout == "on\n"


def test_a_message_in_the_middle_of_another_ends_nothing(monkeypatch):
    """As Python says of a handler's print inside a print that waits."""

    def write(text):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    with Interrupt() as interrupt:
        monkeypatch.setattr(sys.stderr, "write", write)
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.requested == signal.SIGTERM


def test_training_needs_no_terminal():
    code = """
import signal, sys
from keras_transformer.training_run.interrupt import Interrupt
with Interrupt() as interrupt:
    signal.raise_signal(signal.SIGTERM)
    assert interrupt.requested
    assert not sys.stdout.isatty()  # as `fit` asks
"""
    command = shlex.join([sys.executable, "-c", code]) + " >&- 2>&-"
    assert subprocess.run(["sh", "-c", command]).returncode == 0


@pytest.mark.parametrize("hangs_up", [True, False])
def test_a_terminal_that_is_gone_lets_training_be_saved(hangs_up):
    code = f"""
import signal, sys
from keras_transformer.training_run.interrupt import Interrupt
with Interrupt() as interrupt:
    if {hangs_up}:
        signal.raise_signal(signal.SIGHUP)
    for stream in (sys.stdout, sys.stderr):
        print("on", file=stream)
        stream.flush()
    assert bool(interrupt.requested) == {hangs_up}
print("ended", flush=True)
"""
    ours, terminal = os.openpty()
    os.close(ours)
    process = subprocess.run(
        [sys.executable, "-c", code], stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    assert process.returncode == 0


def test_interrupt_of_one_process_is_told_to_the_others_by_sigterm():
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    try:
        with Interrupt(shared=True) as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert interrupt.requested
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [True]


def test_damaged_checkpoint_is_left_aside(trained, copied, text, capsys):
    path = (
        copied / "training/checkpoints/epoch-00002-batch-00000000.safetensors"
    )
    os.truncate(path, path.stat().st_size // 2)
    train(copied, text, trained.settings)
    errors = capsys.readouterr().err
    assert f"The checkpoint {path} is damaged" in errors
    assert "after epoch 1." in errors
    assert os.path.exists(f"{path}.damaged")
    assert_same(copied, trained)


def test_where_the_newest_checkpoint_is_damaged_the_translator_is_older_too(
    trained, copied, text, monkeypatch
):
    newest = copied / "training/checkpoints" / checkpoints(copied)[-1]
    newest.write_bytes(b"")
    run = train(copied, text, {**trained.settings, "epochs": 1})
    assert run.state() == f"The translator after epoch 1 is in {copied}."
    raw = Checkpoint.newest(copied / "training/checkpoints").tensors
    averages = [raw[f"averaging/0/{n}"] for n in range(len(trained.weights))]
    found = kt.Translator.load(copied).model.trainable_variables
    for variable, average in zip(found, averages, strict=True):
        np.testing.assert_array_equal(variable, average)
    assert losses(copied) == trained.losses[:1]

    # What is trained again is not on disk before its translator is.
    with monkeypatch.context() as patch:
        patch.setattr(kt.Translator, "save", disk_is_full)
        message = "full: .*The translator after epoch 1 is in"
        with pytest.raises(OSError, match=message):
            train(copied, text, trained.settings)
    assert checkpoints(copied)[-1].startswith("epoch-00002-batch-00000000")
    run = train(copied, text, trained.settings)
    assert run.history.saved == run.history.rows[1]
    assert_same(copied, trained)


@pytest.mark.parametrize("how", ["header", "state", "flipped bit", "empty"])
def test_damage_of_every_kind_is_seen(trained, copied, capsys, how):
    folder = copied / "training/checkpoints"
    path = folder / "epoch-00002-batch-00000000.safetensors"
    content = bytearray(path.read_bytes())
    if how == "header":
        content[9] ^= 255
    elif how == "state":
        assert content.count(rb"{\"epoch\": 2,") == 1
        content = content.replace(rb"{\"epoch\": 2,", rb"{\"epoch\": 9,")
    elif how == "flipped bit":
        content[-7] ^= 1
    path.write_bytes(b"" if how == "empty" else content)
    assert Checkpoint.newest(folder).epoch == 1
    assert "is damaged" in capsys.readouterr().err


def test_without_any_whole_checkpoint_training_does_not_start_anew(
    trained, copied, text
):
    for path in (copied / "training/checkpoints").iterdir():
        path.write_bytes(b"")
    for _ in range(2):  # nor when it is tried again
        with pytest.raises(
            ValueError,
            match="must be whole. .* all 2 are damaged. Pass `--overwrite` to",
        ):
            train(copied, text, trained.settings)


def test_without_its_checkpoints_training_does_not_start_anew(
    trained, copied, text
):
    shutil.rmtree(copied / "training/checkpoints")
    saved = (copied / "translator.json").read_bytes()
    for _ in range(2):
        with pytest.raises(
            ValueError, match="checkpoints .* missing. Put them"
        ):
            train(copied, text, trained.settings)
    assert (copied / "translator.json").read_bytes() == saved
    # One epoch is enough: it is logged once it has a checkpoint.
    log = copied / "training/log.csv"
    log.write_text("".join(log.read_text().splitlines(True)[:2]))
    with pytest.raises(ValueError, match="checkpoints .* missing. Put them"):
        train(copied, text, trained.settings)
    # So is a translator.
    log.unlink()
    with pytest.raises(ValueError, match="checkpoints .* missing. Put them"):
        train(copied, text, trained.settings)
    # A process may have been killed while it wrote the first.
    (copied / "training/saved.json").unlink()
    train(copied, text, trained.settings)
    assert_same(copied, trained)


def test_what_fails_after_a_checkpoint_costs_nothing(
    trained, untrained, text, tmp_path, monkeypatch
):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "curves.png")

    folder = tmp_path / "run"
    settings = {**trained.settings, "epochs": 1}
    with monkeypatch.context() as patch:
        patch.setattr(logs, "write_file", fail)
        with pytest.raises(OSError, match="The disk is full: .*curves.png"):
            train(folder, text, settings)
    assert not (folder / "training/log.csv").exists()
    assert checkpoints(folder) == ["epoch-00001-batch-00000000.safetensors"]
    train(folder, text, settings)  # nothing is left but to log it
    [row] = kt.Checkpoint.newest(folder / "training/checkpoints").history
    assert losses(folder) == [(row["loss"], row["val_loss"])]
    assert (folder / "training/curves.png").exists()


def test_checkpoint_of_another_size_names_the_first_weight(
    trained, copied, text, monkeypatch
):
    monkeypatch.setitem(
        transformer.PRESETS, "tiny", {**SMALL, "intermediate_dim": 24}
    )
    message = (
        r"The weights in the checkpoint must be those of the model. Received: "
        r".*feed_forward/inner/kernel of shape \(16, 32\), the model has "
        r"\(16, 24\)"
    )
    with pytest.raises(ValueError, match=message):
        train(copied, text, trained.settings)


@pytest.mark.slow
def test_a_number_of_updates_is_as_many_epochs(text, tmp_path, capsys):
    folder = tmp_path / "run"
    settings = {"epochs": None, "accumulate": 2}
    run = train(folder, text, {**settings, "updates": 1})
    assert len(losses(folder)) == run.fitting.data.num_epochs == 1
    updates = (
        run.fitting.data.num_batches // 2 + 1
    )  # one more than an epoch has
    run = train(folder, text, {**settings, "updates": updates})
    assert len(losses(folder)) == run.fitting.data.num_epochs == 2
    batches = run.fitting.data.num_batches
    said = f"\n{batches} updates in 2 epochs of {batches} batches"
    assert said in capsys.readouterr().err
    optimizer = run.fitting.translator.model.optimizer
    assert int(optimizer.iterations) == run.fitting.data.num_batches


@pytest.mark.slow
def test_an_epoch_may_end_anywhere_in_the_text(trained, text, tmp_path):
    """What is learned is the same; an update has a batch of the next pass."""
    updates = 2 * trained.num_batches
    per_epoch = next(n for n in (4, 3, 5, 2) if updates % n == 0)
    assert trained.num_batches % per_epoch
    folder = tmp_path / "run"
    settings = {
        **trained.settings,
        "epochs": None,
        "updates": updates,
        "updates_per_epoch": per_epoch,
    }
    run = train(folder, text, settings)
    assert int(run.fitting.translator.model.optimizer.iterations) == updates
    assert (
        len(losses(folder))
        == run.fitting.data.num_epochs
        == updates // per_epoch
    )
    np.testing.assert_allclose(
        losses(folder)[-1][1], trained.losses[-1][1], rtol=1e-5
    )
    for one, other in zip(weights_in(folder), trained.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_a_training_that_has_ended_goes_on_with_more_epochs_only(
    trained, copied, text, capsys
):
    run = train(copied, text, trained.settings)
    assert run.state() == f"The translator after epoch 2 is in {copied}."
    errors = capsys.readouterr().err
    assert f"Nothing is left to do for the training in {copied} after" in errors
    assert "Resuming" not in errors
    assert losses(copied) == trained.losses
    (copied / "translator.json").unlink()
    assert run.state() == (
        f"The translator after epoch 2 was in {copied}, and is gone."
    )
    train(copied, text, {**trained.settings, "epochs": 3})
    assert losses(copied)[:2] == trained.losses
    assert len(losses(copied)) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, r"`seed` must be what the training in .* began with, 1\. "
         r"Received: seed=2\. Pass `--overwrite`"),
        ({"average_decay": 0.8}, "`average_decay` must be what .*, 0.9"),
        ({"keep_best": True}, "`keep_best` must be what .*, False"),
        (
            {"decay": "cosine"},
            "`decay` must be .* began with, the default. .*cosine.*start-from",
        ),
    ],
)  # fmt: skip
def test_other_settings_are_refused(trained, text, change, message):
    with pytest.raises(ValueError, match=message):
        train(trained.folder, text, {**trained.settings, **change})


@pytest.mark.parametrize("backend", [None, "tensorflow", "jax"])
def test_another_backend_is_told(
    trained, untrained, copied, text, capsys, backend
):
    path = copied / "training/settings.json"
    begun = json.loads(path.read_text())
    assert begun.pop("backend") == "tensorflow"
    if backend is not None:
        begun["backend"] = backend
    path.write_text(json.dumps(begun))
    train(copied, text, {**trained.settings, "epochs": 3})
    told = "It began on Keras's backend 'jax': on 'tensorflow', dropout has o"
    assert (told in capsys.readouterr().err) == (backend == "jax")


def test_other_text_is_refused(trained, tmp_path, text):
    other = write_text(tmp_path, PAIRS[:-1])
    with pytest.raises(ValueError, match="`source` must be the text that"):
        train(trained.folder, other, trained.settings)
    message = "`validation source` must be the text that the training in"
    with pytest.raises(ValueError, match=message):
        train(trained.folder, text, trained.settings, validation=other)


@pytest.mark.slow
def test_text_that_came_later_is_text_of_the_training(text, tmp_path):
    folder, settings = tmp_path / "run", {"epochs": 1}
    train(folder, text, settings, validation=None)
    other = write_text(tmp_path, PAIRS[:-1])
    train(folder, text, settings, validation=other)  # trains no epoch
    settings = {"epochs": 2}
    train(folder, text, settings)
    message = "`validation source` must be the text that the training in"
    with pytest.raises(ValueError, match=message):
        train(folder, text, settings, validation=other)
    train(folder, text, settings, validation=None)


def test_processes_that_differ_are_found_before_anything_is_written(
    text, tmp_path, monkeypatch
):
    class Another(Distribution):
        def check_same(self, settings, data):
            assert settings["epochs"] == SETTINGS["epochs"]
            assert len(data) == 4
            raise ValueError("Another has other options.")

    monkeypatch.setattr(
        run_module, "distributed", lambda *_: contextlib.nullcontext(Another())
    )
    with pytest.raises(ValueError, match="Another has other options."):
        train(tmp_path / "run", text)
    assert not (tmp_path / "run").exists()


def test_a_training_that_diverges_saves_nothing_of_it(copied, text):
    before = {
        path: path.read_bytes() for path in copied.iterdir() if path.is_file()
    }
    run = new_run(copied, average_decay=0.9, epochs=4)
    fit = keras.Model.fit

    def diverge(model, *arguments, **options):
        model.weights[0].assign(np.full(model.weights[0].shape, np.nan))
        return fit(model, *arguments, **options)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(keras.Model, "fit", diverge)
        with pytest.raises(ValueError, match="Weights must be finite"):
            run.train(*text, validation=text, command="train it")
    for path, content in before.items():
        assert path.read_bytes() == content
    newest = kt.Checkpoint.newest(copied / "training" / "checkpoints")
    assert newest.epoch == 2
    assert all(np.isfinite(array).all() for array in newest.tensors.values())


@pytest.mark.parametrize("has_validation", [True, False])
def test_a_training_without_a_finite_loss_ends(text, tmp_path, has_validation):
    """In float16, weights stay as they are where all gradients overflow."""
    folder = tmp_path / "run"
    run = new_run(
        folder, dtype="mixed_float16", learning_rate=300.0, warmup_steps=1
    )
    message = (
        r"finite numbers to go on. Received: (nan|inf) in training, (nan|inf)"
    )
    with pytest.raises(ValueError, match=message):
        run.train(*text, validation=text if has_validation else None)
    # Without validation, an update may overflow, in one epoch.
    assert len(run.history.rows) == (0 if has_validation else 1)
    assert (folder / "translator.json").exists() != has_validation


def test_text_to_train_on_can_be_read_twice(text, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="must be a file, which is read sev"):
        train(tmp_path / "run", (text[0], pipe))


@pytest.mark.slow
def test_learning_rate_falls_to_zero_with_the_last_epoch(tmp_path, text):
    """And by what was set at first, in a training that goes on."""
    options = {"decay": "cosine", "warmup_steps": 2, "epochs": 2}
    settings = {**options, "learning_rate": None, "accumulate": 2}
    run = train(tmp_path / "run", text, settings)
    optimizer = run.fitting.translator.model.optimizer
    updates = 2 * run.fitting.data.num_batches // 2
    assert int(optimizer.iterations) == updates
    rates = [float(optimizer._learning_rate(n)) for n in range(updates + 1)]
    peak = (SMALL["hidden_dim"] * 2) ** -0.5  # of equation 3
    np.testing.assert_allclose(
        [rates[0], rates[1], rates[2], rates[-1]],
        [peak / 2, peak / 2, peak, 0],
        atol=1e-9,
        rtol=1e-6,
    )
    assert rates[2:] == sorted(rates[2:], reverse=True)
    for other in ({"epochs": 3}, {"decay": None}):
        with pytest.raises(ValueError, match=f"`{[*other][0]}` must be what"):
            train(tmp_path / "run", text, {**settings, **other})
    with pytest.raises(ValueError, match="`decay` must be one of None, 'cosi"):
        train(tmp_path / "other", text, {"decay": "linear"})


def test_damaged_settings_are_refused(copied, text):
    (copied / "training/settings.json").write_text("{}")
    with pytest.raises(ValueError, match="settings.json is damaged, or of an"):
        train(copied, text)


@pytest.mark.parametrize(
    ("option", "default", "other"),
    [("accumulate", 1, 2), ("split_digits", False, True)],
)
def test_an_option_that_a_training_had_not_is_the_default(
    trained, copied, text, option, default, other
):
    path = copied / "training/settings.json"
    begun = json.loads(path.read_text())
    del begun["settings"][option], begun["format"]
    path.write_text(json.dumps(begun))
    train(copied, text, trained.settings)
    message = f"`{option}` must be what the training in .* with, {default}. Rec"
    with pytest.raises(ValueError, match=message):
        train(copied, text, {**trained.settings, option: other})


@pytest.mark.parametrize("others", [True, False])
def test_a_training_of_another_format_is_not_damaged(
    trained, copied, text, others
):
    path = copied / "training/settings.json"
    begun = json.loads(path.read_text()) if others else {}
    path.write_text(json.dumps({**begun, "format": 2}))
    message = "must be of format 1. .*settings.json of format 2. Was it begun"
    with pytest.raises(ValueError, match=message):
        train(copied, text, trained.settings)


def test_a_damaged_vocabulary_is_refused(trained, copied, text):
    vocabulary = copied / "training/tokenizer.model"
    for content in (b"no vocabulary", None):
        vocabulary.unlink()
        if content:
            vocabulary.write_bytes(content)
        error = ValueError if content else FileNotFoundError
        message = r"tokenizer.model.* Put back the vocabulary .*--overwrite"
        with pytest.raises(error, match=message):
            train(copied, text, trained.settings)


def test_resume_needs_a_training(text, tmp_path):
    with pytest.raises(ValueError, match="There is no training to resume in"):
        train(tmp_path / "run", text, resume=True)
    with pytest.raises(
        ValueError, match="`resume` must not be combined with `ov"
    ):
        train(tmp_path / "run", text, resume=True, overwrite=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_something_else_is_left_alone(text, tmp_path, overwrite):
    (tmp_path / "thesis.txt").touch()
    message = "holds something other than a translator, and nothing"
    with pytest.raises(FileExistsError, match=message):
        train(tmp_path, text, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_loss_above_that_of_guessing_is_told(untrained, text, tmp_path):
    run = train(tmp_path / "run", text)
    guessing = np.log(run.fitting.translator.model.vocabulary_size)
    row = run.history.rows[0]
    risen = "It has risen: train anew with a lower --learning-rate, "
    for losses, told in (
        ([guessing - 0.2, guessing - 0.1], None),
        ([guessing - 0.2, guessing + 0.1], risen),
        ([guessing + 0.2, guessing + 0.1], "Train for longer."),
        ([guessing + 0.2, guessing - 0.2, guessing + 0.1], risen),
        ([guessing + 0.2], "Train for longer."),
        ([guessing, np.inf], risen),
        ([np.nan, np.inf], risen),
        ([guessing, np.nan], None),  # not high, but unknown
    ):
        run.history.rows[:] = [{**row, "loss": loss} for loss in losses]
        warning = run.warning()
        assert bool(warning) == (told is not None)
        assert not told or told in warning


@pytest.mark.parametrize("overwrite", [False, True])
def test_text_in_a_folder_of_that_name_is_left_alone(tmp_path, overwrite):
    folder = tmp_path / "training"
    folder.mkdir()
    text = write_text(folder)
    before = [path.read_bytes() for path in text]
    message = "training' holds something other than a training"
    with pytest.raises(FileExistsError, match=message):
        train(tmp_path, text, overwrite=overwrite)
    assert [path.read_bytes() for path in text] == before
    assert len(os.listdir(folder)) == 2


def test_settings_of_something_else_are_left_alone(text, tmp_path):
    folder = tmp_path / "training"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "settings.json").write_text("{}")
    message = "training' holds something other than a training"
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=message):
            train(tmp_path, text, overwrite=overwrite)
    assert sorted(os.listdir(folder)) == ["checkpoints", "settings.json"]


def test_full_disk_at_the_start_changes_nothing(copied, text, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    start = copied.with_name("start")
    kt.Translator.load(copied).save(start)
    before = checkpoints(copied)
    settings = {**OF_ITS_OWN, "start_from": os.fspath(start)}
    message = "Nothing was changed .* Make room; then run the same command"
    with monkeypatch.context() as patch:
        patch.setattr(translator_folder, "write_file", full)
        with pytest.raises(OSError, match=message):
            train(copied, text, settings, overwrite=True)
    assert checkpoints(copied) == before
    assert not (copied / "training" / "start.new").exists()
    assert (copied / "training" / "settings.json").exists()


def test_full_disk_after_that_says_what_is_gone(copied, text, monkeypatch):
    write = folder_module.write_file

    def full(path, content):
        if os.path.basename(path) == "settings.json":
            raise OSError(errno.ENOSPC, "No space left on device", path)
        write(path, content)

    message = "The training that was in .* removed; .* Make room; then run the"
    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "write_file", full)
        with pytest.raises(OSError, match=message):
            train(copied, text, overwrite=True)
    assert not RunFolder(os.fspath(copied)).has_training()


def test_a_new_training_removes_what_the_old_one_wrote(copied):
    folder = RunFolder(os.fspath(copied))
    notes = copied / "training/notes.txt"
    notes.write_text("mine")
    (copied / "training/.log.csv.abcdefgh").touch()  # of one that was killed
    folder.begin({"start_from": None}, {}, kt.Translator.load(copied))
    assert sorted(os.listdir(notes.parent)) == [
        *("lock", "notes.txt", "settings.json", "tokenizer.model"),
    ]


def test_a_new_training_keeps_what_the_old_one_had_elsewhere(copied, tmp_path):
    checkpoints = copied / "training/checkpoints"
    elsewhere = tmp_path / "scratch"
    checkpoints.rename(elsewhere)
    checkpoints.symlink_to(elsewhere)
    kept = os.listdir(elsewhere)
    folder = RunFolder(os.fspath(copied))
    folder.begin({"start_from": None}, {}, kt.Translator.load(copied))
    assert not checkpoints.exists()
    assert os.listdir(elsewhere) == kept


def test_command_may_name_any_file(tmp_path):
    folder = RunFolder(os.fspath(tmp_path))
    (tmp_path / "training").mkdir()
    for name in (b"gr\xfcn.en", "grün.en".encode()):
        folder.add_command(f"train {os.fsdecode(name)}")
    noted = (tmp_path / "training/commands.txt").read_bytes()
    assert noted == b"train gr\xfcn.en\ntrain " + "grün.en\n".encode()


def test_file_system_without_locks_is_said(tmp_path, monkeypatch, capsys):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with RunFolder(os.fspath(tmp_path)).locked():
        pass
    assert f"system of {tmp_path} has no locks" in capsys.readouterr().err


def test_symbols_of_a_training_are_one_string():
    assert TrainingOptions("run", symbols="<a>, <b>").symbols == "<a>,<b>"
    message = r"`symbols` must be a string, .*Received: symbols=\['<a>'\]"
    with pytest.raises(TypeError, match=message):
        TrainingOptions("run", symbols=["<a>"])


def test_vocabulary_may_leave_rare_characters_out(text, tmp_path):
    characters = []
    for coverage in (None, 0.98):
        options = new_run(
            tmp_path, vocabulary_size=40, character_coverage=coverage
        ).options
        (tokenizer,) = new_tokenizers(options, *text)
        characters.append({*"".join(tokenizer.pieces)})
    every, common = characters
    assert common < every


def test_vocabulary_may_keep_text_as_it_is(text, tmp_path):
    path = tmp_path / "text.en"
    path.write_text("”ﬁne！”\n" * 20)
    found = []
    for normalization in (None, "identity"):
        options = new_run(
            tmp_path, vocabulary_size=30, normalization=normalization
        ).options
        (tokenizer,) = new_tokenizers(options, path, text[1])
        found.append(tokenizer.decode(tokenizer.encode("”ﬁne！”")))
    assert found == ["”fine!”", "”ﬁne！”"]


def test_the_target_may_have_more_pieces_than_the_source(text, tmp_path):
    sizes = {"vocabulary_size": 30, "separate_vocabularies": True}
    options = new_run(tmp_path, **sizes, target_vocabulary_size=35).options
    source, target = new_tokenizers(options, *text)
    assert (source.vocabulary_size, target.vocabulary_size) == (30, 35)
    path = tmp_path / "text.zh"
    path.write_text("".join(map(chr, range(0x4E00, 0x4E40))))
    message = (
        "`vocabulary_size` must be at least 69 for .* Received: .*=30, 1 lines "
        "in .*text.zh. The target may have a size of its own, `target_vocab"
    )
    with pytest.raises(ValueError, match=message):
        new_tokenizers(new_run(tmp_path, **sizes).options, text[0], path)
    options = new_run(tmp_path, **sizes, target_vocabulary_size=35).options
    message = (
        "`target_vocabulary_size` must be at least 69 for .* Received: "
        r"target_vocabulary_size=35, .*text.zh\.$"
    )
    with pytest.raises(ValueError, match=message):
        new_tokenizers(options, text[0], path)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"hidden_dim": 256}, 1),
        ({"hidden_dim": 258}, 0),
        ({"distribute": "mirrored"}, 0),
    ],
    ids=str,
)
def test_cores_train_narrow_models_in_parts(
    text, tmp_path, monkeypatch, settings, expected
):
    given = []
    monkeypatch.setattr(
        run_module, "give_cores_to_parts", lambda: given.append(1)
    )
    monkeypatch.setattr(Fitting, "fit", lambda *_: None)
    train(tmp_path / "run", text, settings)
    assert len(given) == expected


@pytest.mark.slow
def test_a_training_has_not_computed_before_it_gives_cores(
    text, tmp_path, monkeypatch, run_program
):
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    settings = json.dumps({**SETTINGS, **SMALL})
    done = run_program("train_in_parts", tmp_path / "run", settings, *text)
    assert done.stdout.splitlines()[-1] == "threads 1"


@pytest.mark.slow
def test_muon_updates_the_matrices_of_layers(text, tmp_path):
    settings = {
        "optimizer": "muon",
        "epochs": 1,
        "clip_norm": 0.0,
        "dtype": "mixed_float16",
        "separate_vocabularies": True,
    }
    run = train(tmp_path / "run", text, settings)
    ((loss, validation_loss),) = losses(tmp_path / "run")
    assert validation_loss < loss - 0.5
    optimizer = run.fitting.translator.model.optimizer.inner_optimizer
    assert isinstance(optimizer, kt.Muon)
    by_adam = {
        variable.path
        for variable in run.fitting.translator.model.trainable_variables
        if optimizer._should_use_adamw(variable)
    }
    for variable in run.fitting.translator.model.trainable_variables:
        is_in_stack = "coder/" in variable.path and "kernel" in variable.path
        assert is_in_stack == (variable.path not in by_adam)
    again = train(tmp_path / "run", text, {**settings, "epochs": 2})
    assert len(losses(tmp_path / "run")) == 2
    assert again.history.saved == again.history.rows[1]
    with pytest.raises(ValueError, match="`optimizer` must be what the train"):
        train(tmp_path / "run", text, {**settings, "optimizer": "adam"})


@pytest.mark.slow
def test_less_memory_may_be_asked_for_later(trained, tmp_path, text):
    found = []
    for rematerialize in (True, False):
        folder = tmp_path / f"run {rematerialize}"
        shutil.copytree(trained.folder, folder)
        settings = {
            **trained.settings,
            "epochs": 3,
            "rematerialize": rematerialize,
        }
        run = train(folder, text, settings)
        assert run.history.saved == run.history.rows[2]
        model = kt.Translator.load(folder).model
        assert model.encoder.rematerialize == rematerialize
        found.append(losses(folder))
    again, once = found
    np.testing.assert_allclose(again, once, rtol=1e-4)


def test_what_training_stops_by_may_change_unless_the_best_is_kept():
    def settings(**options):
        return new_run("run", **{"patience": 1, **options}).options.settings()

    tokenize = {"tokenize": "13a"}
    assert settings(monitor="val_bleu") == settings() | tokenize
    kept = settings(monitor="val_bleu", tokenize="zh", keep_best=True)
    assert (kept["monitor"], kept["tokenize"]) == ("val_bleu", "zh")


def test_how_epochs_are_scored_may_be_said_later_and_not_changed(
    trained, tmp_path
):
    folder = RunFolder(os.fspath(tmp_path / "run"))
    os.makedirs(folder.path())

    def settings(**options):
        return TrainingOptions(output=folder.output, **options).settings()

    folder.begin(settings(), {}, kt.Translator.load(trained.folder))
    folder.check_same(settings(bleu=True), {})
    folder.add_later(settings(bleu=True, tokenize="zh"), {})
    folder.check_same(settings(), {})  # no longer scored
    folder.check_same(settings(bleu=True, tokenize="zh"), {})
    # Scores of other tokens are no measure for those of earlier epochs.
    for tokenize in (None, "13a"):
        with pytest.raises(ValueError, match="`tokenize` must be what the tr"):
            folder.check_same(settings(bleu=True, tokenize=tokenize), {})


@pytest.mark.parametrize("part", ["checkpoints", "tensorboard/train"])
def test_folders_of_another_user_are_found_first(monkeypatch, tmp_path, part):
    folder = RunFolder(os.fspath(tmp_path))
    os.makedirs(folder.path(part))
    folder.check_writable()
    monkeypatch.setattr(
        os, "access", lambda path, mode: not path.endswith(part)
    )
    with pytest.raises(PermissionError, match=f"Cannot write in '.*{part}'"):
        folder.check_writable()


def test_an_empty_path_is_not_the_current_folder():
    for name in ("output", "tokenizer"):
        with pytest.raises(ValueError, match=f"`{name}` must be a path. Rec"):
            TrainingOptions(**{"output": "run", name: ""})


def test_a_file_may_be_named_in_another_way_or_moved(
    trained, tmp_path, monkeypatch
):
    path = tmp_path / "run/training"
    path.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = RunFolder(os.fspath(tmp_path / "run"))
    translator = kt.Translator.load(trained.folder)

    def check(begun, now, going_on_in=tmp_path):
        settings = {"start_from": None, "tokenizer": begun, "epochs": 1}
        monkeypatch.chdir(tmp_path)
        folder.begin(settings, {}, translator)
        monkeypatch.chdir(going_on_in)
        folder.check_same({**settings, "tokenizer": now}, {})

    for name in ("x.model", f"{tmp_path}/x.model", "./x.model"):
        check("x.model", name)
        check(name, "x.model")
    check(None, None)
    check("x.model", "x.model", elsewhere)  # all of it has been moved
    check("x.model", "../x.model", elsewhere)
    check("x.model", f"{tmp_path}/x.model", elsewhere)
    for begun, now in (("x", "y"), ("x", None), (None, "x")):
        with pytest.raises(ValueError, match="`tokenizer` must be what"):
            check(begun, now)
    with pytest.raises(ValueError, match="`tokenizer` must be what"):
        check("x", "./x", elsewhere)


def test_text_without_a_pair_is_found_before_any_work(
    text, tmp_path, monkeypatch
):
    monkeypatch.delattr(run_module, "new_tokenizers")
    files = [tmp_path / "some", tmp_path / "blank"]
    message = "must not be empty. Received: no pair of .*some, .*blank"
    for contents in (
        ("", ""),
        (" \n", " \n"),
        ("the cat\n\n", "\ndie Katze\n"),
    ):
        for file, content in zip(files, contents, strict=True):
            file.write_text(content)
        for wrong in ({"text": files}, {"text": text, "validation": files}):
            with pytest.raises(ValueError, match=message):
                train(tmp_path / "run", **wrong)
    address = Path("gs://b/x")  # which keeps one slash of two
    with pytest.raises(ValueError, match="file system. Received: 'gs://b/x'"):
        train(tmp_path / "run", [address, files[0]])
    assert not (tmp_path / "run").exists()


def test_where_nothing_can_be_written_no_text_is_read(
    text, tmp_path, monkeypatch
):
    monkeypatch.delattr(run_module, "new_tokenizers")
    with pytest.raises(NotADirectoryError, match="text.en' is a file, not a"):
        train(text[0] / "run", text)
    with pytest.raises(OSError, match="File name too long"):
        train(tmp_path / ("n" * 300), text)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="Cannot write in '"):
        train(tmp_path / "run", text)
    assert os.listdir(tmp_path) == []


def test_a_start_that_was_killed_is_no_obstacle(tmp_path):
    folder = RunFolder(os.fspath(tmp_path / "run"))
    with folder.locked():
        folder.check_free(overwrite=False)


def test_a_file_that_is_missing_is_found_before_others_are_read(
    text, tmp_path, monkeypatch
):
    monkeypatch.delattr(data, "fingerprint")
    with pytest.raises(FileNotFoundError, match="No such file: .*missing"):
        data.TextFiles.of(*text, (text[0], tmp_path / "missing"))


def test_a_start_that_failed_does_not_refuse_another(
    trained, text, tmp_path, monkeypatch
):
    class Fails(Exception):
        pass

    def fail(self, checkpoint, history):
        raise Fails

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Fitting, "fit", fail)
        for seed in (1, 2):
            with pytest.raises(Fails):
                train(folder, text, {"seed": seed})
        with pytest.raises(ValueError, match="`seed` must be what the train"):
            train(folder, text, {"seed": 3}, resume=True)
    settings = json.loads((folder / "training/settings.json").read_text())
    assert settings["settings"]["seed"] == 2
    with RunFolder(os.fspath(folder)).locked():
        with pytest.raises(RuntimeError, match="Another training is writing"):
            train(folder, text, {"seed": 3})
    (folder / "training/checkpoints").mkdir()
    name = "epoch-00001-batch-00000000.safetensors"
    (folder / "training/checkpoints" / name).touch()
    with pytest.raises(ValueError, match="`seed` must be what the train"):
        train(folder, text, {"seed": 3})


def test_before_a_training_nothing_is_changed(tmp_path):
    run = new_run(tmp_path / "run")
    assert run.state() == f"Nothing was changed in {tmp_path / 'run'}."
    run.distribution = Distribution(num_processes=2, process=1)
    run.history = History(run.options, [])
    message = "What is saved is in the folder of the first process."
    assert run.state() == message


def test_one_training_a_folder(trained, text, monkeypatch):
    with RunFolder(os.fspath(trained.folder)).locked():
        message = (
            f"Another training is writing to .*, process {os.getpid()}. Wait "
        )
        with pytest.raises(RuntimeError, match=message):
            train(trained.folder, text, trained.settings)
        monkeypatch.delattr(run_module, "new_tokenizers")  # found before
        with pytest.raises(RuntimeError, match=message):
            train(trained.folder, text, trained.settings, overwrite=True)


def test_full_disk_before_a_checkpoint_promises_none(
    trained, tmp_path, text, monkeypatch
):
    monkeypatch.setattr(Checkpoint, "write", disk_is_full)
    message = "has no translator of this .* then run the same command again.$"
    with pytest.raises(OSError, match=message):
        train(tmp_path / "run", text, {**trained.settings, "epochs": 1})


def test_full_disk_after_a_checkpoint_costs_no_epoch(
    trained, untrained, tmp_path, text, monkeypatch
):
    folder = tmp_path / "run"
    settings = {**trained.settings, "epochs": 1}
    with monkeypatch.context() as patch:
        patch.setattr(kt.Translator, "save", disk_is_full)
        message = "run has no translator of this .*from the last checkpoint.$"
        with pytest.raises(OSError, match=message):
            train(folder, text, settings)
    monkeypatch.delattr(Fitting, "_fit_epoch")  # nothing is left to train
    run = train(folder, text, settings)
    assert run.state() == f"The translator after epoch 1 is in {folder}."
    assert kt.Translator.load(folder).model.num_layers == 1


def test_a_translator_that_its_checkpoint_came_before_is_made_up_for(
    trained, copied, text, monkeypatch
):
    # As if the second epoch had ended the process after its checkpoint.
    log = copied / "training/log.csv"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    old = kt.Translator.load(copied)
    old.model.set_weights([0 * weight for weight in trained.weights])
    old.save(copied, overwrite=True)
    first, second = Checkpoint.newest(copied / "training/checkpoints").history
    folder = RunFolder(os.fspath(copied))
    folder.note_translator(second, before=first)
    assert folder.noted_translator() == first

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(kt.Translator, "save", disk_is_full)
            message = "full: .*The translator after epoch 1 is in .*run. Make"
            with pytest.raises(OSError, match=message):
                train(copied, text, trained.settings)
    train(copied, text, trained.settings)
    assert losses(copied) == trained.losses
    for found, weight in zip(weights_in(copied), trained.weights, strict=True):
        np.testing.assert_array_equal(found, weight)
    # Of the same weights, another search may have been saved since.
    changed = kt.Translator.load(copied)
    changed.search = kt.BeamSearch()
    changed.save(copied, overwrite=True)
    train(copied, text, trained.settings)
    # Another translator that was put there since is left alone.
    old.model.set_weights([1 + weight for weight in trained.weights])
    old.save(copied, overwrite=True)
    before = weights_in(copied)
    message = "run is not the one that this training saved, and a further ep"
    for settings in (trained.settings, {**trained.settings, "epochs": 3}):
        with pytest.raises(FileExistsError, match=message):
            train(copied, text, settings)
    for found, weight in zip(weights_in(copied), before, strict=True):
        np.testing.assert_array_equal(found, weight)
    for name in os.listdir(copied):
        if name != "training":
            os.remove(copied / name)
    train(copied, text, {**trained.settings, "epochs": 3})
    assert losses(copied)[:2] == trained.losses
    assert len(weights_in(copied)) == len(trained.weights)


@pytest.mark.parametrize(
    "saved, state",
    [
        (None, "The translator in .*run is not known to be of this training.$"),
        ((0, 3.0), "The translator after epoch 1 is in .*run.$"),
        ((1, math.nan), "The translator after epoch 2 is in .*run.$"),
        ((2, 1.0), "translator after epoch 3, the best of 2 by loss, is in .*"),
        ((2, 0.5), "after epoch 3 is in .*run, from before training went back"),
        ((3, 1.0), "after epoch 4 is in .*run, from before training went back"),
    ],
)
def test_what_is_on_disk_is_told(tmp_path, saved, state):
    run = new_run(tmp_path / "run", monitor="loss", keep_best=True)
    losses = [3.0, math.nan, 1.0]
    rows = [{"epoch": n, "loss": x} for n, x in enumerate(losses)]
    if saved is not None:
        saved = dict(zip(("epoch", "loss"), saved, strict=True))
    run.history = History(run.options, rows, saved)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/translator.json").touch()
    assert re.search(state, run.state())
    assert run.history.is_saved() == (saved == rows[2])


def test_it_is_noted_which_epoch_the_translator_is_of(tmp_path, copied):
    folder = RunFolder(os.fspath(copied))
    first, second = {"epoch": 0, "loss": 2.0}, {"epoch": 1, "loss": math.nan}
    translator = kt.Translator.load(copied)
    folder.note_translator(second, before=first)
    assert folder.noted_translator() == first
    weights = translator.model.get_weights()
    translator.model.set_weights([2 * weight for weight in weights])
    translator.save(copied, overwrite=True)
    assert repr(folder.noted_translator()) == repr(second)
    folder.check_translator()  # notes what it finds
    translator.model.set_weights([3 * weight for weight in weights])
    translator.save(copied, overwrite=True)
    with pytest.raises(FileExistsError, match="run is not the one that this"):
        folder.check_translator()
    assert repr(folder.noted_translator()) == repr(second)
    (copied / "translator.json").unlink()
    assert repr(folder.noted_translator()) == repr(second)  # it was there
    folder.check_translator()
    for damage in ("{", '{"row": 3, "before": {"sha256": ""}}', "[3]"):
        (copied / "training/saved.json").write_text(damage)
        assert folder.noted_translator() is None
        folder.check_translator()
    assert RunFolder(os.fspath(tmp_path / "none")).noted_translator() is None


def test_an_unfinished_checkpoint_is_no_progress(tmp_path):
    folder = RunFolder(os.fspath(tmp_path))
    path = tmp_path / "training/checkpoints"
    path.mkdir(parents=True)
    name = "epoch-00001-batch-00000000.safetensors"
    (path / f".{name}.0123abcd").touch()  # of a training that was killed
    assert not folder.has_progress()
    (path / name).touch()
    assert folder.has_progress()


def test_a_run_may_be_where_a_link_leads(tmp_path):
    (tmp_path / "run").symlink_to(tmp_path / "there")
    with RunFolder(os.fspath(tmp_path / "run")).locked():
        assert os.listdir(tmp_path / "there/training") == ["lock"]


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("before", ["samples", "translator", "checkpoint"])
def test_a_folder_that_is_moved_ends_the_training(
    request, text, tmp_path, monkeypatch, before, is_replaced
):
    # All of `fit` lets the error through; once is enough.
    if (before, is_replaced) != ("checkpoint", True):
        request.getfixturevalue("untrained")
        monkeypatch.setattr(
            kt.Translator, "__call__", lambda self, texts, **options: texts
        )
    folder, moved = tmp_path / "run", tmp_path / "moved"
    owner, name = {
        "samples": (callbacks.Bleu, "_write"),
        "translator": (Fitting, "_save"),
        "checkpoint": (callbacks.Checkpoints, "write"),
    }[before]
    function = getattr(owner, name)
    settings = {"epochs": 3, "bleu": True}

    def move_first(*arguments, **options):
        # Samples have a file that is made with the first of them.
        if before == "samples" or (folder / "training" / "log.csv").exists():
            folder.rename(moved)
            if is_replaced:
                lock = folder / "training" / "lock"
                lock.parent.mkdir(parents=True)
                lock.write_bytes((moved / "training" / "lock").read_bytes())
        return function(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, move_first)
        message = "run was moved, removed or replaced while a training wrote"
        with pytest.raises(RuntimeError, match=message):
            train(folder, text, settings)
    assert sorted(path.name for path in folder.rglob("*")) == (
        ["lock", "training"] if is_replaced else []
    )
    if is_replaced:
        shutil.rmtree(folder)
    moved.rename(folder)
    train(folder, text, settings)
    assert len(losses(folder)) == 3


def test_full_disk_loses_nothing(trained, untrained, copied, text, monkeypatch):
    before = checkpoints(copied)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", disk_is_full)
        message = (
            "The disk is full: .*checkpoints.*The translator after epoch 2 is "
            "in .*then run the same command, without `--overwrite`, to go on "
            "from the last checkpoint"
        )
        with pytest.raises(OSError, match=message):
            train(copied, text, {**trained.settings, "epochs": 3})
    assert checkpoints(copied) == before
    run = train(copied, text, trained.settings)
    assert run.history.saved == run.history.rows[1]


# Learning on from another translator.

OF_ITS_OWN = {
    "preset": None,
    "vocabulary_size": None,
    "model_type": None,
    "normalize_first": None,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory, text):
    """A translator of two vocabularies, untrained."""
    tokenizers = [
        kt.Tokenizer.train([path], 40, model_type="bpe", verbose=0)
        for path in text
    ]
    model = kt.Transformer(
        vocabulary_size=tokenizers[1].vocabulary_size,
        source_vocabulary_size=tokenizers[0].vocabulary_size,
        normalize_first=True,
        max_length=48,
        **SMALL,
    )
    path = tmp_path_factory.mktemp("start") / "translator"
    search = kt.BeamSearch(width=2, num_hypotheses=2)
    kt.Translator(model, *tokenizers, search).save(path)
    return path


@pytest.fixture
def long_text(tmp_path):
    """Text whose first line is too long for the model of `start`."""
    return write_text(tmp_path, [("cat " * 50, "Katze")] + PAIRS)


@pytest.mark.slow
def test_training_starts_from_another_translator(
    start, text, long_text, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(run_module, "choose_sample", choose_sample)
    folder = tmp_path / "run"
    source = tmp_path / "start"
    shutil.copytree(start, source)
    settings = {
        **OF_ITS_OWN,
        "start_from": os.fspath(source),
        "learning_rate": 1e-9,  # too low to change anything
        "dropout": 0.25,
        "dtype": "mixed_bfloat16",
    }
    run = train(folder, text, {**settings, "epochs": 1}, validation=long_text)
    # The first line that is short enough.
    assert choose_sample(run.fitting.translator, long_text[0]) == PAIRS[0][0]
    printed = capsys.readouterr().out
    assert f"  {PAIRS[0][0]}\n  -> " in printed
    assert "-> [" not in printed  # one translation, no list
    expected, found = kt.Translator.load(start), kt.Translator.load(folder)
    for new, old in zip(
        found.model.get_weights(), expected.model.get_weights(), strict=True
    ):
        np.testing.assert_allclose(new, old, atol=1e-5)
    assert found.tokenizer.model == expected.tokenizer.model
    assert found.target_tokenizer.model == expected.target_tokenizer.model
    assert found.search.width == 2
    assert found.model.normalize_first
    assert found.model.dropout == 0.25
    assert found.model.dtype_policy.name == "mixed_bfloat16"

    # It has a copy of what it started from.
    shutil.rmtree(source)
    checkpoints = folder / "training" / "checkpoints"
    for path in checkpoints.iterdir():
        path.unlink()
    for name in ("log.csv", "saved.json"):
        (folder / "training" / name).unlink()
    run = train(folder, text, settings, validation=long_text)
    assert len(losses(folder)) == 2
    found = run.fitting.translator.model.get_weights()
    for new, old in zip(found, expected.model.get_weights(), strict=True):
        np.testing.assert_allclose(new, old, atol=1e-5)
    for other in ({**settings, "start_from": os.fspath(start)}, SETTINGS):
        message = "`start_from` must be what .* began with, .*start"
        with pytest.raises(ValueError, match=message):
            train(folder, text, other, validation=long_text)


@pytest.mark.slow
def test_a_model_of_another_size_than_a_preset(text, tmp_path):
    settings = {
        "num_layers": 2,
        "num_decoder_layers": 1,
        "num_heads": 3,
        "hidden_dim": 12,
        "intermediate_dim": 20,
        "activation": "gelu",
        "attention_dropout": 0.2,
    }
    others = {
        "epochs": 1,
        "vocabulary_size": 330,
        "byte_fallback": True,
        "split_digits": True,
        "symbols": "<2de>, [x]",
    }
    settings |= others
    train(tmp_path / "run", text, settings)
    translator = kt.Translator.load(tmp_path / "run")
    config = translator.model.get_config()
    for name in settings.keys() - others:
        assert config[name] == settings[name]
    pieces = translator.tokenizer.pieces
    assert pieces[4:7] == ["<2de>", "[x]", "<0x00>"]
    with pytest.raises(ValueError, match="`num_heads` must be what the"):
        train(tmp_path / "run", text, {**settings, "num_heads": None})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 5}, "`hidden_dim` must be a multiple of `num_heads`"),
        ({"num_layers": 0}, "`num_layers` must be at least 1"),
        ({"num_decoder_layers": 0}, "`num_decoder_layers` must be at least 1"),
        ({"activation": "no"}, "`activation` must be .*'no'"),
        ({"attention_dropout": 1.0}, "`attention_dropout` must be in"),
    ],
)
def test_sizes_that_cannot_be_are_found_before_text_is_read(
    tmp_path, settings, message
):
    missing = [tmp_path / "missing.en", tmp_path / "missing.de"]
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", missing, settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 3}, "`num_layers` must be left out with `start_from`"),
        ({"preset": "base"}, "`preset` must be left out with `start_from`, "),
        ({"normalize_first": False}, "`normalize_first` must be left out"),
        ({"tokenizer": "x.model"}, "`tokenizer` must be left out with `start_"),
        ({"max_length": 49, "tokens_per_batch": 64},
         "`max_length` must be at most that of `start_from`. Received: "
         "max_length=49, .*translator has 48"),
    ],
)  # fmt: skip
def test_start_leaves_no_choice_of_the_model(
    start, text, tmp_path, change, message
):
    settings = {**OF_ITS_OWN, "start_from": os.fspath(start), **change}
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", text, settings)
    assert not (tmp_path / "run").exists()


def test_frozen_parts_of_the_start_are_told(
    untrained, start, text, tmp_path, capsys
):
    translator = kt.Translator.load(start)
    translator.model.encoder.trainable = False
    translator.model.source_embedding.trainable = False
    translator.save(tmp_path / "frozen")
    settings = {**OF_ITS_OWN, "epochs": 1}
    settings["start_from"] = os.fspath(tmp_path / "frozen")
    same_text = [text[0], text[0]]
    train(tmp_path / "run", same_text, settings)
    errors = capsys.readouterr().err
    frozen = "Frozen, so left as they are: source_embedding, encoder.\n"
    assert frozen in errors
    assert "Source and target are the same text.\n" in errors

    translator.model.target_embedding.trainable = False
    translator.model.decoder.trainable = False
    translator.save(tmp_path / "frozen", overwrite=True)
    with pytest.raises(ValueError, match="must have a part that is not frozen"):
        train(tmp_path / "other", text, settings)
    assert not (tmp_path / "other").exists()


def test_lines_must_fit_the_start_to_be_scored(
    start, text, long_text, tmp_path
):
    settings = {
        **OF_ITS_OWN,
        "start_from": os.fspath(start),
        "monitor": "val_bleu",
        "patience": 1,
    }
    message = (
        "The lines of .*text.en must not be longer than 48 tokens. "
        "Received: line 1 with "
    )
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", text, settings, validation=long_text)
    assert not (tmp_path / "run").exists()


def test_start_must_be_another_translator(trained, text, tmp_path):
    for start, kind, message in (
        (tmp_path / "missing", FileNotFoundError, "No such folder"),
        (tmp_path, ValueError, "The folder must hold a translator"),
        (trained.folder, ValueError, "must be another folder than `output`"),
    ):
        settings = {**OF_ITS_OWN, "start_from": os.fspath(start)}
        with pytest.raises(kind, match=message):
            train(trained.folder, text, settings, overwrite=True)
    assert losses(trained.folder) == trained.losses


# Vocabularies.


@pytest.fixture
def others_vocabulary(text, tmp_path):
    """Of SentencePiece itself, with other special ids than ours."""
    sentencepiece.SentencePieceTrainer.train(
        input=[os.fspath(path) for path in text],
        model_prefix=os.fspath(tmp_path / "other"),
        vocab_size=50,
        model_type="bpe",
        minloglevel=2,
    )
    return os.fspath(tmp_path / "other.model")


def goes_on_with_the_same_vocabularies(folder, text, settings, epochs=1):
    """Trains an epoch; goes on to `epochs` after what it was given is gone."""
    run = train(folder, text, {**settings, "epochs": 1})
    translator = run.fitting.translator
    for path in (settings.get("tokenizer"), settings.get("target_tokenizer")):
        if path:
            os.remove(path)
    again = train(folder, text, {**settings, "epochs": epochs})
    assert len(losses(folder)) == epochs
    found = kt.Translator.load(folder)
    for other in (again.fitting.translator, found):
        assert other.tokenizer.model == translator.tokenizer.model
        assert other.target_tokenizer.model == translator.target_tokenizer.model
    return found


def test_each_side_learns_a_vocabulary_of_its_own(text, tmp_path):
    settings = {"vocabulary_size": 40, "separate_vocabularies": True}
    translator = goes_on_with_the_same_vocabularies(
        tmp_path / "run", text, settings
    )
    assert not translator.model.tie_source
    for tokenizer, own, other in (
        (translator.tokenizer, "▁sees", "▁sieht"),
        (translator.target_tokenizer, "▁sieht", "▁sees"),
    ):
        assert tokenizer.vocabulary_size == 40
        assert own in tokenizer.pieces
        assert other not in tokenizer.pieces


GIVEN = {"vocabulary_size": None, "model_type": None}


@pytest.mark.slow
def test_a_vocabulary_is_taken_from_a_file(text, tmp_path, others_vocabulary):
    settings = {**GIVEN, "tokenizer": others_vocabulary}
    expected = kt.Tokenizer.from_sentencepiece(others_vocabulary)
    translator = goes_on_with_the_same_vocabularies(
        tmp_path / "run", text, settings
    )
    assert translator.tokenizer.model == expected.model
    assert translator.model.tie_source


@pytest.mark.slow
def test_vocabularies_of_both_sides_are_taken_from_files(
    text, tmp_path, others_vocabulary
):
    path = tmp_path / "target.model"
    target = kt.Tokenizer.train([text[1]], 40, model_type="bpe", verbose=0)
    target.save(path)
    settings = {
        **GIVEN,
        "tokenizer": others_vocabulary,
        "target_tokenizer": os.fspath(path),
    }
    translator = goes_on_with_the_same_vocabularies(
        tmp_path / "run", text, settings, epochs=2
    )
    assert translator.tokenizer.vocabulary_size == 51  # with padding
    assert translator.target_tokenizer.model == target.model
    assert not translator.model.tie_source


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"tokenizer": "x.model"}, ValueError,
         "`vocabulary_size` must be left out with `tokenizer`, which is not "
         "learned. Received: vocabulary_size=54, tokenizer=x.model"),
        ({"target_vocabulary_size": 40}, ValueError,
         "`target_vocabulary_size` needs `separate_vocabularies`. Received: "),
        ({**GIVEN, "tokenizer": "x", "target_vocabulary_size": 40}, ValueError,
         "`target_vocabulary_size` must be left out with `tokenizer`"),
        ({"separate_vocabularies": True, "target_vocabulary_size": 0},
         ValueError, "`target_vocabulary_size` must be at least 1"),
        ({"normalization": "nfc"}, ValueError,
         "`normalization` must be one of None, 'nmt_nfkc', "),
        ({**GIVEN, "tokenizer": "x.model", "separate_vocabularies": True},
         ValueError, "`separate_vocabularies` must be left out with"),
        ({"target_tokenizer": "x.model"}, ValueError,
         "`target_tokenizer` needs `tokenizer`, the one of the source"),
        ({**GIVEN, "tokenizer": "x.model"}, FileNotFoundError,
         "No such file: 'x.model'"),
        ({"character_coverage": 0.0}, ValueError,
         r"`character_coverage` must be in .* Received: .*=0.0"),
    ],
)  # fmt: skip
def test_vocabularies_that_cannot_be(text, tmp_path, settings, kind, message):
    with pytest.raises(kind, match=message):
        train(tmp_path / "run", text, settings)
    assert not (tmp_path / "run").exists()


# Early stopping and the best epoch.


@pytest.fixture
def scores(monkeypatch):
    """Sets what the epochs to come score."""

    def scores(values):
        scores = iter(values)
        monkeypatch.setattr(
            bleu_callback,
            "corpus_scores",
            lambda *_, **__: kt.CorpusScores(next(scores), 0.0, ""),
        )

    return scores


@pytest.mark.slow
def test_best_epoch_is_kept_and_training_stops(text, tmp_path, scores, capsys):
    folder = tmp_path / "run"
    settings = {
        "monitor": "val_bleu",
        "patience": 2,
        "keep_best": True,
        "epochs": 3,
    }
    scores([5.0, 7.0, 6.0])
    run = train(folder, text, settings)
    state = "The translator after epoch 2, the best of 3 by val_bleu, is in"
    assert run.state() == f"{state} {folder}."
    best = weights_in(folder)
    # Going on counts the epochs that have ended.
    scores([7.0])
    settings["epochs"] = 9
    run = train(folder, text, settings)
    assert len(losses(folder)) == 4
    assert "val_bleu has not improved for 2 epochs" in capsys.readouterr().err
    for found, weight in zip(weights_in(folder), best, strict=True):
        np.testing.assert_array_equal(found, weight)
    train(folder, text, settings)
    assert len(losses(folder)) == 4
    # With more patience it goes on, and then with less, as the last is better.
    scores([8.0, 6.0])
    train(folder, text, {**settings, "patience": 3, "epochs": 5})
    train(folder, text, {**settings, "epochs": 6})
    assert len(losses(folder)) == 6


def test_translations_are_scored_as_told(text, tmp_path, monkeypatch):
    signatures = []

    def scored(*arguments, **options):
        scores = kt.corpus_scores(*arguments, **options)
        signatures.append(scores.signature)
        return scores

    monkeypatch.setattr(bleu_callback, "corpus_scores", scored)
    settings = {"bleu": True, "tokenize": "char", "epochs": 1}
    train(tmp_path / "run", text, settings)
    [signature] = signatures
    assert "|tok:char|" in signature


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, 1])
def test_the_first_process_alone_says_how_it_goes(
    text, tmp_path, scores, monkeypatch, capsys, process
):
    distribution = Distribution(process=process)
    monkeypatch.setattr(
        run_module,
        "distributed",
        lambda *_: contextlib.nullcontext(distribution),
    )
    scores([5.0, 4.0])
    settings = {"monitor": "val_bleu", "patience": 1, "warmup_steps": 4000}
    train(tmp_path / "run", text, settings)
    errors = capsys.readouterr().err
    for message in (
        "Training on ",
        "before the learning rate peaks",
        "val_bleu has not improved for 1 epoch",
    ):
        assert (message in errors) == (process == 0)
    for name in (
        "translator.json",
        "training/log.csv",
        "training/tensorboard",
        "training/checkpoints",
    ):
        assert (tmp_path / "run" / name).exists() == (process == 0)


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("val_loss", [3.0, 1.0, 1.0, 2.0], 1),
        ("val_bleu", [math.nan, 3.0, 9.0, 9.0], 2),
        ("val_perplexity", [9.0, 4.0, 4.5], 1),
        ("val_loss", [math.nan, math.nan], 1),
    ],
)
def test_best_epoch_is_the_first_of_the_best(monitor, values, best):
    options = TrainingOptions("run", monitor=monitor, keep_best=True)
    rows = [
        {"epoch": epoch, monitor: value} for epoch, value in enumerate(values)
    ]
    history = History(options, rows)
    assert history.epoch_to_save() == best
    assert len(history.scored()) == sum(x == x for x in values)
    options.keep_best = False
    assert history.epoch_to_save() == len(values) - 1


def test_what_is_no_number_is_no_best_to_wait_for():
    history = History(TrainingOptions("run", patience=2), [])
    stalled = []
    for value in [math.nan, 5.0, 4.0, math.nan, 3.0, 3.0, 4.0]:
        history.add({"loss": 1.0, "val_loss": value})
        stalled.append(history.has_stalled())
    assert history.best_epoch() == 4
    assert stalled == [False] * 6 + [True]


@hypothesis.given(
    st.integers(0, 2),
    st.lists(st.sampled_from([math.nan, 1.0, 2.0, 3.0]), max_size=9),
    st.integers(1, 3),
    st.booleans(),
)
def test_training_stalls_where_keras_stops_it(
    unscored, values, patience, more_is_better
):
    monitor = "val_bleu" if more_is_better else "val_loss"
    options = TrainingOptions("run", patience=patience, monitor=monitor)
    mode, worst = "min", math.inf
    if more_is_better:
        mode, worst = "max", -math.inf
    stop = keras.callbacks.EarlyStopping(monitor, patience=patience, mode=mode)
    stop.set_model(types.SimpleNamespace(stop_training=False))
    stop.on_train_begin()
    # Text to validate on may have come later.
    history = History(options, [{"epoch": n} for n in range(unscored)])
    assert not history.has_stalled()
    for epoch, value in enumerate(values, unscored):
        history.rows.append({"epoch": epoch, monitor: value})
        # To Keras, nothing is better than what is no number.
        value = worst if math.isnan(value) else value
        stop.model.stop_training = False
        stop.on_epoch_end(epoch, {monitor: value})
        assert history.has_stalled() == stop.model.stop_training


def test_a_full_disk_is_an_error_of_the_system_in_the_event_log_too(
    tmp_path, monkeypatch
):
    def fails(*arguments):
        raise tf.errors.ResourceExhaustedError(None, None, "x; No space left")

    log = EventLog(tmp_path / "log")
    monkeypatch.setattr(tf.summary, "write", fails)
    with pytest.raises(OSError, match="No space left on device") as raised:
        log.write(1, {"loss": 1.0})
    assert raised.value.errno == errno.ENOSPC
    assert str(raised.value).endswith(f"'{tmp_path}/log'")


@pytest.mark.parametrize("name", ["bleu", "patience", "keep_best"])
def test_what_needs_validation_says_so(text, tmp_path, name):
    with pytest.raises(ValueError, match=f"`{name}` needs `validation`"):
        train(tmp_path / "run", text, {name: 1}, validation=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"monitor": "bleu"}, "`monitor` must be one of 'val_loss'"),
        ({"monitor": "val_perplexity"}, "`monitor` needs `patience` or"),
        ({"tokenize": "zh"}, "`tokenize` needs `bleu`, whose score"),
        ({"tokenize": "en", "bleu": True}, "`tokenize` must be one of 'none'"),
        ({"accumulate": 0}, "`accumulate` must be at least 1"),
        ({"epochs": 0}, "`epochs` must be at least 1"),
        ({"updates": 3}, "Give `epochs` or .* Received: epochs=2, updates=3"),
        ({"epochs": None, "updates": 0}, "`updates` must be at least 1"),
        ({"updates_per_epoch": 0}, "`updates_per_epoch` must be at least 1"),
        ({"save_every": -1}, "`save_every` must not be negative"),
        ({"average_every": 5}, "`average_every` needs `average_last` or"),
        ({"clip_norm": -1.0}, "`clip_norm` must not be negative"),
        ({"average_last": 2, "average_decay": 0.9}, "Give `average_last` or"),
        ({"tokens_per_batch": 0}, "`tokens_per_batch` must be at least 1"),
        ({"seed": 2**32}, r"`seed` must be less than 2\^32"),
        ({"max_length": 0}, "`max_length` must be at least 1"),
        ({"segmentations": 0}, "`segmentations` must be at least 1"),
        ({"segmentation_alpha": 0.5}, "`segmentation_alpha` needs `segmenta"),
        (
            {"segmentations": 2, "segmentation_alpha": 0.0},
            r"`segmentation_alpha` must be in \(0",
        ),
        ({"segmentations": 2}, "`segmentations` must be 1 with `model_type` b"),
        ({"dropout": 1.5}, r"`dropout` must be in \[0, 1\)"),
    ],
)
def test_settings_out_of_range(text, tmp_path, monkeypatch, change, message):
    # Found before minutes of work.
    monkeypatch.delattr(kt.Tokenizer, "train")
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", text, change)
    assert not (tmp_path / "run").exists()


def test_training_needs_tensorflow_or_jax(text, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ValueError, match="Training needs Keras on TensorFlow"):
        train(tmp_path / "run", text)


def test_deterministic_needs_tensorflow(text, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="`deterministic` needs the TensorF"):
        train(tmp_path / "run", text, {"deterministic": True})


@pytest.mark.slow
def test_without_matplotlib_training_goes_on(
    trained, copied, text, monkeypatch, capsys
):
    (copied / "training/curves.png").unlink()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        train(copied, text, {**trained.settings, "epochs": 3})
    assert "`pip install '.[plot]'`" in capsys.readouterr().err
    assert len(losses(copied)) == 3
    assert not (copied / "training/curves.png").exists()


# Processes of their own.


@pytest.fixture
def in_processes(run_program, text, tmp_path):
    """Trains in processes of their own, killed at some moments.

    Gives a function of folders, settings and moments to what each wrote to its
    errors, "ended" in the last line if it did.
    """

    def run(folders, settings, moments):
        files = [tmp_path / f"{n}.log" for n in range(len(folders))]
        jobs = [
            ({**SETTINGS, **settings, "output": str(folder)}, moment, str(file))
            for folder, moment, file in zip(
                folders, moments, files, strict=True
            )
        ]
        arguments = json.dumps([jobs, SMALL, [str(path) for path in text]])
        run_program("train_until_killed", arguments)
        return [file.read_text() for file in files]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "moments"),
    [
        (
            {"average_last": 2, "save_every": 5},
            [
                "while a checkpoint is renamed",
                "between two batches",
                "between checkpoint and translator",
            ],
        ),
        (
            {
                "average_decay": 0.9,
                "accumulate": 2,
                "dtype": "mixed_float16",
                "save_every": 2,
                "model_type": "unigram",
                "vocabulary_size": 37,
                "segmentations": 3,
            },
            ["between two batches"],
        ),
    ],
    ids=["last", "decay, accumulated"],
)
def test_killed_training_comes_to_the_same(
    in_processes, tmp_path, settings, moments
):
    settings = {**settings, "epochs": 3}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    moments = [None, *moments, None]
    folders = [whole, *[killed] * (len(moments) - 1)]
    first, *others, last = in_processes(folders, settings, moments)
    assert first.endswith("ended\n"), first
    for errors in others:
        assert errors.endswith("killed\n"), errors
    assert last.endswith("ended\n"), last
    is_all = moments[-2] == "between checkpoint and translator"
    for errors in others[1:] if is_all else [*others[1:], last]:
        assert "Resuming the training in" in errors
    assert ("Nothing is left to do for the training in" in last) == is_all
    np.testing.assert_allclose(losses(killed), losses(whole), atol=1e-4)
    # Both loaded in this process, which no kill has touched.
    for found, weight in zip(
        weights_in(killed), weights_in(whole), strict=True
    ):
        np.testing.assert_allclose(found, weight, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_deterministic_training_is_equal_bit_by_bit(in_processes, tmp_path):
    folders = [tmp_path / name for name in ("one", "other")]
    for errors in in_processes(folders, {"deterministic": True}, [None, None]):
        assert errors.endswith("ended\n"), errors
    for one, other in zip(
        weights_in(tmp_path / "one"),
        weights_in(tmp_path / "other"),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert losses(tmp_path / "one") == losses(tmp_path / "other")

"""The examples and export scripts run, on little text and one step."""

import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import keras
import numpy as np
import pytest

import keras_transformer as kt

ROOT = pathlib.Path(__file__).parents[1]


def write_pairs(paths, pairs):
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


@contextlib.contextmanager
def example(name):
    folder = ROOT / "examples" / name
    sys.path.insert(0, str(folder))
    try:
        specification = importlib.util.spec_from_file_location(
            name, folder / f"{name}.py"
        )
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def quickstart():
    with example("quickstart") as module:
        yield module


@pytest.fixture(scope="module")
def multi30k():
    with example("multi30k") as module:
        yield module


@pytest.fixture(scope="module")
def wmt14():
    with example("wmt14") as module:
        yield module


@pytest.fixture(scope="module")
def trained(quickstart):
    keras.utils.set_random_seed(1)
    pairs = quickstart.corpus.sentence_pairs(400, seed=1)
    tokenizer = quickstart.make_tokenizer(pairs, vocabulary_size=200)
    model = quickstart.make_model(tokenizer, num_layers=1)
    before = keras.ops.convert_to_numpy(model.weights[0])
    seconds = quickstart.train(model, tokenizer, pairs[:32])
    assert seconds > 0
    assert (keras.ops.convert_to_numpy(model.weights[0]) != before).any()
    return kt.Translator(model, tokenizer), pairs


def test_quickstart_counts_exact_matches(quickstart):
    def translate(texts):
        return [text.upper() for text in texts]

    share, wrong = quickstart.exact_matches(
        translate, [("a", "A"), ("b", "x"), ("c", "C"), ("d", "D")]
    )
    assert share == 0.75
    assert wrong == [("b", "x", "B")]


def test_quickstart_draws_attention(quickstart, trained, tmp_path):
    translator, pairs = trained
    path = tmp_path / "attention.png"
    quickstart.draw_attention(translator, pairs[0][0], path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_saved_model_translates_elsewhere(quickstart, trained, tmp_path):
    translator, pairs = trained
    translator.save(tmp_path / "translator")
    texts = [english for english, _ in pairs[:3]]
    folder = tmp_path / "exported" / "1"
    script = subprocess.run(
        [
            sys.executable,
            ROOT / "export" / "to_saved_model.py",
            tmp_path / "translator",
            folder,
            *texts,
        ],
        capture_output=True,
        text=True,
    )
    assert script.returncode == 0, script.stderr
    assert script.stdout.count("(the same as the translator)") == 3
    assert quickstart.translate_elsewhere(folder, texts) == translator(texts)


@pytest.mark.slow
def test_litert_file_translates(trained, tmp_path):
    translator, pairs = trained
    translator.save(tmp_path / "translator")
    texts = [english for english, _ in pairs[:3]]
    command = [
        sys.executable,
        ROOT / "export" / "to_litert.py",
        *(tmp_path / "translator", tmp_path / "x.tflite", "float32", *texts),
    ]
    script = subprocess.run(command, capture_output=True, text=True)
    assert script.returncode == 0, script.stderr
    assert script.stdout.splitlines()[1::2] == [
        f"-> {translation}" for translation in translator(texts)
    ]
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_multi30k_makes_ids_of_the_training_pieces(multi30k):
    vocabulary = multi30k.pieces.make_vocabulary(["a c@@ b", "a d"])
    assert vocabulary == {"a": 4, "b": 5, "c@@": 6, "d": 7}
    assert multi30k.pieces.size(vocabulary) == 8
    ids = multi30k.pieces.make_ids(["d  c@@ x", ""], vocabulary)
    assert ids == [[7, 6, 1, 3], [3]]


def test_multi30k_batches_hold_each_pair_once(multi30k):
    source = [[4] * length + [3] for length in (5, 1, 9, 2, 0)]
    target = [[5 + i] * (10 - len(row)) + [3] for i, row in enumerate(source)]
    dataset = multi30k.pieces.make_dataset(source, target, 24, seed=1)
    epochs = [[*dataset.as_numpy_iterator()] for _ in range(3)]
    assert len(dataset) == len(epochs[0]) > 1
    found = []
    for inputs, labels, weights in epochs[0]:
        assert max(inputs["source_ids"].size, labels.size) <= 24
        assert (weights == (labels != 0)).all()
        for *sides, label in zip(*inputs.values(), labels, strict=True):
            first, second, label = (
                row[row != 0].tolist() for row in (*sides, label)
            )
            assert second == [2, *label[:-1]]
            found.append((first, label))
    assert sorted(found) == sorted(zip(source, target, strict=True))
    orders = [[labels[0, 0] for _, labels, _ in epoch] for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders.count(orders[0]) < 3
    later = multi30k.pieces.make_dataset(source, target, 24, 1, first_epoch=2)
    assert [y[0, 0] for _, y, _ in later.as_numpy_iterator()] == orders[2]


def test_multi30k_translations_are_words_in_order(multi30k):
    vocabulary = {"an@@": 4, "ders": 5, "so": 6}

    class Echo:
        def generate(self, source_ids, search):
            return source_ids, np.zeros(len(source_ids))

    lines = ["so an@@ ders so", "", "an@@ ders an@@", "so x"]
    assert multi30k.pieces.translate(Echo(), lines, vocabulary, None) == [
        "so anders so",
        "",
        "anders an",
        "so",
    ]


def test_multi30k_says_in_a_line_what_is_wrong(multi30k, tmp_path, capsys):
    for name, text in {"a": "eins\nzwei\n", "b": "one\n"}.items():
        (tmp_path / name).write_text(text)
    pair = [str(tmp_path / "a"), str(tmp_path / "b")]
    arguments = [
        "raw",
        "--train",
        *pair,
        "--validation",
        *pair,
        "--test",
        *pair,
    ]
    with pytest.raises(SystemExit) as stopped:
        multi30k.main([*arguments, "--output", str(tmp_path / "out")])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "the same number of lines" in error and error.count("\n") == 1


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan"])
def test_multi30k_needs_minutes_that_end(multi30k, capsys, text):
    arguments = ["raw", "--output", "out", "--minutes", text]
    for name in ("train", "validation", "test"):
        arguments += [f"--{name}", "a", "b"]
    with pytest.raises(SystemExit):
        multi30k.main(arguments)
    expected = f"--minutes: must be above 0. Received: {text}.\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_multi30k_that_diverged_ends(multi30k, tmp_path, loss):
    state = multi30k.progress.Progress(kt.Checkpoint(), tmp_path, None, 3, None)
    state.on_epoch_begin(0)
    message = "has diverged: the validation loss must be .* in epoch 1"
    with pytest.raises(ValueError, match=message):
        state.on_epoch_end(0, {"loss": 1.0, "val_loss": loss})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("losses", "is_over"),
    [
        ([], False),
        ([3.0, 2.0, 2.5, 2.1], False),
        ([3.0, 2.0, 2.5, 2.1, 2.2], True),
    ],
)
def test_multi30k_ends_without_improvement(multi30k, tmp_path, losses, is_over):
    history = [{"val_loss": loss, "seconds": 30.0} for loss in losses]
    start = kt.Checkpoint(history=history)
    for minutes, expected in ((None, is_over), (1, True)):
        state = multi30k.progress.Progress(start, tmp_path, None, 3, minutes)
        assert state.is_over() == (expected and bool(losses))


def test_multi30k_rates_rise_and_fall(multi30k):
    def rates(name, *updates):
        schedule = multi30k.RECIPES[name].optimizer(100)._learning_rate
        return [float(schedule(update)) for update in updates]

    # 8,000 updates of two batches, 200 batches an epoch.
    assert multi30k.RECIPES["published"].num_epochs(200) == 80
    np.testing.assert_allclose(
        rates("published", 1000, 2000, 8000), [2.5e-3, 5e-3, 2.5e-3]
    )
    # 8,000 of a batch, 100 batches an epoch.
    assert multi30k.RECIPES["hour"].num_epochs(100) == 80
    np.testing.assert_allclose(
        rates("hour", 250, 500, 4250, 8000),  # of the matrices
        [5e-3, 1e-2, 5e-3, 0],
        atol=1e-9,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "recipe", "minutes"),
    [("segmented", "published", 60.0), ("raw", "hour", None)],
)
def test_multi30k_trains_and_scores(
    multi30k, quickstart, tmp_path, monkeypatch, capsys, case, recipe, minutes
):
    whole = multi30k.RECIPES[recipe]
    most_updates = 8 // whole.batches_per_update
    short = dataclasses.replace(whole, most_updates=most_updates)
    monkeypatch.setitem(multi30k.RECIPES, recipe, short)
    monkeypatch.setattr(multi30k, "VOCABULARY_SIZE", 120)
    make_model = functools.partial(multi30k.make_model, num_layers=1)
    monkeypatch.setattr(multi30k, "make_model", make_model)
    pairs = quickstart.corpus.sentence_pairs(60, seed=1)
    arguments = [case, "--output", str(tmp_path / "out"), "--seed", "7"]
    arguments += ["--recipe", recipe]
    for name, count in {"train": 60, "validation": 60, "test": 2}.items():
        files = [tmp_path / f"{name}.{side}" for side in ("en", "de")]
        write_pairs(files, pairs[:count])
        arguments += [f"--{name}", *map(str, files)]
    if minutes:
        arguments += ["--minutes", str(minutes)]
    # Of a run that died before it wrote `results.json`.
    (tmp_path / "out" / "translator").mkdir(parents=True)
    half = "model-0123456789abcdef.safetensors"
    (tmp_path / "out" / "translator" / half).touch()
    with monkeypatch.context() as interrupted:
        progress = multi30k.progress.Progress
        interrupted.setattr(progress, "is_over", interrupt_in_fit)
        with pytest.raises(KeyboardInterrupt):
            multi30k.main(arguments)
    with pytest.raises(SystemExit):
        multi30k.main([*arguments, "--seed", "8"])
    assert "What goes on must be what was begun" in capsys.readouterr().err
    train = tmp_path / "train.en"
    text = train.read_text("utf-8")
    train.write_text(text.replace("e", "i"), "utf-8")
    with pytest.raises(SystemExit):
        multi30k.main(arguments)
    assert "What goes on must be what was begun" in capsys.readouterr().err
    train.write_text(text, "utf-8")
    multi30k.main(arguments)
    assert "Going on after epoch 1." in capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["epochs"] >= 2 and 1 <= results["updates"] <= most_updates
    assert 0 <= results["bleu"] <= 100
    tokenize = {"segmented": "tok:none", "raw": "case:mixed|eff:no|tok:13a"}
    assert tokenize[case] in results["signature"]
    assert results["settings"]["beam_width"] == 5
    assert results["settings"]["most_updates"] == most_updates
    assert results["arguments"]["seed"] == 7
    assert results["arguments"]["minutes"] == minutes
    written = (tmp_path / "out" / "translations.txt").read_text()
    assert written.count("\n") == 2
    model = keras.saving.load_model(tmp_path / "out" / "model.keras")
    assert model.count_params() == results["weights"]
    with pytest.raises(SystemExit):
        multi30k.main(arguments)


def interrupt_in_fit(progress):
    """In place of `is_over`: Ctrl-C once an epoch is written."""
    if progress.history:
        raise KeyboardInterrupt
    return False


def test_wmt14_keeps_clean_pairs(wmt14, tmp_path):
    kept = [("a b", "c"), ("a", "b c"), (" a\u2028b ", "c d")]
    bad = [("", "a"), ("a", " "), ("a b c", "d"), ("a", "b c d")]
    bad.append(("a " * 176, "b " * 176))
    files = [tmp_path / name for name in ("source", "target", "one", "other")]
    write_pairs(files[:2], [*bad, *kept])
    assert wmt14.clean(files[:2], files[2:]) == (8, 3)
    written = [path.read_bytes().decode().split("\n") for path in files[2:]]
    assert [*zip(*written, strict=True)] == [*kept, ("", "")]
    assert wmt14.clean(files[:2], files[2:], most_lines=6) == (6, 1)


def test_wmt14_refuses_files_that_drifted_apart(wmt14, tmp_path, capsys):
    files = [str(tmp_path / name) for name in ("source", "target")]
    for path, text in zip(files, ("a\nb\n", "a\n"), strict=True):
        pathlib.Path(path).write_text(text)
    arguments = ["base", "--output", str(tmp_path / "out"), "--train", *files]
    arguments += ["--validation", *files, "--test", *files]
    with pytest.raises(SystemExit) as stopped:
        wmt14.main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "the same number of lines" in error and error.count("\n") == 1


def test_wmt14_goes_on_with_the_same_text_only(
    wmt14, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(wmt14, "command", lambda *a: "BLEU 0\n")
    files = [tmp_path / "en", tmp_path / "de"]
    write_pairs(files, [("a b", "c d")] * 3)
    names = [str(path) for path in files]
    arguments = ["base", "--output", str(tmp_path / "out"), "--train", *names]
    arguments += ["--validation", *names, "--test", *names]
    for _ in range(2):
        wmt14.main(arguments)
        assert "3 of 3 pairs" in capsys.readouterr().err
    write_pairs(files, [("a b", "c d")] * 4)
    with pytest.raises(SystemExit) as stopped:
        wmt14.main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "`--train` must be the text that" in error
    assert error.count("\n") == 1


@pytest.fixture
def commands(wmt14, monkeypatch):
    """The commands of the example, which it then does not run."""
    commands = []
    monkeypatch.setattr(wmt14, "command", lambda *a: commands.append(a))
    return commands


def wmt14_options(**options):
    defaults = {
        "size": "big",
        "dry_run": False,
        "accumulate": 1,
        "validation": ["v.en", "v.de"],
        "dtype": "mixed_bfloat16",
        "seed": 1,
        "distribute": None,
    }
    return types.SimpleNamespace(**{**defaults, **options})


def test_wmt14_trains_for_the_updates_of_the_paper(wmt14, tmp_path, commands):
    options = wmt14_options(accumulate=4)
    for _ in range(2):
        wmt14.train(tmp_path, ["t.en", "t.de"], options)
    command, again = commands
    assert command == again  # which goes on
    settings = dict(itertools.pairwise(command))
    assert settings["--updates"] == 300_000
    assert 300_000 % settings["--updates-per-epoch"] == 0
    assert settings["--tokens-per-batch"] == 6_250
    assert settings["--average-last"] == 20
    assert settings["--preset"] == "big"
    assert "--distribute" not in settings


def test_wmt14_hands_on_what_to_train_on(wmt14, tmp_path, commands):
    options = wmt14_options(distribute="mirrored")
    wmt14.train(tmp_path, ["t.en", "t.de"], options)
    [command] = commands
    assert command[command.index("--distribute") + 1] == "mirrored"


# Stands for `keras-transformer`: is slow to save all, as training may be.
SLOW_TO_STOP = """
import signal, sys, time


def stop(number, frame):
    time.sleep(1)  # longer than `subprocess.run` would wait after Ctrl-C
    print("saved", flush=True)
    sys.exit(130)


for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, stop)
print("trains", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_wmt14_waits_until_training_that_is_stopped_has_saved(
    wmt14, tmp_path, number
):
    package = tmp_path / "keras_transformer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SLOW_TO_STOP)
    files = [str(tmp_path / side) for side in ("en", "de")]
    write_pairs([*map(pathlib.Path, files)], [("a b", "c d")])
    arguments = ["base", "--output", str(tmp_path / "out")]
    for name in ("train", "validation", "test"):
        arguments += [f"--{name}", *files]
    process = subprocess.Popen(
        [sys.executable, wmt14.__file__, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as in a terminal of its own
    )
    try:
        assert process.stdout.readline() == "trains\n"
        time.sleep(0.5)  # until it waits
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, output) == (130, "saved\n")


@pytest.mark.slow
def test_wmt14_dry_run_takes_every_step(wmt14, quickstart, tmp_path, capsys):
    pairs = quickstart.corpus.sentence_pairs(510, seed=1)
    files = [str(tmp_path / side) for side in ("en", "de")]
    write_pairs([*map(pathlib.Path, files)], pairs)
    few = [f"{path}.few" for path in files]
    write_pairs([*map(pathlib.Path, few)], pairs[:20])
    arguments = ["base", "--output", str(tmp_path / "out"), "--dry-run"]
    for name, pair in {"train": files, "validation": few, "test": few}.items():
        arguments += [f"--{name}", *pair]
    wmt14.main(arguments)
    scores = (tmp_path / "out" / "dry-run" / "scores.txt").read_text()
    assert scores.startswith("BLEU ") and "tok:13a" in scores
    printed = capsys.readouterr()
    assert printed.out == scores
    assert "of 500 pairs" in printed.err

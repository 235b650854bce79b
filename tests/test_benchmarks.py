"""The benchmarks run, on sizes that measure nothing."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_transformer as kt

SCRIPT = pathlib.Path(__file__).parents[1] / "benchmarks" / "decoding.py"
CASE = "--sizes test --batch 2 --search beam2 --length 3 --runs 1".split()
HAS_CTRANSLATE2 = importlib.util.find_spec("ctranslate2") is not None
PNG = b"\x89PNG"


def benchmark(*arguments, **environment):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_measures_engines_and_writes_table_raw_times_and_plot(tmp_path):
    process = benchmark("-o", tmp_path, *CASE, "--engines", "graph,ct2-float32")
    assert process.returncode == 0, process.stderr[-3000:]

    results = json.loads((tmp_path / "decoding.json").read_text("utf-8"))
    [case] = results["cases"]
    assert case["search"] == "beam2"
    assert case["batch"] == 2
    assert case["floor"]["floor_ms"] > 0
    assert results["machine"]["cores"] >= 1
    assert results["versions"]["keras"] == keras.__version__
    assert len(case["engines"]["graph"]["seconds"]) == 1
    if HAS_CTRANSLATE2:
        assert case["engines"]["ct2-float32"]["same"] == 1

    table = (tmp_path / "decoding.md").read_text("utf-8")
    assert "| test | beam2 | 2 | 3 |" in table
    assert "ours, graph" in table
    assert (tmp_path / "decoding.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "huge"], "`--sizes` must be of test, tiny, base."),
        (["--batch", "0"], "`--batch` must be whole numbers of at least 1"),
        (["--length", "x"], "`--length` must be whole numbers of at least 1"),
        (["--search", "beam1"], "`--search` must be greedy, or beam"),
        (["--engines", "none"], "`--engines` must be of graph, xla"),
        (["--engines", ""], "`--engines` must not be empty."),
        (["--runs", "0"], "Invalid value for '--runs'"),
        (["--text", "folder"], "Give `--text` and `--source` together"),
        (
            ["--text", "folder", "--source", "file", "--step-plot"],
            "Give `--text` or `--step-plot`, not both.",
        ),
        (["--text", "folder", "--source", "file"], "No such file"),
        (["-o", SCRIPT], "must be a folder."),
        (["-o", SCRIPT.parent], "is not empty, and nothing in it was touched"),
    ],
)
def test_a_bad_option_is_one_line(arguments, message, tmp_path):
    process = benchmark("-o", tmp_path, *arguments)
    assert process.returncode == 2
    [line] = process.stderr.splitlines()
    assert line.startswith("decoding.py: ")
    assert message in line
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_an_engine_that_fails_does_not_stop_the_others(tmp_path):
    broken = tmp_path / "broken"
    for name in ("torch", "transformers"):
        (broken / name).mkdir(parents=True)
        (broken / name / "__init__.py").write_text(
            "raise ImportError('broken')"
        )
    output = tmp_path / "output"
    process = benchmark(
        "-o", output, *CASE, "--engines", "graph,marian", PYTHONPATH=str(broken)
    )
    assert process.returncode == 1
    assert "MarianMT (PyTorch) failed, see log.txt: broken" in process.stderr
    assert "ImportError: broken" in (output / "log.txt").read_text("utf-8")
    [case] = json.loads((output / "decoding.json").read_text())["cases"]
    assert list(case["engines"]) == ["graph"]
    table = (output / "decoding.md").read_text("utf-8")
    assert "left out: MarianMT (PyTorch), failed" in table
    assert (output / "decoding.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_measures_text_to_text(tmp_path):
    lines = ["the cat sees the dog", "the dog sees the cat"] * 10
    tokenizer = kt.Tokenizer.train(lines, vocabulary_size=16, verbose=0)
    model = kt.Transformer(
        tokenizer.vocabulary_size,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
    )
    kt.Translator(model, tokenizer).save(tmp_path / "translator")
    source = tmp_path / "source.txt"
    source.write_text("\n".join([*lines[:2], "", "a"]), "utf-8")
    output = tmp_path / "output"
    process = benchmark(
        *["-o", output, "--text", tmp_path / "translator"],
        *["--source", source, "--search", "greedy", "--runs", 1],
    )
    assert process.returncode == 0, process.stderr[-3000:]
    results = json.loads((output / "text.json").read_text("utf-8"))
    assert results["num_sentences"] == 3
    [case] = results["cases"]
    for name in ("translator", "translator-xla", "saved-model"):
        measured = case["engines"][name]
        assert measured["same"] == 1
        assert measured["peak_bytes"][0] > 2**20
        assert measured["seconds"][0] < measured["first_result_seconds"][0]
    table = (output / "text.md").read_text("utf-8")
    assert "| greedy | SavedModel |" in table
    assert (output / "text.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_measures_steps_at_every_position(tmp_path):
    process = benchmark(
        *["-o", tmp_path, "--step-plot", "--sizes", "test", "--runs", 2]
    )
    assert process.returncode == 0, process.stderr[-3000:]
    results = json.loads((tmp_path / "steps.json").read_text("utf-8"))
    for curve in results["curves"]:
        assert curve["positions"] == [50 + 100 * n for n in range(10)]
        assert [len(row) for row in curve["ms_per_step"]] == [10, 10]
    assert len(results["curves"]) == 2
    assert (tmp_path / "steps.png").read_bytes().startswith(PNG)

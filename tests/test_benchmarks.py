"""The benchmarks run, on sizes that measure nothing."""

import importlib
import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import keras_transformer as kt

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"
SCRIPT = BENCHMARKS / "decoding.py"
TRAINING = BENCHMARKS / "training.py"
AGREEMENT = BENCHMARKS / "agreement.py"
CASE = "--sizes test --batch 2 --search beam2 --length 3 --runs 1".split()
HAS_CTRANSLATE2 = importlib.util.find_spec("ctranslate2") is not None
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def modules():
    """Imports a file of the folder by its name, as its commands do."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def refused(modules, monkeypatch, capsys):
    """Types a command in this process that ends with one line, and gives it."""

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            modules("command").run(modules(script.stem).app)
        assert ended.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{script.name}: ")
        return line

    return run


def benchmark(*arguments, script=SCRIPT, **environment):
    return subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_litert_workers_share_a_batch(tmp_path, run_program):
    run_program("share_a_batch", tmp_path, PYTHONPATH=str(BENCHMARKS))


def test_names_the_fastest_engine_and_its_ratios(modules):
    cell = modules("report").fastest_cell
    engines = {
        "slow": {"seconds": [2.0, 2.0, 4.0]},
        "fast": {"seconds": [1.0, 0.5, 1.0]},
        "other": {"seconds": [2.0, 2.0, 2.0]},
    }
    titles = {"slow": "Slow", "fast": "Fast", "absent": "Absent"}
    names = ["slow", "fast", "absent"]
    assert cell(engines, names, "other", titles) == "Fast 2.00 (2.00–4.00)"
    assert cell(engines, ["slow"], "other", titles) == "Slow 1.00 (0.500–1.00)"
    assert cell(engines, names, "absent", titles) == ""


@pytest.mark.slow
def test_measures_engines_and_goes_on_without_one_that_fails(tmp_path):
    broken = tmp_path / "broken"
    for name in ("torch", "transformers"):
        (broken / name).mkdir(parents=True)
        (broken / name / "__init__.py").write_text(
            "raise ImportError('broken')"
        )
    output = tmp_path / "output"
    process = benchmark(
        *["-o", output, *CASE, "--engines", "graph,ct2-float32,marian"],
        PYTHONPATH=str(broken),
    )
    assert process.returncode == 1
    assert "MarianMT (PyTorch) failed, see log.txt: broken" in process.stderr
    assert "ImportError: broken" in (output / "log.txt").read_text("utf-8")

    results = json.loads((output / "decoding.json").read_text("utf-8"))
    [case] = results["cases"]
    assert "marian" not in case["engines"]
    assert case["search"] == "beam2"
    assert case["batch"] == 2
    assert case["floor"]["floor_ms"] > 0
    assert results["machine"]["cores"] >= 1
    assert results["versions"]["keras"] == keras.__version__
    assert len(case["engines"]["graph"]["seconds"]) == 1
    if HAS_CTRANSLATE2:
        assert case["engines"]["ct2-float32"]["same"] == 1

    table = (output / "decoding.md").read_text("utf-8")
    assert "| test | beam2 | 2 | 3 |" in table
    assert "ours, graph" in table
    assert ("## Ours beside each of the others" in table) == HAS_CTRANSLATE2
    assert "left out: MarianMT (PyTorch), failed" in table
    assert (output / "decoding.png").read_bytes().startswith(PNG)


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
        (["--text", "folder", "--source", "file"], "No translator in folder."),
        (
            ["--text", "folder", "--source", "file", "--batch", "1"],
            "`--batch` does nothing with `--text`; leave it out.",
        ),
        (["--step-plot", "--search", "greedy"], "`--search` does nothing with"),
        (["-o", SCRIPT], "must be a folder."),
        (["-o", SCRIPT.parent], "is not empty, and nothing in it was touched"),
    ],
)
def test_a_bad_option_is_one_line(refused, arguments, message, tmp_path):
    assert message in refused(SCRIPT, "-o", tmp_path, *arguments)
    assert not any(tmp_path.iterdir())


def test_a_missing_file_is_one_line(tmp_path):
    (tmp_path / "translator.json").touch()
    output = tmp_path / "output"
    process = benchmark(
        *["-o", output, "--text", tmp_path, "--source", tmp_path / "missing"]
    )
    assert process.returncode == 2
    assert process.stderr == f"decoding.py: No such file: {tmp_path}/missing.\n"
    assert not output.exists()


def test_help_names_every_engine(modules):
    process = benchmark("--help")
    assert process.returncode == 0, process.stderr
    words = " ".join(process.stdout.split())
    for name in ("engines", "text_case"):
        assert f": {', '.join(modules(name).ENGINES)} " in words


@pytest.fixture
def untrained(tmp_path):
    """Folder of a translator, and a file of lines."""
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
    return tmp_path / "translator", source


@pytest.mark.slow
def test_says_how_often_exports_agree(untrained):
    process = benchmark(*untrained, untrained[1], script=AGREEMENT)
    assert process.returncode == 0, process.stderr[-3000:]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in process.stdout.splitlines()
        if line.startswith("| ")
    ]
    _, *searches = [row[0] for row in rows if len(row) == 4]
    assert [name.split(",")[0] for name in searches] == [
        *("greedy", "beam 4", "beam 4", "beam 4", "beam 4")
    ]
    _, *weights = [row for row in rows if len(row) == 7]
    assert [row[0] for row in weights] == ["float32", "float16", "int8"]
    assert weights[0][2] == "100.0%"


@pytest.mark.slow
def test_measures_text_to_text(untrained, tmp_path):
    translator, source = untrained
    output = tmp_path / "output"
    engines = ["translator", "saved-model", "litert-int8"]
    if HAS_CTRANSLATE2:
        engines.append("ct2-int8")
    process = benchmark(
        *["-o", output, "--text", translator],
        *["--source", source, "--search", "greedy", "--runs", 1],
        *["--engines", ",".join(engines)],
    )
    assert process.returncode == 0, process.stderr[-3000:]
    results = json.loads((output / "text.json").read_text("utf-8"))
    assert results["num_sentences"] == 3
    [case] = results["cases"]
    for name in engines:
        measured = case["engines"][name]
        assert "int8" in name or measured["same"] == 1
        assert measured["peak_bytes"][0] > 2**20
        assert measured["seconds"][0] < measured["first_result_seconds"][0]
    table = (output / "text.md").read_text("utf-8")
    assert "| greedy | SavedModel |" in table
    assert (output / "text.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_measures_steps_at_every_position(modules, tmp_path):
    process = benchmark(
        *["-o", tmp_path, "--step-plot", "--sizes", "test", "--runs", 2]
    )
    assert process.returncode == 0, process.stderr[-3000:]
    results = json.loads((tmp_path / "steps.json").read_text("utf-8"))
    for curve in results["curves"]:
        assert curve["positions"] == [50 + 100 * n for n in range(10)]
        assert [len(row) for row in curve["ms_per_step"]] == [10, 10]
    assert len(results["curves"]) == 2
    table = (tmp_path / "steps.md").read_text("utf-8").splitlines()
    median = np.median([row[9] for row in curve["ms_per_step"]])
    median = modules("report").number(median)
    assert table[-1].startswith(f"| test | XLA | 950 | {median} (")
    assert (tmp_path / "steps.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(("measured", "ms"), [(5e8, 3.0), (2e9, 1.5)])
def test_floor_reads_no_slower_than_memory_did(
    modules, monkeypatch, measured, ms
):
    machine = modules("machine")
    monkeypatch.setattr(machine, "bandwidth", lambda num_bytes: measured)
    sizes = {"num_layers": 0, "hidden_dim": 500, "intermediate_dim": 1}
    floor = machine.floor(
        sizes | {"vocabulary_size": 1500},  # 3 MB
        modules("cases").Case("test", "greedy", batch=1, length=8),
        {"bytes_per_second": 1e9, "float32_per_second": 1e12},
    )
    assert floor["floor_ms"] == pytest.approx(ms)


def test_the_first_call_of_a_measurement_may_compile(modules, monkeypatch):
    machine = modules("machine")
    monkeypatch.setattr(machine, "PROBE_SECONDS", 0.01)
    seconds = iter([0.2])
    fastest = machine._best_seconds(lambda: time.sleep(next(seconds, 0.0)))
    assert fastest < 0.1


def test_counts_the_products_of_a_training_step(modules):
    sizes = {"num_layers": 7, "hidden_dim": 33, "intermediate_dim": 17}
    batch, target, source, vocabulary_size = 2, 3, 5, 13
    # Rows, terms and columns of each product.
    source_layer = 4 * (source * 33 * 33) + 2 * (source * 33 * 17)
    source_layer += 2 * (source * source * 33)
    target_layer = 4 * (target * 33 * 33) + 2 * (target * 33 * 17)
    target_layer += 2 * ((1 + 2 + 3) * 33)
    across = 2 * (target * 33 * 33) + 2 * (source * 33 * 33)
    across += 2 * (target * source * 33)
    forward = 7 * (source_layer + target_layer + across)
    forward += target * 33 * vocabulary_size
    # Each a multiplication and a sum, once forward and twice backward.
    assert modules("training_case").flops_of_step(
        sizes, vocabulary_size, batch, source, target
    ) == 6 * (batch * forward)


def test_counts_the_work_of_a_run(modules):
    training_case = modules("training_case")
    case = training_case.CASES["tensorflow"]["test"]
    case = training_case.prepare(case)
    inputs, labels, weights = training_case.synthetic_batch(case)
    assert inputs["source_ids"].shape == (8, 12)
    assert weights.all() and labels.all()
    np.testing.assert_array_equal(inputs["target_ids"][:, 1:], labels[:, :-1])
    one = training_case.work(case._replace(steps=1))
    three = training_case.work(case._replace(steps=3))
    assert one["target_tokens"] == 8 * 12
    assert three == {name: 3 * count for name, count in one.items()}


@pytest.mark.parametrize(
    "name",
    [
        "ours-float32",
        pytest.param("ours-bfloat16-xla", marks=pytest.mark.slow),
        pytest.param("ours-float32-rematerialized", marks=pytest.mark.slow),
    ],
)
def test_our_engine_trains(name, modules):
    trainers = modules("trainers")
    engine = trainers.ENGINES["tensorflow"][name]
    training_case = modules("training_case")
    case = training_case.prepare(training_case.CASES["tensorflow"]["test"])
    ready_seconds = trainers.start(engine, case._replace(steps=2))
    measured = trainers.measure()
    assert 0 < measured["seconds"] < ready_seconds
    assert measured["peak_bytes"] > 2**20


@pytest.mark.slow
def test_says_where_the_time_of_a_step_goes(modules):
    trainers = modules("trainers")
    training_case = modules("training_case")
    case = training_case.prepare(training_case.CASES["tensorflow"]["test"])
    engine = trainers.ENGINES["tensorflow"]["ours-float32"]
    milliseconds = trainers.profile(engine, case._replace(steps=2))
    assert any("MatMul" in name for name in milliseconds)
    assert list(milliseconds.values()) == sorted(
        milliseconds.values(), reverse=True
    )
    assert all(name.isidentifier() for name in milliseconds)


def test_reports_training(modules, tmp_path):
    def measured(*seconds):
        return {
            "seconds": list(seconds),
            "ready_seconds": [9.0] * len(seconds),
            "peak_bytes": [2**30] * len(seconds),
        }

    results = {
        "options": {
            "backend": "tensorflow",
            "engines": ["ours-bfloat16", "torch-float32", "marian-float32"],
            "runs": 3,
            "steps": 10,
            "batch": 24,
            "text": [],
        },
        "machine": modules("machine").describe(),
        "versions": {"python": "3.11"},
        "skipped": {"MarianMT (PyTorch), float32": "failed | badly"},
        "ceilings": {"float32_per_second": 2e11, "bfloat16_per_second": 4e11},
        "cases": [
            {
                "size": "base",
                "steps": 10,
                "target_tokens": 8_000,
                "flops": 10**12,
                "engines": {
                    "ours-bfloat16": measured(4.0, 5.0, 8.0),
                    "torch-float32": measured(20.0, 20.0, 20.0),
                },
                "profiles": {},
            }
        ],
    }
    modules("training_report").write(results, tmp_path)
    lines = (tmp_path / "training.md").read_text("utf-8").splitlines()
    assert lines[-5:] == [
        "| size | engine | target tokens/s | ratio | ms a step | floor, ms "
        "| share of peak | peak MiB | ready, s |",
        f"|{' --- |' * 9}",
        "| base | ours, bfloat16 | 1,600 (1,000–2,000) | 4.00 | 500 | 250 "
        "| 50% | 1,024 | 9.00 |",
        "| base | torch nn.Transformer, float32 | 400 (400–400) | 1.00 "
        "| 2,000 | 500 | 25% | 1,024 | 9.00 |",
        "| base | MarianMT (PyTorch), float32 | not measured: failed / badly "
        f"|{'  |' * 6}",
    ]
    results["cases"][0]["profiles"]["ours-bfloat16"] = {
        f"Operation{number}": 20.0 - number for number in range(20)
    }
    modules("training_report").write(results, tmp_path)
    profiled = (tmp_path / "training.md").read_text("utf-8").splitlines()
    assert profiled[: len(lines)] == lines
    assert "| floor | 250 |" in profiled
    assert "| Operation14 | 6.00 |" in profiled
    assert "| Operation15 | 5.00 |" not in profiled
    assert profiled[-1] == "| all others | 15.0 |"
    assert "- left out: MarianMT (PyTorch), float32, failed" in "\n".join(lines)
    assert json.loads((tmp_path / "training.json").read_text()) == results
    assert (tmp_path / "training.png").read_bytes().startswith(PNG)
    # What the README shows is what the command prints.
    readme = (BENCHMARKS / "README.md").read_text("utf-8")
    assert lines[-5] in readme


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "torch"], "`--backend` must be one of tensorflow, jax."),
        (["--sizes", "big"], "`--sizes` must be of test, tiny, base."),
        (["--engines", "ours"], "`--engines` must be of ours-float32, "),
        (
            ["--backend", "jax", "--engines", "ours-float32"],
            "`--engines` must be of ours-bfloat16-xla, ",
        ),
        (
            ["--profile", "--engines", "torch-float32"],
            "`--profile` is for random ids, and needs one of ours-float32, ",
        ),
        (["--steps", "0"], "Invalid value for '--steps'"),
        (["--text", "train.en"], "Option '--text' requires 2 arguments."),
        (["--text", "train.en", "train.de"], "No such file: train.en."),
        (["--text", __file__, __file__, "--steps", "1"], "`--steps` does noth"),
        (["--text", __file__, __file__, "--batch", "1"], "`--batch` does noth"),
    ],
)
def test_a_bad_option_of_training_is_one_line(
    refused, arguments, message, tmp_path
):
    assert message in refused(TRAINING, "-o", tmp_path, *arguments)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_measures_epochs_of_real_text(tmp_path):
    syllables = ["".join(pair) for pair in itertools.product("bdgklm", "aeiou")]
    words = ["".join(pair) for pair in itertools.product(syllables, repeat=2)]
    lines = [" ".join(words[i : i + 5]) for i in range(100)]
    files = [tmp_path / "source.txt", tmp_path / "target.txt"]
    for file in files:
        file.write_text("\n".join(lines), "utf-8")
    output = tmp_path / "output"
    process = benchmark(
        *["-o", output, "--sizes", "test", "--engines", "ours-float32"],
        *["--runs", 2, "--text", *files],
        script=TRAINING,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout == (output / "training.md").read_text("utf-8")
    assert "an epoch of source.txt and target.txt" in process.stdout
    results = json.loads((output / "training.json").read_text("utf-8"))
    [case] = results["cases"]
    tokenizer = kt.Tokenizer.load(output / "test.model")
    tokens = sum(len(ids) + 1 for ids in tokenizer.encode(lines))  # the end
    assert case["target_tokens"] == tokens
    assert case["steps"] > 1
    assert len(case["engines"]["ours-float32"]["seconds"]) == 2


@pytest.mark.slow
def test_measures_training_on_jax(tmp_path):
    process = benchmark(
        *["-o", tmp_path, "--backend", "jax", "--sizes", "test"],
        *["--runs", 2, "--steps", 2, "--engines", "ours-bfloat16-xla"],
        *["--batch", 3],
        script=TRAINING,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert "| test | ours, bfloat16, XLA |" in process.stdout
    results = json.loads((tmp_path / "training.json").read_text("utf-8"))
    engine = results["cases"][0]["engines"]["ours-bfloat16-xla"]
    assert len(engine["ready_seconds"]) == 1  # one process
    assert len(engine["seconds"]) == len(engine["peak_bytes"]) == 2
    assert "2 steps of 3 sentences" in process.stdout

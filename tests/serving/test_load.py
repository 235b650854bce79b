"""The load test runs, and sees what is amiss."""

import json
import pathlib
import subprocess
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load_case():
    sys.path.insert(0, str(BENCHMARKS))
    import load_case

    yield load_case
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.slow
def test_threads_get_the_serial_answers(small, tmp_path):
    source = tmp_path / "source.txt"
    texts = ["the cat", "", "the dog sees the fox", "the hen 😀 " * 5]
    source.write_text("\n".join(texts), "utf-8")
    output = tmp_path / "load"
    process = subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "load.py", small.folder, source),
            # Seconds enough for a machine whose other core is busy.
            *("-o", output, "--threads", "2", "--seconds", "10"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    engines = json.loads((output / "load.json").read_text("utf-8"))["engines"]
    assert list(engines) == ["saved-model", "litert"]  # exported first
    for measured in engines.values():
        assert measured["calls"] > 2
        assert measured["errors"] == []
        assert measured["different"] == 0
        assert measured["new_traces"] == measured["new_compilations"] == 0
        assert len(measured["samples"]) == 24
    # Memory of so short a run says nothing.
    flat = [measured["is_flat"] for measured in engines.values()]
    assert process.returncode == (0 if all(flat) else 1)
    table = (output / "load.md").read_text("utf-8")
    assert process.stdout == table
    assert table.count("| good |") == sum(flat)
    assert (output / "load.png").read_bytes().startswith(b"\x89PNG")


def test_an_export_is_measured_as_it_is(load_case, small, tmp_path):
    import load

    path = small.saved_model
    assert load._exports(path, tmp_path) == {"saved-model": path}
    path = tmp_path / "model.tflite"
    path.touch()
    assert load._exports(path, tmp_path) == {"litert": path}


def test_the_report_is_a_table_and_what_it_is_of(
    load_case, tmp_path, monkeypatch
):
    import load_report

    monkeypatch.setattr(load_report, "_draw", lambda *_: None)
    measured = {
        "samples": samples([2e9] * 12, [3] * 12),
        "calls": 1234,
        "different": 0,
        "errors": [],
    }
    measured |= load_case.judge(measured)
    options = {"threads": 8, "seconds": 60.0, "text": "test.en"}
    results = {"options": options, "engines": {"litert": measured}}
    load_report.write(results, tmp_path)
    *_, header, _, row = (tmp_path / "load.md").read_text("utf-8").splitlines()
    assert header.startswith("| export | calls | other answers |")
    assert (
        row == "| LiteRT | 1,234 | 0 | 0 | 2,000 MB | 2,000 MB | 0 | 0 | good |"
    )
    written = (tmp_path / "load.json").read_text("utf-8")
    assert json.loads(written) == results


def translate(texts):
    return [text.upper() for text in texts]


def test_other_answers_and_errors_are_counted(load_case):
    calls = []

    def wrong_later(texts):
        calls.append(texts)
        return ["wrong"] if len(calls) > 1 else translate(texts)

    def broken(texts):
        raise RuntimeError("broken")

    tests = load_case.Load([["a"]])
    tests.run([translate], 0.1, dict)
    assert tests.num_calls > 1
    assert tests.count_different(translate) == 0
    assert tests.count_different(wrong_later) == 0
    assert tests.count_different(wrong_later) == 1

    tests = load_case.Load([["a"]])
    tests.run([wrong_later, broken], 0.1, dict)
    assert tests.errors == ["RuntimeError: broken"]
    calls.clear()
    tests = load_case.Load([["a"]])
    tests.run([wrong_later], 0.1, dict)
    assert tests.num_different > 0


def samples(memory, compilations):
    return [
        {"bytes": size, "traces": 7, "compilations": number}
        for size, number in zip(memory, compilations, strict=True)
    ]


@pytest.mark.parametrize(
    ("memory", "compilations", "is_flat", "new"),
    [
        ([9e9] * 2 + [1e9] * 10, [0] * 12, True, 0),  # warm-up is free
        ([0] * 2 + [1e9] * 9 + [1.049e9], [0, 1] + [4] * 10, True, 0),
        ([0] * 2 + [1e9] * 9 + [1.051e9], [0] * 11 + [2], False, 2),
        ([0] * 2 + [1e7] * 9 + [2.9e7], [3] * 12, True, 0),
        ([0] * 2 + [1e7] * 9 + [3.1e7], [3] * 12, False, 0),
    ],
)
def test_memory_and_compilations_are_judged(
    load_case, memory, compilations, is_flat, new
):
    measured = {
        "samples": samples(memory, compilations),
        "calls": 1,
        "different": 0,
        "errors": [],
    }
    measured |= load_case.judge(measured)
    assert measured["is_flat"] == is_flat
    assert measured["new_compilations"] == new
    assert measured["new_traces"] == 0
    assert load_case.is_good(measured) == (is_flat and not new)
    assert not load_case.is_good({**measured, "different": 1})
    assert not load_case.is_good({**measured, "calls": 0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing", __file__], "No such file or folder: missing."),
        ([BENCHMARKS, "missing"], "No such file"),
        ([BENCHMARKS, "empty"], "Text must not be empty."),
        ([BENCHMARKS, __file__, "--threads", "0"], "Invalid value for"),
        ([BENCHMARKS, __file__, "-o", BENCHMARKS], "is not empty, and nothing"),
    ],
)
def test_a_bad_option_is_one_line(
    load_case, arguments, message, tmp_path, monkeypatch, capsys
):
    import command
    import load

    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    arguments = ["load.py", "-o", tmp_path / "load", *arguments]
    monkeypatch.setattr(sys, "argv", [*map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        command.run(load.app)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("load.py: ")
    assert message in line

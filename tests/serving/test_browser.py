"""The page says in a browser what a LiteRT file says elsewhere."""

import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import keras_transformer as kt

FOLDER = pathlib.Path(__file__).parents[2] / "export" / "browser"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
TEXTS = [
    "the cat sees the dog",
    "",
    "fox",
    " \t ",
    "the hen 😀 sees 👩\u200d👧 the fox",
    "مرحبا بالعالم the cat",
    "ﬁne cafe\u0301 \u2028 </s> <pad>",
]
CASES = {
    "greedy": {},
    "beam": {"search": kt.BeamSearch(width=3, num_hypotheses=2)},
    "two vocabularies": {"model_type": "bpe", "is_shared": False},
}

# A conversion leaves memory behind: it runs in a process of its own.
EXPORT = """
import sys
import keras_transformer as kt
translator = kt.Translator.load(sys.argv[1])
translator.export_litert(sys.argv[2], quantization="int8", source_length=48)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (BROWSER and shutil.which("npm")),
        reason="needs npm, and Chromium as `chromium` or `google-chrome`",
    ),
]


def finished(*command, **options):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, **options
    )


def run(*command, **options):
    process = finished(*command, **options)
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A folder with the built page."""
    folder = tmp_path_factory.mktemp("page") / "browser"
    shutil.copytree(
        FOLDER,
        folder,
        ignore=shutil.ignore_patterns("node_modules", "dist"),
    )
    run("npm", "install", "--no-audit", "--no-fund", cwd=folder)
    run("npm", "run", "build", cwd=folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_page_translates_as_the_file_elsewhere(
    page, make_small, tmp_path, name
):
    make_small(**CASES[name]).save(tmp_path / "translator")
    path = tmp_path / "model.tflite"
    run(sys.executable, "-c", EXPORT, tmp_path / "translator", path)
    translate = kt.LiteRTTranslator(path)
    expected, scores = translate(TEXTS, return_scores=True)
    command = ("node", page / "translate.js", BROWSER, path)
    output = run(*command, "--scores", input=as_lines(TEXTS))
    found = [line.split("\t") for line in output.split("\n")[:-1]]
    assert [text for _, text in found] == [*np.ravel(expected)]
    found_scores = [float(score) for score, _ in found]
    np.testing.assert_allclose(found_scores, np.ravel(scores), atol=1e-2)
    process = finished(*command, input="fox\n" + "the cat " * 20)
    assert process.returncode == 1
    assert process.stdout == as_lines(np.ravel(expected[TEXTS.index("fox")]))
    message = "Line 2: A text must not be longer than 48 tokens. Received: "
    assert process.stderr.startswith(message)
    assert process.stderr.count("\n") == 1


def test_what_is_no_exported_file_is_named(page, tmp_path):
    path = tmp_path / "model.tflite"
    command = ("node", page / "translate.js", BROWSER, path)
    process = finished(*command, input="fox\n")
    assert process.returncode == 1
    assert process.stderr.startswith("There is no model at http")
    path.write_bytes(b"no model")
    process = finished(*command, input="fox\n")
    assert process.returncode == 1
    message = "The model must be a LiteRT file that `keras-transformer export"
    assert process.stderr.startswith(message)


def as_lines(texts):
    return "".join(f"{text}\n" for text in texts)

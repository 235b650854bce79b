"""The page says in a browser what a LiteRT file says elsewhere."""

import pathlib
import shutil
import subprocess
import sys

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
SEARCHES = {
    "greedy": kt.GreedySearch(),
    "beam": kt.BeamSearch(width=3, num_hypotheses=2),
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


def run(*command, folder=None, stdin=None):
    process = subprocess.run(
        command,
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
    )
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
    run("npm", "install", "--no-audit", "--no-fund", folder=folder)
    run("npm", "run", "build", folder=folder)
    return folder


@pytest.mark.parametrize("name", SEARCHES)
def test_page_translates_as_the_file_elsewhere(
    page, make_small, tmp_path, name
):
    make_small(search=SEARCHES[name]).save(tmp_path / "translator")
    path = tmp_path / "model.tflite"
    run(sys.executable, "-c", EXPORT, tmp_path / "translator", path)
    expected = kt.LiteRTTranslator(path)(TEXTS)
    if name == "beam":
        expected = [hypotheses[0] for hypotheses in expected]
    found = run(
        *("node", page / "translate.js", BROWSER, path), stdin=as_lines(TEXTS)
    )
    assert found == as_lines(expected)


def as_lines(texts):
    return "".join(f"{text}\n" for text in texts)

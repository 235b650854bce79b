"""Python snippets of the documents run, and links of all of them lead on."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import keras_transformer as kt

ROOT = pathlib.Path(__file__).parents[1]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# In this order, as those in docs/ use what the README makes.
WITH_SNIPPETS = (
    "README.md",
    "docs/translating.md",
    "docs/training.md",
    "docs/extending.md",
    "docs/serving.md",
)
DOCUMENTS = [
    path
    for folder in ("", "benchmarks/", "docs/", "examples/**/", "export/**/")
    for path in sorted(ROOT.glob(f"{folder}*.md"))
    if "node_modules" not in path.parts
]


@pytest.mark.slow
def test_snippets_do_what_the_documents_say(tmp_path):
    snippets = ["import keras; keras.utils.set_random_seed(1)"]
    for name in WITH_SNIPPETS:
        found = SNIPPET.findall((ROOT / name).read_text("utf-8"))
        assert len(found) >= 2
        snippets += found
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(snippets)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    # By the model, of ids and with a beginning too, its int8 files and the one
    # of fixed shapes; of a beam; by CTranslate2; three of three the same.
    lines = result.stdout.splitlines()
    assert lines.count("['fünf vier drei zwei eins']") == 6
    assert "\n[['fünf vier drei zwei eins', " in result.stdout
    assert "\nfünf vier drei zwei eins\n" in result.stdout
    assert "\n3 True " in result.stdout


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_reference_has_every_public_name(tmp_path):
    python = pathlib.Path(sys.executable)
    made = subprocess.run(
        [
            *("make", "-C", ROOT, "-o", ".venv/installed", "reference"),
            *(f"BIN={python.parent}", f"REFERENCE={tmp_path}"),
        ],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "keras_transformer.html").read_text("utf-8")
    for name in kt.__all__:
        assert f'<section id="{name}">' in page
    for member in ("Transformer.generate", "BeamSearch.__init__"):
        assert f'<div id="{member}"' in page
    assert f"open {tmp_path}/keras_transformer.html" in made.stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_links_lead_to_files_and_headings(path):
    text = path.read_text("utf-8")
    links = re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text)
    for target, heading in links:
        file = path.parent / target if target else path
        assert file.exists(), target
        if heading:
            assert heading in headings(file.read_text("utf-8")), heading
    for target in re.findall(r'<img src="([^"]+)"', text):
        assert (path.parent / target).exists(), target


def headings(text):
    """The names by which GitHub links to the headings of a document."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]

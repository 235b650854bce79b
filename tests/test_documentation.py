"""The README's Python snippets run, and links of all documents lead on."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCUMENTS = [
    path
    for path in sorted(ROOT.glob("**/*.md"))
    if ".venv" not in path.relative_to(ROOT).parts
]


@pytest.mark.slow
def test_snippets_of_the_readme_do_what_it_says(tmp_path):
    seed = "import keras; keras.utils.set_random_seed(1)"
    snippets = SNIPPET.findall((ROOT / "README.md").read_text("utf-8"))
    assert len(snippets) >= 3
    result = subprocess.run(
        [sys.executable, "-c", "\n".join([seed, *snippets])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    # By the model, and by its int8 file; of a beam; three of three the same.
    assert result.stdout.count("\n['fünf vier drei zwei eins']\n") == 2
    assert "\n[['fünf vier drei zwei eins', " in result.stdout
    assert "\n3 True " in result.stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_links_to_files_exist(path):
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text("utf-8")):
        assert (path.parent / target).exists(), target

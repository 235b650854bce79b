"""What `import keras_transformer` brings, and when."""

import ast
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import cli
from keras_transformer.cli import commands
from keras_transformer.system import extras

PACKAGE = pathlib.Path(kt.__file__).parent


def python(code, *arguments, **environment):
    """Runs code in a process of its own and gives what it printed."""
    process = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout.strip()


def test_every_public_name_is_there():
    for name in kt.__all__:
        assert getattr(kt, name) is not None


def test_editors_find_the_public_names_where_they_are():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text("utf-8"))
    found = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name  # else it is not public
    }
    assert found.pop("__version__") == "keras_transformer.version"
    homes = {**kt._CORE, **kt._OTHERS, **kt._LIGHT}
    assert found == {
        name: f"keras_transformer.{home}" for name, home in homes.items()
    }
    assert (PACKAGE / "py.typed").exists()


def test_public_names_are_sorted_and_unique():
    _, *names = kt.__all__
    assert names == sorted(set(names))


def test_star_import_gives_the_public_names():
    names = {}
    exec("from keras_transformer import *", names)
    assert names["Transformer"] is kt.Transformer
    assert "importlib" not in names


def test_the_readme_lists_every_public_name():
    readme = (PACKAGE.parent / "README.md").read_text("utf-8")
    _, section = readme.split("\n## All names\n")
    rows = section.split("\n## ")[0].splitlines()
    first_cells = " ".join(row.split("|")[1] for row in rows if "|" in row)
    names = re.findall(r"`(\w+)`", first_cells)
    assert sorted(set(names) - {"keras_transformer"}) == sorted(
        name for name in kt.__all__ if not name.startswith("_")
    )


ABOVE_THE_MODEL = {"translator", "serving", "cli", "training_run", "marian"}
MODELS = {"transformer", "encoder", "decoder", "decoding", "generation"}


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("search", {"text", "training", *MODELS, *ABOVE_THE_MODEL}),
        ("text", {"search", "training", *MODELS, *ABOVE_THE_MODEL}),
        ("training", {"search", "text", *MODELS, *ABOVE_THE_MODEL}),
        ("tensorflow_only", {"search", "text", *MODELS, *ABOVE_THE_MODEL}),
        ("tensors", {"search", "text", "layer", *MODELS, *ABOVE_THE_MODEL}),
        ("system", {"search", "text", "tensors", *MODELS, *ABOVE_THE_MODEL}),
        ("serving", {"cli", "training_run", "marian"}),
        ("marian", {"cli", "training_run", "serving"}),
        ("training_run", {"cli", "serving", "marian"}),
    ],
)
def test_imports_point_one_way(package, others):
    files = [*(PACKAGE / package).glob("*.py")]
    assert len(files) > 2
    pattern = re.compile(
        r"^\s*(?:from|import) keras_transformer(?:\.| import )(\w+)",
        re.MULTILINE,
    )
    imported = {
        name
        for file in files
        for name in pattern.findall(file.read_text("utf-8"))
    }
    assert not imported & others


def test_unknown_name_is_an_attribute_error():
    message = "module 'keras_transformer' has no attribute 'Transformers'"
    with pytest.raises(AttributeError, match=message):
        _ = kt.Transformers
    assert not hasattr(kt, "_nothing")


def test_a_missing_part_of_the_library_is_no_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_transformer.translator", None)
    monkeypatch.delitem(vars(kt), "Translator", raising=False)
    with pytest.raises(ModuleNotFoundError, match="keras_transformer.translat"):
        _ = kt.Translator


def test_import_waits_with_keras_and_tensorflow():
    assert (
        python(
            "import sys, keras_transformer as kt;"
            "kt.__all__, kt.__version__, dir(kt);"
            "heavy = {'keras', 'tensorflow', 'jax', 'numpy', 'sentencepiece'};"
            "print(sorted(heavy & set(sys.modules)))"
        )
        == "[]"
    )


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("translate absent text", "No such folder: 'absent'."),
        ("translate . --input absent", "No such file: 'absent'."),
        ("verify absent . --input .", "No such file: '.' is a folder."),
        ("verify absent .", "No such folder: 'absent'."),
        ("export . a", "The folder must hold a translator."),
        ("train absent b -o c", "No such file: 'absent'."),
    ],
)
def test_the_command_looks_for_its_files_first(typed, message, tmp_path):
    assert message in python(
        "import contextlib, os, sys\n"
        "from keras_transformer import cli\n"
        "os.chdir(sys.argv.pop(1))\n"
        "sys.stderr = sys.stdout\n"
        "with contextlib.suppress(SystemExit):\n"
        "    cli.main()\n"
        "assert 'keras' not in sys.modules",
        tmp_path,
        *typed.split(),
    )


@pytest.mark.parametrize(
    ("command", "missing", "backend", "is_jax_advised"),
    [
        ("translate", "tensorflow", None, True),
        ("train", "tensorflow", None, False),
        ("translate", "tensorflow", "jax", False),
        ("translate", "torch", "torch", False),
    ],
)
def test_the_command_says_what_brings_a_missing_backend(
    monkeypatch, capsys, command, missing, backend, is_jax_advised
):
    def fails():
        raise ModuleNotFoundError("No module", name=f"{missing}.part")

    monkeypatch.setattr(sys, "argv", ["keras-transformer", command])
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if backend:
        monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setattr(commands, "_run", fails)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    error = capsys.readouterr().err
    assert f"This needs {missing}, which is not installed. `pip inst" in error
    assert ("Or set KERAS_BACKEND=jax." in error) == is_jax_advised
    monkeypatch.undo()
    monkeypatch.setattr(commands, "_run", fails)
    if importlib.util.find_spec(missing):  # it is there, but broken
        with pytest.raises(SystemExit, match="2"):
            cli.main()
        assert capsys.readouterr().err == "keras-transformer: No module\n"


def test_the_command_answers_help_without_what_it_computes_with():
    assert (
        python(
            "import sys, keras_transformer.cli;"
            "heavy = {'keras', 'numpy', 'sacrebleu', 'sentencepiece'};"
            "print(sorted(heavy & set(sys.modules)))"
        )
        == "[]"
    )


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """A saved model, and what it gives for some ids."""
    model = kt.Transformer(
        13, num_layers=1, num_heads=1, hidden_dim=8, intermediate_dim=8
    )
    path = tmp_path_factory.mktemp("model") / "model.keras"
    model.save(path)
    ids = np.array([[4, 5, 3]])
    logits = model({"source_ids": ids, "target_ids": ids})
    return path, float(keras.ops.sum(logits))


LOAD = """
import sys
model = keras.saving.load_model(sys.argv[1])
ids = keras.ops.array([[4, 5, 3]])
print(float(keras.ops.sum(model({"source_ids": ids, "target_ids": ids}))))
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import keras_transformer; import keras",
        pytest.param(
            "import keras; import keras_transformer", marks=pytest.mark.slow
        ),
        pytest.param(
            "import keras_transformer.training; import keras",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["before keras", "after keras", "a part before keras"],
)
def test_keras_loads_a_model_wherever_the_package_is_imported(
    model_file, imports
):
    path, expected = model_file
    # Either backend does; this one is quicker to import.
    backend = "jax" if importlib.util.find_spec("jax") else "tensorflow"
    output = python(imports + LOAD, str(path), KERAS_BACKEND=backend)
    # Two backends add up in different orders.
    assert float(output) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_core_works_without_tensorflow(run_program):
    process = run_program("core_without_tensorflow", KERAS_BACKEND="jax")
    one, *errors = process.stdout.splitlines()
    assert one == "1"
    assert [line.split(" | ")[0] for line in errors] == [
        "BleuCallback",
        "CorpusScores",
        "LiteRTTranslator",
        "Tokenizer",
        "Translator",
        "corpus_scores",
        "translation_dataset",
        "verify_export",
    ]
    for line in errors:
        assert "which is not installed. `pip install " in line


def test_a_translator_works_without_tensorflow(run_program, tmp_path):
    process = run_program(
        "translate_without_tensorflow", tmp_path / "1", KERAS_BACKEND="jax"
    )
    *refused, translation = process.stdout.splitlines()
    assert translation
    for message, expected in zip(
        refused,
        (
            "A SavedModel can be exported with the TensorFlow backend only.",
            "A LiteRT file can be exported with the TensorFlow backend only.",
            "A tokenizer of tensors needs tensorflow, which is not installed.",
            "`log_dir` needs tensorflow, which is not installed.",
        ),
        strict=True,
    ):
        assert message.startswith(expected)


def test_missing_package_is_named(monkeypatch):
    for name in [*sys.modules]:
        parts = name.split(".")
        if parts[0] == "sentencepiece" or parts[:2] == [kt.__name__, "text"]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    monkeypatch.delitem(vars(kt), "Tokenizer", raising=False)
    message = (
        "`keras_transformer.Tokenizer` needs sentencepiece, which is not "
        "installed. `pip install .`, in a checkout of this library, installs "
        "it, or `pip install sentencepiece` that alone."
    )
    with pytest.raises(ImportError, match=message):
        _ = kt.Tokenizer


def test_without_keras_each_name_says_what_it_needs(tmp_path):
    output = python(
        "import sys\n"
        "sys.modules['keras'] = sys.modules['safetensors'] = None\n"
        "import keras_transformer as kt\n"
        "from keras_transformer import cli\n"
        "for name in kt.__all__:\n"
        "    try:\n"
        "        getattr(kt, name)\n"
        "    except ImportError as error:\n"
        "        print(name, error)\n"
        "sys.argv = ['keras-transformer', 'translate', sys.argv[1], 'a']\n"
        "sys.stderr = sys.stdout\n"
        "try:\n"
        "    cli.main()\n"
        "except SystemExit as end:\n"
        "    print(end.code)",
        str(tmp_path / "none"),
    )
    *lines, of_the_command, code = output.splitlines()
    light = {"__version__", *kt._LIGHT}
    assert [line.split()[0] for line in lines] == [
        name for name in kt.__all__ if name not in light
    ]
    for line in lines:
        name, _ = line.split(maxsplit=1)
        assert f" `keras_transformer.{name}` needs keras, which is not" in line
        assert line.endswith(
            "`pip install .`, in a checkout of this library, installs it."
        )
    assert "No such folder: " in of_the_command
    assert code == "2"


def test_missing_package_that_the_error_does_not_name():
    message = extras.not_installed("`log_dir`", None)
    assert message.startswith("`log_dir` needs a module, which is not install")

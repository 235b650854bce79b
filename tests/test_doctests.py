"""The examples in the docstrings outside of the core show what they say."""

import doctest
import importlib
import pathlib

import pytest
from core.test_doctests import MODULES as CORE

import keras_transformer
from keras_transformer import transformer

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
NAMES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text("utf-8")
]
OTHERS = [name for name in NAMES if name not in CORE]


def test_modules_are_found():
    assert "keras_transformer.translator" in OTHERS


@pytest.mark.parametrize("name", OTHERS)
def test_examples_of_module(name, monkeypatch):
    # Nothing that they show depends on the number of layers.
    tiny = {**transformer.PRESETS["tiny"], "num_layers": 1}
    monkeypatch.setitem(transformer.PRESETS, "tiny", tiny)
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted and not results.failed

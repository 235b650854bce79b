"""The examples in the docstrings of the core run and show what they say."""

import doctest
import importlib

import keras
import pytest

import keras_transformer

from .layers import PUBLIC


def core_modules():
    """Finds the modules of the public classes and all that these import."""
    found = set()
    waiting = {member.__module__ for member in PUBLIC.values()}
    while waiting:
        name = waiting.pop()
        found.add(name)
        members = vars(importlib.import_module(name)).values()
        origins = {str(getattr(member, "__module__", "")) for member in members}
        waiting |= {
            origin
            for origin in origins - found
            if origin.startswith("keras_transformer.")
        }
    return sorted(found)


# And those that work without tensorflow, which nothing in the core imports.
MODULES = [
    *core_modules(),
    "keras_transformer.batches",
    "keras_transformer.checkpoint",
]


def examples_of(thing):
    tests = doctest.DocTestFinder().find(thing, globs={})
    return [example for test in tests for example in test.examples]


def test_modules_of_the_core_are_found():
    last_names = {name.rpartition(".")[2] for name in MODULES}
    assert {"attention", "checks", "greedy", "masking", "loss"} <= last_names


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_module(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(
        importlib.import_module(name),
        extraglobs={"keras": keras, "keras_transformer": keras_transformer},
    )
    assert results.failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_class_has_an_example(name):
    assert examples_of(PUBLIC[name])

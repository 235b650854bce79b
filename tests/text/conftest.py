"""English and German sentences, and a vocabulary learned from them."""

import importlib.util
from pathlib import Path

import pytest

import keras_transformer as kt

CORPUS = Path(__file__).parents[2] / "examples" / "quickstart" / "corpus.py"


@pytest.fixture(scope="session")
def pairs():
    spec = importlib.util.spec_from_file_location("corpus", CORPUS)
    corpus = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(corpus)
    return corpus.sentence_pairs(500, seed=7)


@pytest.fixture(scope="session")
def english(pairs):
    return [source for source, _ in pairs]


@pytest.fixture(scope="session")
def german(pairs):
    return [target for _, target in pairs]


@pytest.fixture(scope="session")
def tokenizer(english, german):
    return kt.Tokenizer.train(english + german, vocabulary_size=300, verbose=0)

"""The client in C says what the translator says here."""

import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt

FOLDER = pathlib.Path(__file__).parents[2] / "export" / "c"
ENGLISH = ["the cat sees the dog", "the hen sees the fox", "the dog"] * 9
GERMAN = ["Katze sieht Hund", "Henne sieht Fuchs", "der Hund"] * 9
TEXTS = [
    "the cat sees the dog",
    "",
    "fox",
    " \t ",
    "the hen 😀 sees 👩\u200d👧 the fox",
    "مرحبا بالعالم the cat",
    "ﬁne cafe\u0301 \u2028 \x00 </s> <pad>",
    "the fox sees " * 100,
]
KINDS = ["unigram", "bpe"]  # split by operations of different libraries
# As in test_saved_model.py; the client prints four digits.
SCORE_TOLERANCE = {"rtol": 1e-4, "atol": 2e-4}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("cc") and shutil.which("make")),
        reason="needs a C compiler, as `cc`, and make",
    ),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    build = tmp_path_factory.mktemp("build")
    process = subprocess.run(
        [
            *("make", "-C", FOLDER, f"PYTHON={sys.executable}"),
            *(f"BUILD={build}", "CFLAGS=-O1 -Werror"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return build / "translate"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A translator and its exported folder, of each kind."""
    keras.utils.set_random_seed(2)
    folder = tmp_path_factory.mktemp("exported")
    found = {}
    for kind in KINDS:
        tokenizer = kt.Tokenizer.train(
            ENGLISH + GERMAN, vocabulary_size=31, model_type=kind, verbose=0
        )
        model = kt.Transformer(
            tokenizer.vocabulary_size,
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=32,
        )
        for variable in model.trainable_variables:
            if variable.ndim == 2:  # prefers some token clearly
                variable.assign(3 * variable.numpy())
        search = kt.GreedySearch()
        if kind == "bpe":
            search = kt.BeamSearch(width=3, num_hypotheses=2)
        translator = kt.Translator(model, tokenizer, search=search)
        translator.export_saved_model(folder / kind)
        found[kind] = (translator, folder / kind)
    return found


def run(program, *arguments, content=b""):
    return subprocess.run(
        [program, *map(str, arguments)],
        input=content,
        capture_output=True,
        timeout=120,
    )


def lines(texts):
    return "".join(f"{text}\n" for text in texts).encode()


def last_line(process):
    """What the program says; what TensorFlow logs comes before it."""
    return process.stderr.decode().splitlines()[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_translated_as_by_the_translator(program, exported, kind):
    translator, path = exported[kind]
    process = run(program, "-s", path, content=lines(TEXTS))
    assert process.returncode == 0, last_line(process)
    scores, translations = zip(
        *(
            line.split("\t", 1)
            for line in process.stdout.decode().split("\n")[:-1]
        ),
        strict=True,
    )
    expected, expected_scores = translator(TEXTS, return_scores=True)
    if kind == "bpe":  # the best of two
        expected = [texts[0] for texts in expected]
        expected_scores = expected_scores[:, 0]
    assert list(translations) == expected
    np.testing.assert_allclose(
        np.array(scores, float), expected_scores, **SCORE_TOLERANCE
    )
    assert len(set(translations)) > len(TEXTS) - 3


def test_lines_of_any_number_stay_in_order(program, exported):
    translator, path = exported["unigram"]
    texts = ["the cat", "", "fox sees the 😀", "the dog sees"] * 300
    expected = lines(translator(texts[:4]) * 300)
    for options in ([], ["-n", 7], ["-n", len(texts)]):
        process = run(program, *options, path, content=lines(texts))
        assert process.returncode == 0, last_line(process)
        assert process.stdout == expected
    assert run(program, path).stdout == b""


def test_marks_and_line_ends_of_other_systems_are_no_text(program, exported):
    translator, path = exported["unigram"]
    content = b"\xef\xbb\xbfthe cat\r\n\r\nthe dog"
    process = run(program, path, content=content)
    assert process.stdout == lines(translator(["the cat", "", "the dog"]))


@pytest.mark.parametrize(
    "broken",
    [
        b"\xff",  # never in UTF-8
        b"\x80",  # no lead byte before it
        b"\xc3",  # ends too early
        b"\xe2\x82 ",
        b"\xc0\xaf",  # too long a form
        b"\xe0\x80\xaf",
        b"\xf0\x80\x80\xaf",
        b"\xed\xa0\x80",  # half of a UTF-16 pair
        b"\xf4\x90\x80\x80",  # above U+10FFFF
        b"\xf5\x80\x80\x80",
    ],
)
def test_text_that_is_not_utf8_is_named(program, exported, broken):
    _, path = exported["unigram"]
    content = "the cat\nüber ".encode() + broken + b"\n"
    process = run(program, "-n", 1, path, content=content)
    assert process.returncode == 2
    assert last_line(process) == (
        "translate: the input must be UTF-8; line 2, byte 7 is "
        f"0x{broken[0]:02x}"
    )
    assert process.stdout.count(b"\n") == 1  # the call before


def test_what_cannot_be_loaded_is_named(program, exported, tmp_path):
    module = tf.Module()
    module.double = tf.function(
        lambda x: {"y": 2 * x},
        input_signature=[tf.TensorSpec([None], tf.float32, name="x")],
    )
    for name in ("other", "serving_default"):
        tf.saved_model.save(
            module, str(tmp_path / name), signatures={name: module.double}
        )
    _, path = exported["unigram"]
    for arguments, message in (
        ([tmp_path / "missing"], "Could not find SavedModel"),
        ([tmp_path / "other"], "has no signature serving_default"),
        ([tmp_path / "serving_default"], "no input `text` of type string"),
        (["-t", tmp_path, path], "cannot load tensorflow-text's operations"),
        (["-n", "0", path], "-n must be a whole number from 1 to"),
        (["-n", "5x", path], "-n must be a whole number from 1 to"),
    ):
        process = run(program, *arguments)
        assert process.returncode == 2
        assert last_line(process).startswith("translate: ")
        assert message in last_line(process)
        assert process.stdout == b""


def test_usage(program):
    for arguments in ([], ["one", "two"], ["-x", "one"]):
        process = run(program, *arguments)
        assert process.returncode == 2
        assert b"Usage: translate" in process.stderr
    process = run(program, "-h")
    assert process.returncode == 0
    assert process.stdout.startswith(b"Usage: translate")


def test_output_that_cannot_be_written_is_an_error(program, exported):
    _, path = exported["unigram"]
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [program, path],
            input=b"the cat\n",
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    assert process.returncode == 1
    assert last_line(process).startswith("translate: cannot write the output")


def test_python_without_tensorflow_is_named(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    process = subprocess.run(
        ["make", "-C", FOLDER, f"PYTHON={python}", f"BUILD={tmp_path}/build"],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 2
    assert "must have tensorflow and tensorflow-text" in process.stderr

"""The page says in a browser what a LiteRT file says elsewhere."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece

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

# Joins rows of ids with a SentencePiece model, as the page does.
JOIN = """
import { readFile } from "node:fs/promises";
import { SentencePieceProcessor } from "@sctg/sentencepiece-js";
import { Translator } from "./translator.js";

const [path, isFast, rows] = process.argv.slice(2);
const target = new SentencePieceProcessor();
await target.loadFromB64StringModel(await readFile(path, "base64"));
const translator = new Translator(null, 9, null, target, isFast === "1", 1);
const texts = JSON.parse(rows).map((row) => translator.join(row));
console.log(JSON.stringify(texts));
"""

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


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_pieces_are_joined_as_elsewhere(page, make_small, tmp_path, model_type):
    tokenizer = make_small(model_type).tokenizer
    tokenizer.save(tmp_path / "spm.model")
    generator = np.random.default_rng(5)
    size = tokenizer.vocabulary_size
    rows = generator.integers(4, size, (40, 5)).tolist()
    space, unknown = tokenizer.pieces.index("▁"), tokenizer.unknown_token_id
    starts = [[], [space], [space] * 2, [unknown], [space, unknown]]
    rows = [start + row for start in starts for row in rows] + starts
    (page / "join.mjs").write_text(JOIN)
    is_fast = int(tokenizer.is_fast)
    output = run(
        *("node", page / "join.mjs", tmp_path / "spm.model"),
        *(str(is_fast), json.dumps(rows)),
    )
    assert json.loads(output) == tokenizer.decode(rows)


def test_the_text_of_the_unknown_piece_may_be_any(page, tmp_path):
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(["the cat sees the dog"] * 20),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=30,
        hard_vocab_limit=False,
        unk_surface="<unk>",
        minloglevel=2,
    )
    tokenizer = kt.Tokenizer.from_sentencepiece(tmp_path / "spm.model")
    assert tokenizer.is_fast
    tokenizer.save(tmp_path / "ours.model")
    rows = tokenizer.encode(["the cat", "", "dog sees"])
    (page / "join.mjs").write_text(JOIN)
    output = run(
        *("node", page / "join.mjs", tmp_path / "ours.model"),
        *("1", json.dumps(rows)),
    )
    assert json.loads(output) == tokenizer.decode(rows)


def test_a_worker_that_does_not_load_is_an_error(page, tmp_path):
    worker = page / "dist" / "worker.js"
    worker.rename(tmp_path / "worker.js")
    command = ("node", page / "translate.js", BROWSER, tmp_path / "none.tflite")
    try:
        process = finished(*command, input="fox\n")
    finally:
        shutil.move(tmp_path / "worker.js", worker)
    assert process.returncode == 1
    assert process.stderr == "worker.js could not be loaded.\n"


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

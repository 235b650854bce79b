"""Exported folders say in a fresh process what the translator says here."""

import json
import os
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.serving.run_export import peak_bytes
from keras_transformer.serving.saved_model import TranslationGraph

ANIMALS = {"cat": "Katze", "dog": "Hund", "hen": "Henne", "fox": "Fuchs"}
PAIRS = [
    (f"the {one} sees the {other}", f"{ANIMALS[one]} sieht {ANIMALS[other]}")
    for one in ANIMALS
    for other in ANIMALS
] * 5
ENGLISH, GERMAN = zip(*PAIRS, strict=True)

TEXTS = [
    "the cat sees the dog",
    "",
    "fox",
    " \t\n ",
    "the hen 😀 sees 👩\u200d👧 the fox",
    "مرحبا بالعالم the cat",
    "ﬁne cafe\u0301 \u2028 \x00 </s> <pad>",
    "the dog sees the hen " * 5,
]
BATCHES = {
    "no text": [],
    "one text": ["the cat sees the dog"],
    "empty text": [""],
    "three texts": ["the cat", "", "the dog sees the fox"],
    "odd texts": TEXTS,
    "64 texts": TEXTS * 8,
    "300 words": ["the fox sees " * 100, "cat"],
}

# The exported graph pads a batch to its longest text, the translator in
# steps of 8, so that the same products are summed in another order: float32
# logits differ by about 1e-6, a score of some hundred tokens by more.
SCORE_TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def tokenizer(lines, **options):
    return kt.Tokenizer.train(lines, verbose=0, **options)


KINDS = ["shared unigram", "two bpe"]


def make_translator():
    """All that the small one is not."""
    tokenizers = [
        tokenizer(ENGLISH, vocabulary_size=27, model_type="bpe"),
        tokenizer(
            GERMAN, vocabulary_size=285, model_type="bpe", byte_fallback=True
        ),
    ]
    model = kt.Transformer(
        tokenizers[-1].vocabulary_size,
        source_vocabulary_size=tokenizers[0].vocabulary_size,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        tie_output=False,
    )
    # A random model that prefers some token clearly.
    for variable in model.trainable_variables:
        if variable.ndim == 2:
            variable.assign(3 * variable.numpy())
    return kt.Translator(model, *tokenizers)


def source_ids_of(translator):
    """Ids of texts of unequal lengths, one of them empty, with padding."""
    ids = translator.tokenizer.encode(["the cat sees the dog", "", "fox"])
    rows = [[*row, 3] if row else [] for row in ids]
    longest = max(map(len, rows)) + 2
    return [row + [0] * (longest - len(row)) for row in rows]


def files_in(folder):
    return {
        str(path.relative_to(folder)): path.is_file() and path.stat().st_size
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def exported(small, tmp_path_factory):
    """A translator and its exported folder, of each kind."""
    keras.utils.set_random_seed(2)
    translator = make_translator()
    path = tmp_path_factory.mktemp("exported") / "1"
    translator.export_saved_model(path)
    pairs = [(small.translator, small.saved_model), (translator, path)]
    return dict(zip(KINDS, pairs, strict=True))


@pytest.fixture(scope="module")
def signatures(exported):
    """The functions of one of the folders, loaded once."""
    _, path = exported["shared unigram"]
    loaded = tf.saved_model.load(str(path))
    yield loaded.signatures  # which do not keep what they are of


@pytest.fixture(scope="module")
def fresh(exported, run_program):
    """What one fresh process says to all texts, for each kind."""
    calls = {
        kind: (str(path), BATCHES, source_ids_of(translator))
        for kind, (translator, path) in exported.items()
    }
    return json.loads(run_program("run_saved_model", stdin=calls).stdout)


def test_fresh_process_does_not_need_this_library(fresh):
    # Keras is there in any case: TensorFlow itself imports it.
    names = {name.partition(".")[0] for name in fresh["modules"]}
    assert "tensorflow_text" in names
    assert "keras_transformer" not in names


@pytest.mark.parametrize("kind", KINDS)
def test_signatures(fresh, kind):
    text = [
        {"text": ["string", [None]]},
        {"translation": ["string", [None]], "score": ["float32", [None]]},
    ]
    ids = [
        {"source_ids": ["int32", [None, None]]},
        {"target_ids": ["int32", [None, None]], "score": ["float32", [None]]},
    ]
    assert fresh[kind]["signatures"] == {
        "serving_default": text,
        "translate_ids": ids,
        "translate_compiled": text,
        "translate_ids_compiled": ids,
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BATCHES)
def test_text_is_translated_as_by_the_translator(exported, fresh, kind, name):
    translator, _ = exported[kind]
    translations, scores = translator(BATCHES[name], return_scores=True)
    found_translations, found_scores = fresh[kind]["batches"][name]
    assert found_translations == translations
    np.testing.assert_allclose(found_scores, scores, **SCORE_TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_text_without_tokens_is_empty_text_with_score_0(fresh, kind):
    translations, scores = fresh[kind]["batches"]["three texts"]
    assert [bool(text) for text in translations] == [True, False, True]
    assert [score == 0 for score in scores] == [False, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_translated_as_by_the_model(exported, fresh, kind):
    translator, _ = exported[kind]
    target_ids, scores = translator.model.generate(source_ids_of(translator))
    assert fresh[kind]["target_ids"] == target_ids.tolist()
    np.testing.assert_allclose(fresh[kind]["score"], scores, **SCORE_TOLERANCE)


@pytest.mark.slow
def test_compiled_signatures_say_the_same(exported, signatures):
    translator, _ = exported["shared unigram"]
    for text, ids in (
        ("serving_default", "translate_ids"),
        ("translate_compiled", "translate_ids_compiled"),
    ):
        found = signatures[text](text=tf.constant(TEXTS))
        translations, scores = translator(TEXTS, return_scores=True)
        assert [x.decode() for x in found["translation"].numpy()] == (
            translations
        )
        np.testing.assert_allclose(found["score"], scores, **SCORE_TOLERANCE)

        source_ids = tf.constant(source_ids_of(translator), tf.int32)
        found = signatures[ids](source_ids=source_ids)
        target_ids, _ = translator.model.generate(source_ids.numpy())
        np.testing.assert_array_equal(found["target_ids"], target_ids)


def test_a_call_of_any_size_is_decoded_in_batches(exported):
    translator, _ = exported["shared unigram"]
    graph = TranslationGraph(translator)
    sizes = []
    search = graph._search

    def recorded(source_ids):
        tf.py_function(lambda ids: sizes.append(ids.shape), [source_ids], [])
        return search(source_ids)

    graph._search = recorded
    texts = (TEXTS + ["the fox sees the hen " * 40, ""]) * 40
    found = graph.translate_text(tf.constant(texts))
    assert [x.decode() for x in found["translation"].numpy()] == (
        translator(texts)
    )
    assert len(sizes) > 3
    for rows, length in sizes:
        assert rows == 1 or rows * (length + 50) <= 8192
    lengths = [length for _, length in sizes]
    assert lengths == sorted(lengths, reverse=True)


def test_short_texts_beside_a_long_one_need_little_memory(exported):
    translator, _ = exported["shared unigram"]
    graph = TranslationGraph(translator)

    def search(source_ids):
        last = tf.reduce_max(source_ids, axis=1)[:, tf.newaxis, tf.newaxis]
        return last, tf.cast(last[:, 0], tf.float32)

    graph._search = search
    long = "fox " * 4_000
    graph.translate_text(tf.constant(["fox"]))
    before = peak_bytes()
    # Filled up, these would be 1.6 GB.
    texts = ["fox", *[""] * 50_000, long, *[""] * 50_000]
    found = graph.translate_text(tf.constant(texts))
    assert peak_bytes() < before + 2**29
    assert found["translation"].numpy().tolist() == [
        text.encode()[:3] for text in texts
    ]
    ids = translator.tokenizer.encode(["fox"])[0]
    scores = [max(*ids, 3) if text else 0 for text in texts]
    assert found["score"].numpy().tolist() == scores


@pytest.mark.slow
def test_several_hypotheses_are_exported(exported, tmp_path):
    translator, _ = exported["two bpe"]
    translator = kt.Translator(
        translator.model,
        translator.tokenizer,
        translator.target_tokenizer,
        search=kt.BeamSearch(width=3, num_hypotheses=2),
    )
    translator.export_saved_model(tmp_path / "1")
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    found = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    translations, scores = translator(TEXTS, return_scores=True)
    assert [
        [x.decode() for x in row] for row in found["translation"].numpy()
    ] == translations
    np.testing.assert_allclose(found["score"], scores, **SCORE_TOLERANCE)


def test_model_is_random_enough_to_tell_texts_apart(exported):
    for translator, _ in exported.values():
        assert len(set(translator(TEXTS))) > len(TEXTS) - 3


@pytest.mark.parametrize("kind", KINDS)
def test_export_holds_the_weights_of_the_model_alone(exported, kind):
    translator, path = exported[kind]
    variables = tf.train.list_variables(str(path / "variables" / "variables"))
    numbers = sum(
        np.prod(shape, dtype=int)
        for name, shape in variables
        if name.endswith("VARIABLE_VALUE")
    )
    # Keras may keep the seeds of dropout as well, 2 numbers for each.
    count = translator.model.count_params()
    assert count <= numbers < count + 100


@pytest.mark.slow
def test_saved_model_cli_translates(exported, tmp_path):
    translator, path = exported["shared unigram"]
    texts = ["the cat sees the dog", "", "fox 😀"]
    # The command itself does not load the operations on text.
    command = (
        "import tensorflow_text; "
        "from tensorflow.python.tools import saved_model_cli; "
        "saved_model_cli.main()"
    )
    process = subprocess.run(
        [
            *(sys.executable, "-c", command, "run"),
            *("--dir", str(path), "--tag_set", "serve"),
            *("--signature_def", "serving_default"),
            *("--input_exprs", f"text={texts!r}"),
            *("--outdir", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    found = np.load(tmp_path / "translation.npy", allow_pickle=True)
    assert [text.decode() for text in found] == translator(texts)


def test_folder_of_an_export_is_refused_and_untouched(exported):
    translator, path = exported["shared unigram"]
    before = files_in(path)
    message = "exists already, and nothing in it was touched.*overwrite=True"
    with pytest.raises(FileExistsError, match=message):
        translator.export_saved_model(path)
    assert files_in(path) == before
    assert os.listdir(path.parent) == ["1"]


@pytest.mark.parametrize("name", ["en[1]/1", "en\\de"])
def test_folder_that_tensorflow_cannot_read_is_refused(
    exported, tmp_path, name
):
    translator, _ = exported["shared unigram"]
    with pytest.raises(ValueError, match="takes for a pattern.*Choose another"):
        translator.export_saved_model(tmp_path / name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_no_export_is_refused_and_untouched(exported, tmp_path, kind):
    translator, _ = exported["shared unigram"]
    path = tmp_path / "notes"
    precious = path
    if kind == "folder":
        path.mkdir()
        precious = path / "file"
    precious.write_text("precious")
    with pytest.raises(FileExistsError, match="nothing in it was touched"):
        translator.export_saved_model(path)
    assert precious.read_text() == "precious"
    assert os.listdir(tmp_path) == ["notes"]


def interrupt(monkeypatch, path, error):
    """Stops an export in the middle of its files, and looks at `path` then."""
    found = []

    class Archive:
        def track(self, resource):
            pass

        def add_endpoint(self, name, function):
            pass

        def write_out(self, folder, **options):
            os.makedirs(os.path.join(folder, "variables"))
            with open(os.path.join(folder, "saved_model.pb"), "wb") as file:
                file.write(b"half")
            found.append(files_in(path) if path.exists() else None)
            raise error

    monkeypatch.setattr(keras.export, "ExportArchive", Archive)
    return found


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()]
)
def test_export_that_fails_leaves_nothing(
    exported, tmp_path, monkeypatch, error
):
    translator, _ = exported["shared unigram"]
    path = tmp_path / "en-de" / "1"
    found = interrupt(monkeypatch, path, error)
    with pytest.raises(type(error)):
        translator.export_saved_model(path)
    assert found == [None]  # so that a kill leaves nothing at `path` either
    assert list((tmp_path / "en-de").iterdir()) == []


def test_export_that_fails_leaves_the_old_one(exported, tmp_path, monkeypatch):
    translator, _ = exported["shared unigram"]
    path = tmp_path / "1"
    (path / "variables").mkdir(parents=True)
    (path / "saved_model.pb").write_text("old")
    before = files_in(path)
    found = interrupt(monkeypatch, path, OSError(28, "No space"))
    with pytest.raises(OSError, match="No space"):
        translator.export_saved_model(path, overwrite=True)
    assert found == [before]
    assert files_in(tmp_path) == {"1": False} | {
        f"1/{name}": size for name, size in before.items()
    }


def test_overwrite_refuses_what_is_no_export(exported, tmp_path):
    translator, _ = exported["two bpe"]
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match="something other than a Sav"):
        translator.export_saved_model(tmp_path, overwrite=True)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    file = tmp_path / "thesis.tex"
    with pytest.raises(FileExistsError, match="something other than a Sav"):
        translator.export_saved_model(file, overwrite=True)
    assert file.read_text() == "precious"


@pytest.mark.slow
def test_overwrite_replaces_an_export_without_a_word(exported, tmp_path, capfd):
    translator, _ = exported["two bpe"]
    path = tmp_path / "1"
    path.mkdir()
    (path / "old").write_text("old")
    (path / "saved_model.pb").write_text("an export")
    # A seed makes TensorFlow forget what the tokenizers have made in it.
    keras.utils.set_random_seed(7)
    capfd.readouterr()
    translator.export_saved_model(path, overwrite=True)
    assert capfd.readouterr().out == ""
    assert sorted(os.listdir(tmp_path)) == ["1"]
    assert not (path / "old").exists()
    loaded = tf.saved_model.load(str(path))
    output = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    found = [text.decode() for text in output["translation"].numpy()]
    assert found == translator(TEXTS)


@pytest.mark.slow
def test_jax_reads_the_same_folder_and_refuses_to_export(
    exported, tmp_path, run_program
):
    translator, _ = exported["two bpe"]
    translator.save(tmp_path / "en-de")
    texts = ["the cat sees the dog", ""]
    process = run_program(
        *("translate_and_export", tmp_path / "en-de", tmp_path / "1"),
        *texts,
        KERAS_BACKEND="jax",
    )
    message, translations = json.loads(process.stdout)
    assert re.search("TensorFlow backend only.*'jax'.*KERAS_BACKEND", message)
    assert translations == translator(texts)
    assert os.listdir(tmp_path) == ["en-de"]


def test_other_backend_is_refused_before_anything_is_written(
    exported, tmp_path, monkeypatch
):
    translator, _ = exported["two bpe"]
    backend = types.SimpleNamespace(backend=lambda: "torch")
    monkeypatch.setattr(keras, "backend", backend)
    with pytest.raises(RuntimeError, match="TensorFlow backend only.*'torch'"):
        translator.export_saved_model(tmp_path / "new" / "1")
    assert os.listdir(tmp_path) == []


def test_text_without_end_is_refused_before_it_is_computed(
    exported, signatures
):
    translator, _ = exported["shared unigram"]
    text = "the cat sees the dog " * 50_000  # 1 MB
    before = peak_bytes()
    message = "must not be longer than 4096 tokens"
    for name in ("serving_default", "translate_compiled"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            signatures[name](text=tf.constant(["fox", text]))
    for name in ("translate_ids", "translate_ids_compiled"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            signatures[name](source_ids=tf.fill([1, 4097], 5))
    with pytest.raises(ValueError, match="4096 tokens. Received: text 1 with"):
        translator(["fox", text])
    # Filled up, these texts would be 4 GB.
    texts = tf.constant([text, *[""] * 4_000])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signatures["serving_default"](text=texts)
    assert peak_bytes() < before + 2**30
    # Padding is no text.
    ids = np.array(source_ids_of(translator), "int32")
    found, expected = (
        signatures["translate_ids"](source_ids=tf.constant(x))["target_ids"]
        for x in (np.pad(ids, [(0, 0), (0, 5000)]), ids)
    )
    np.testing.assert_array_equal(found, expected)


def test_keras_exports_the_logits_of_ids_of_any_size(tmp_path):
    model = kt.Transformer(
        13, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    model.export(tmp_path / "logits", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "logits")
    for source_length, target_length in ((3, 5), (7, 2)):
        ids = {
            "source_ids": tf.fill([2, source_length], 4),
            "target_ids": tf.fill([2, target_length], 5),
        }
        np.testing.assert_allclose(loaded.serve(ids), model(ids), atol=1e-5)


@pytest.mark.parametrize("name", ["translate_ids", "translate_ids_compiled"])
def test_ids_must_be_rows_of_the_vocabulary(exported, signatures, name):
    translator, _ = exported["shared unigram"]
    size = translator.tokenizer.vocabulary_size
    for row, message in (
        ([5, -1, 3], rf"Source ids must be in \[0, {size}\)"),
        ([5, size, 3], rf"Source ids must be in \[0, {size}\)"),
        ([0, 5, 3], "Padding, id 0, must come after the tokens of a row"),
        ([5, 0, 3], "Padding, id 0, must come after the tokens of a row"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            signatures[name](source_ids=tf.constant([[5, 3, 0], row]))


@pytest.mark.parametrize("name", ["translate_ids", "translate_ids_compiled"])
@pytest.mark.parametrize("shape", [(2, 0), (0, 0), (0, 3)])
def test_nothing_is_translated_to_nothing(signatures, name, shape):
    result = signatures[name](source_ids=tf.zeros(shape, tf.int32))
    assert result["target_ids"].shape == (shape[0], 0)
    np.testing.assert_array_equal(result["score"], np.zeros(shape[0]))

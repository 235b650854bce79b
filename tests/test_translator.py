"""Strings in, strings out; and the folder that keeps a translator."""

import dataclasses
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import sys
import threading
import time
import warnings
import zlib

import keras
import matplotlib.font_manager
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import translator as translator_module
from keras_transformer import translator_folder
from keras_transformer.alignment import Alignment
from keras_transformer.batches import batches_by_length
from keras_transformer.batches import first_of
from keras_transformer.batches import pad_rows
from keras_transformer.system import atomic
from keras_transformer.system import cores
from keras_transformer.system import lock
from keras_transformer.tensorflow_only import threads

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
    " \t\n",
    "the hen sees the fox " * 4,
    "the dog " * 11 + "sees 漢 😀 the cat",
    "cat dog",
]

SIZES = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
}

# Sums of the same products in another order: float32 logits differ by about
# 1e-6, a score of up to 60 tokens by that many times as much.
SCORE_TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.train(ENGLISH + GERMAN, vocabulary_size=32, verbose=0)


@pytest.fixture(scope="module")
def target_tokenizer():
    return kt.Tokenizer.train(
        GERMAN, vocabulary_size=31, model_type="bpe", verbose=0
    )


def sharpened(model):
    """Spreads the weights, so that random models prefer some token clearly."""
    for variable in model.trainable_variables:
        if variable.ndim == 2:
            variable.assign(3 * variable.numpy())
    return model


@pytest.fixture(scope="module")
def model(tokenizer):
    """Keeps what is traced for it, which takes longer than it runs."""
    keras.utils.set_random_seed(20170612)
    return sharpened(kt.Transformer(tokenizer.vocabulary_size, **SIZES))


@pytest.fixture
def translator(model, tokenizer):
    return kt.Translator(model, tokenizer)


@pytest.fixture
def other_translator(tokenizer, target_tokenizer):
    """Two vocabularies, and every argument but its default."""
    model = kt.Transformer(
        target_tokenizer.vocabulary_size,
        **SIZES,
        key_dim=5,
        value_dim=7,
        dropout=0.2,
        attention_dropout=0.3,
        feed_forward_dropout=0.4,
        normalize_first=True,
        activation="gelu",
        positional_encoding="learned",
        max_length=90,
        source_vocabulary_size=tokenizer.vocabulary_size,
        tie_source=False,
        tie_output=False,
        name="other",
    )
    return kt.Translator(
        sharpened(model), tokenizer, target_tokenizer, kt.GreedySearch()
    )


@pytest.fixture
def saved(translator, tmp_path):
    """A saved translator's folder."""
    path = tmp_path / "runs" / "en-de"
    translator.save(path)
    return path


def contents(folder):
    """Checksums of all that is in a folder, hidden files too."""
    return {
        str(path.relative_to(folder)): path.is_file()
        and zlib.crc32(path.read_bytes())
        for path in folder.rglob("*")
    }


def assert_same(loaded, translator):
    """Compares translators by all that they consist of."""
    assert loaded.tokenizer.model == translator.tokenizer.model
    assert loaded.target_tokenizer.model == translator.target_tokenizer.model
    assert loaded.model.get_config() == translator.model.get_config()
    weights = translator.model.get_weights()
    for found, weight in zip(loaded.model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(found, weight)


def edit_description(folder, **changes):
    path = folder / "translator.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def replace_file(path, content):
    """Lets the folder have been saved with other content."""
    path.write_bytes(content)
    description = json.loads((path.parent / "translator.json").read_text())
    digest = hashlib.sha256(content).hexdigest()
    digests = description["sha256"] | {path.name: digest}
    edit_description(path.parent, sha256=digests)


def weights_file(folder):
    (path,) = folder.glob("*.safetensors")
    return path


# Translating


def test_one_translation_for_each_text_in_order(translator):
    translations = translator(TEXTS)
    assert len(translations) == len(TEXTS)
    assert all(type(text) is str for text in translations)
    assert translations == [translator([text])[0] for text in TEXTS]
    assert translator(TEXTS[::-1]) == translations[::-1]
    assert len(set(translations)) > 3  # so that the order can be seen


def test_empty_text_becomes_empty_text(translator):
    translations, scores = translator(
        ["", "the cat", " \t\n ", "\u3000"], return_scores=True
    )
    assert [bool(text) for text in translations] == [False, True, False, False]
    assert [score == 0 for score in scores] == [True, False, True, True]
    assert translator([""]) == [""]


def test_nothing_becomes_nothing(translator):
    assert translator([]) == []
    translations, scores = translator([], return_scores=True)
    assert translations == []
    assert scores.shape == (0,) and scores.dtype == np.float32


@pytest.mark.parametrize("kind", [tuple, iter, np.array])
def test_texts_may_be_of_any_kind_of_sequence(translator, kind):
    assert translator(kind(TEXTS)) == translator(TEXTS)


def test_a_bare_string_is_refused(translator):
    message = r"`texts` must be a sequence of strings. Received: one string"
    with pytest.raises(TypeError, match=message):
        translator("the cat")
    with pytest.raises(TypeError, match=message):
        translator.score("the cat", ["der Hund"])
    for texts in (None, {"the cat": 1}, {"the cat"}, np.array("the cat")):
        kind = type(texts).__name__
        with pytest.raises(TypeError, match=f"`texts` must be .* type {kind}"):
            translator(texts)
    with pytest.raises(TypeError, match="`translations` must be a sequence"):
        translator.score(["the cat"], "der Hund")


@pytest.mark.parametrize("texts", [[b"the cat"], ["the cat", 7], [["the"]]])
def test_what_is_no_string_is_refused(translator, texts):
    with pytest.raises(TypeError, match="must be a sequence of strings"):
        translator(texts)


def test_bytes_are_to_be_decoded(translator):
    with pytest.raises(TypeError, match="`texts` must be .* of type bytes.$"):
        translator(b"the cat")
    for text, advice in (
        (b"the cat", r"Decode it: `text.decode\(\)`"),
        (tf.constant("the cat"), r"Decode it: `text.numpy\(\).decode\(\)`"),
    ):
        with pytest.raises(TypeError, match=advice):
            translator([text])


def test_scores_are_log_probabilities_of_the_translations(translator):
    translations, scores = translator(TEXTS, return_scores=True)
    assert scores.dtype == np.float32 and scores.shape == (len(TEXTS),)
    assert (scores <= 0).all()
    _, alone = zip(
        *(translator([text], return_scores=True) for text in TEXTS),
        strict=True,
    )
    np.testing.assert_allclose(scores, np.concatenate(alone), **SCORE_TOLERANCE)
    assert translations == translator(TEXTS)


def test_a_terminal_shows_how_much_is_done(translator, monkeypatch, capsys):
    texts = ["the cat", "the cat sees the dog"]

    def shown(verbose):
        translations = translator(texts, verbose=verbose)
        translator.score(texts, translations, verbose=verbose)
        assert translations == translator(texts)
        return capsys.readouterr().err

    assert shown(verbose=1) == ""  # to a file or a pipe
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes a terminal of it
    found = shown(verbose=1)
    assert re.search("(?s)Translating.*100%.*Scoring.*100%", found)
    assert shown(verbose=0) == ""


def test_score_is_the_models_own(translator, tokenizer):
    (text,), (score,) = translator(["the cat sees"], return_scores=True)
    ids = tokenizer.encode("the cat sees") + [tokenizer.end_token_id]
    source = np.zeros((1, 16), "int32")
    source[0, : len(ids)] = ids
    target_ids, scores = translator.model.generate(source)
    assert tokenizer.decode(target_ids) == [text]
    np.testing.assert_allclose(score, scores[0], **SCORE_TOLERANCE)


@pytest.fixture
def generated(translator, monkeypatch):
    """Records what the model was asked for, and what it gave."""
    calls = []
    generate = translator.model.generate

    def recorded(source_ids, **options):
        calls.append((options, generate(source_ids, **options)))
        return calls[-1][1]

    monkeypatch.setattr(translator.model, "generate", recorded)
    return calls


@pytest.mark.parametrize(
    ("num_threads", "num_cores", "sizes"),
    [(0, 4, [20] * 2), (1, 1, [40]), (1, 4, [10] * 4), (1, 16, [8] * 5)],
)
def test_no_core_is_without_a_batch(
    translator, generated, monkeypatch, num_threads, num_cores, sizes
):
    set_threads(monkeypatch, num_threads, num_cores)
    translator(["the cat", ""] * 40, jit_compile=False)
    rows = [len(target_ids) for _, (target_ids,) in generated]
    assert rows == sizes
    generated.clear()
    translator(["the cat"] * 15, jit_compile=False)
    assert len(generated) == 1


@pytest.mark.parametrize(("jit_compile", "most"), [(False, 2), (True, 1)])
def test_two_batches_at_a_time(translator, monkeypatch, jit_compile, most):
    set_threads(monkeypatch, num_threads=0, num_cores=16)
    texts = TEXTS * 2
    expected = translator(texts, jit_compile=False)
    generate, lock, at_once = translator.model.generate, threading.Lock(), [0]
    both = threading.Barrier(most)

    def counted(source_ids, jit_compile, **options):
        with lock:
            at_once.append(at_once[-1] + 1)
        if len(at_once) <= most + 1:
            both.wait(timeout=60)
        found = generate(source_ids, jit_compile=False, **options)
        with lock:
            at_once.append(at_once[-1] - 1)
        return found

    monkeypatch.setattr(translator.model, "generate", counted)
    options = {"tokens_per_batch": 1, "jit_compile": jit_compile}
    assert translator(texts, **options) == expected
    assert max(at_once) == most


def set_threads(monkeypatch, num_threads, num_cores):
    """Says how many threads share an operation, and how many cores are.

    And that there is no GPU.
    """
    monkeypatch.setattr(threads, "are_cpus", lambda devices: True)
    monkeypatch.setattr(
        tf.config.threading,
        "get_intra_op_parallelism_threads",
        lambda: num_threads,
    )
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda _: set(range(num_cores)), raising=False
    )
    monkeypatch.setattr(cores, "QUOTAS", ())


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "6400000 100000\n"}, 16),
        ({"cpu.max": "max 100000\n"}, 16),
        ({"quota": "300000\n", "period": "100000\n"}, 3),
        ({"quota": "-1\n", "period": "100000\n"}, 16),
        ({}, 16),
    ],
)
def test_a_container_may_have_fewer_cores_than_the_machine(
    monkeypatch, tmp_path, files, expected
):
    set_threads(monkeypatch, num_threads=0, num_cores=16)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    quotas = [["cpu.max"], ["quota", "period"]]
    monkeypatch.setattr(
        cores, "QUOTAS", [[tmp_path / name for name in x] for x in quotas]
    )
    assert cores.num_cores() == expected


@pytest.mark.parametrize(
    ("num_threads", "num_cores", "expected"),
    [(0, 16, 2), (1, 1, 1), (1, 2, 2), (1, 64, 8), (3, 16, 2), (4, 2, 2)],
)
def test_each_core_has_a_batch_where_operations_have_one_thread(
    monkeypatch, num_threads, num_cores, expected
):
    set_threads(monkeypatch, num_threads, num_cores)
    assert threads.batches_at_once() == expected


GIVERS = {
    "batches": lambda: threads.give_cores_to_batches(1_000),
    "few batches": lambda: threads.give_cores_to_batches(3),
    "parts": threads.give_cores_to_parts,
}


@pytest.mark.parametrize(
    ("what", "num_cores", "expected"),
    [
        ("batches", 1, [1]),
        ("batches", 8, [1]),
        ("batches", 9, []),
        ("few batches", 3, [1]),
        ("few batches", 4, []),
        ("parts", 4, [1]),
        ("parts", 5, []),
    ],
)
def test_few_cores_have_a_batch_or_a_part_each(
    monkeypatch, what, num_cores, expected
):
    set_threads(monkeypatch, 0, num_cores)
    given = []
    name = "set_intra_op_parallelism_threads"
    monkeypatch.setattr(tf.config.threading, name, given.append)
    GIVERS[what]()
    assert given == expected


@pytest.mark.parametrize(("told", "expected"), [("1", 8), ("", 2), ("x", 2)])
def test_the_environment_may_say_the_threads(monkeypatch, told, expected):
    set_threads(monkeypatch, 0, 16)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", told)
    assert threads.batches_at_once() == expected


@pytest.mark.parametrize(("num_threads", "told"), [(3, ""), (0, "3")])
def test_threads_that_were_chosen_stay(monkeypatch, num_threads, told):
    set_threads(monkeypatch, num_threads, 16)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", told)
    given = []
    name = "set_intra_op_parallelism_threads"
    monkeypatch.setattr(tf.config.threading, name, given.append)
    threads.give_cores_to_batches(1_000)
    assert given == []


def test_threads_stay_once_tensorflow_has_computed(monkeypatch):
    set_threads(monkeypatch, num_threads=0, num_cores=2)
    tf.constant(1) + 1
    with pytest.raises(RuntimeError):  # as TensorFlow says
        tf.config.threading.set_intra_op_parallelism_threads(1)
    threads.give_cores_to_batches(1_000)


def test_an_error_does_not_wait_for_all_batches(translator, monkeypatch):
    calls = []

    def fail(source_ids, **options):
        calls.append(source_ids)
        time.sleep(0.1 if len(calls) > 1 else 0)
        raise RuntimeError("no memory")

    monkeypatch.setattr(translator.model, "generate", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        translator(["the cat"] * 500, tokens_per_batch=1)
    assert len(calls) < 50


@pytest.mark.parametrize("max_length", [1, 2, 5])
def test_max_length_limits_every_translation(translator, generated, max_length):
    translations = translator(TEXTS, max_length=max_length)
    assert len(translations) == len(TEXTS)
    ((_, (target_ids,)),) = generated
    assert target_ids.shape[1] == max_length


def test_no_room_is_kept_for_more_than_the_model_takes(
    translator, generated, monkeypatch
):
    set_threads(monkeypatch, num_threads=1, num_cores=1)
    monkeypatch.setattr(translator.model, "max_length", 6)
    translator(["the cat"] * 50, max_length=4000)
    assert len(generated) == 1


def test_lengths_and_search_are_passed_to_the_model(translator, generated):
    translator(["the cat"], min_length=4, max_length=9)
    ((options, (target_ids,)),) = generated
    assert options == {
        "min_length": 4,
        "max_length": 9,
        "search": translator.search,
        "target_prefix_ids": None,
        "return_scores": False,
        "jit_compile": None,
    }
    assert 4 <= target_ids.shape[1] <= 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, "`max_length` must be at least 1"),
        ({"min_length": -1}, "`min_length` must not be negative"),
        ({"min_length": 6, "max_length": 5}, "must not be more than `max_len"),
    ],
)
def test_lengths_out_of_range_are_refused(translator, options, message):
    with pytest.raises(ValueError, match=message):
        translator(["the cat"], **options)


SEARCHES = [
    kt.GreedySearch(),
    kt.BeamSearch(width=3, num_hypotheses=2),
    kt.Sampling(seed=3),
]


@pytest.mark.parametrize("search", SEARCHES)
def test_batches_do_not_change_results(translator, search):
    translator.search = search
    texts = TEXTS * 5
    options = {"max_length": 12, "return_scores": True}
    expected, expected_scores = translator(texts, **options)
    translations, scores = translator(texts, tokens_per_batch=200, **options)
    assert translations == expected
    np.testing.assert_allclose(scores, expected_scores, **SCORE_TOLERANCE)


def test_several_hypotheses_are_lists_best_first(translator):
    translator.search = kt.BeamSearch(width=4, num_hypotheses=3)
    translations, scores = translator(TEXTS, max_length=9, return_scores=True)
    assert len(translations) == len(TEXTS)
    assert scores.shape == (len(TEXTS), 3)
    for text, found, found_scores in zip(
        TEXTS, translations, scores, strict=True
    ):
        assert len(found) == 3
        if text.strip():
            assert (np.diff(found_scores) <= 0).all()
        else:
            assert found == ["", "", ""]
            assert found_scores.tolist() == [0, -np.inf, -np.inf]


def test_limits_are_integers_with_or_without_texts(translator):
    for texts in (["the cat"], []):
        with pytest.raises(TypeError, match="`max_length` must be an integer"):
            translator(texts, max_length="9")


def test_target_prefixes_begin_the_translations(translator):
    texts = ["the cat sees", "the dog", ""]
    translations = translator(
        texts, target_prefix=["the dog", "", ""], max_length=20
    )
    assert translations[0].startswith("the dog")
    assert translations[1:] == translator(texts[1:], max_length=20)


def test_a_prefix_for_each_text(translator):
    message = (
        "`target_prefix` and `texts` must have the same.* Received: 1 and 2"
    )
    with pytest.raises(ValueError, match=message):
        translator(["the cat", "the dog"], target_prefix=["der"])
    with pytest.raises(TypeError, match="`target_prefix` must be a sequence"):
        translator(["the cat", "the dog"], target_prefix="der Hund")
    # By its place among the texts, not in a batch sorted by length.
    long = "Katze sieht Hund"
    with pytest.raises(ValueError, match=r": target_prefix\[2\] of .*length=2"):
        translator(
            ["the cat", "the cat sees the dog", "a"],
            target_prefix=["", "", long],
            max_length=2,
        )
    assert translator([""], target_prefix=[long], max_length=2) == [""]


def test_a_translator_that_is_saved_anew_while_it_is_read(
    translator, saved, monkeypatch
):
    read = translator_folder._read_files

    def save_then_read(path, description):
        monkeypatch.setattr(translator_folder, "_read_files", read)
        translator.save(saved, overwrite=True)
        return read(path, description)

    monkeypatch.setattr(translator_folder, "_read_files", save_then_read)
    assert_same(kt.Translator.load(saved), translator)


def test_the_best_translation_of_each_text():
    assert first_of(["a", "b"]) == ["a", "b"]
    assert first_of([["a", "c"], ["b", ""]]) == ["a", "b"]


def test_the_same_in_another_dtype(translator):
    half = translator.with_dtype("mixed_bfloat16")
    assert half.model.compute_dtype == "bfloat16"
    assert half.search is translator.search
    whole = half.with_dtype("float32")
    assert_same(whole, translator)
    assert whole(TEXTS) == translator(TEXTS)
    again = whole.with_dtype("float32")
    assert again.model is whole.model
    again.search = kt.BeamSearch(2)
    assert whole.search is translator.search


def test_other_dtype_must_be_one(translator):
    with pytest.raises(TypeError, match="`dtype` must be a dtype policy, or"):
        translator.with_dtype(None)


def test_other_dtype_keeps_the_class_of_the_model(translator):
    class Cooler(kt.Transformer):
        def project(self, x):
            return super().project(x) / 2

    model = Cooler.from_config(translator.model.get_config())
    half = kt.Translator(model, translator.tokenizer).with_dtype(
        "mixed_bfloat16"
    )
    assert type(half.model) is Cooler


def test_translations_are_scored_with_their_end(translator):
    texts = ["the cat sees the dog", "", "the dog", "", "the cat"]
    translations = ["der Hund", "", "", "der", "der Hund sieht"]
    scores, token_scores = translator.score(texts, translations)
    lengths = [
        len(translator.tokenizer.encode(text)) + 1 for text in translations
    ]
    assert [len(row) for row in token_scores] == [
        lengths[0],
        1,
        lengths[2],
        lengths[3],
        lengths[4],
    ]
    assert (scores[1], token_scores[1]) == (0, [0])
    assert scores[3] == -np.inf
    for row in (0, 2, 4):
        target = [*translator.tokenizer.encode(translations[row]), 3]
        source = [*translator.tokenizer.encode(texts[row]), 3]
        expected, (total,) = translator.model.score([source], [target])
        np.testing.assert_allclose(token_scores[row], expected[0], rtol=1e-4)
        np.testing.assert_allclose(scores[row], total, rtol=1e-4)


def test_translations_to_score_are_not_too_long(translator, monkeypatch):
    monkeypatch.setattr(translator.model, "max_length", 16)
    message = (
        "`translations` must not be longer than 16 tokens. Received: text 1 "
    )
    with pytest.raises(ValueError, match=message):
        translator.score(["the cat"] * 2, ["der", "der Hund " * 16])


@pytest.mark.parametrize("layer", [0, -1])
def test_pieces_of_translations_are_aligned(other_translator, layer):
    translator = other_translator
    texts = ["the cat sees the dog", "", "the dog", ""]
    translations = ["Hund sieht", "", "", "Katze"]
    alignments = translator.align(texts, translations, layer)
    for text, translation, found in zip(
        texts, translations, alignments, strict=True
    ):
        source = [*translator.tokenizer.encode(text), 3] if text else []
        target = [*translator.target_tokenizer.encode(translation), 3]
        assert found.source_pieces == [
            translator.tokenizer.pieces[token_id] for token_id in source
        ]
        assert found.target_pieces == [
            translator.target_tokenizer.pieces[token_id] for token_id in target
        ]
        assert found.weights.shape == (len(target), len(source))
        links = found.links()
        assert len(links) == (len(target) - 1 if source else 0)
        if source:
            expected = translator.model.align([source], [target], layer)
            np.testing.assert_allclose(found.weights, expected[0], atol=1e-5)
            for place, piece in links:
                row = found.weights[piece, :-1]
                assert row[place] == row.max()
    assert translator.align([], []) == []


def test_pieces_are_drawn_in_a_font_that_has_them(
    tmp_path, monkeypatch, capsys
):
    fonts = matplotlib.font_manager.fontManager.ttflist
    gone = dataclasses.replace(fonts[0], fname="/gone.ttf")
    monkeypatch.setattr(
        matplotlib.font_manager.fontManager, "ttflist", [gone, *fonts]
    )
    pieces = ["▁a", "⌚", "\U000effff"]  # the last is no character
    weights = np.ones((1, 3), "float32")
    with warnings.catch_warnings(action="error"):
        Alignment(pieces, ["</s>"], weights).draw(tmp_path / "a.png")
        assert "No font on this machine has \U000effff: drawn" in (
            capsys.readouterr().err
        )
        Alignment(pieces[:2], ["</s>"], weights[:, :2]).draw(tmp_path / "b.svg")
    assert capsys.readouterr().err == ""


def test_alignments_are_drawn(tmp_path):
    weights = np.array([[0.9, 0.0, 0.1], [0.2, 0.7, 0.1]], "float32")
    alignment = Alignment(["▁a$", "b$", "</s>"], ["▁c", "</s>"], weights)
    assert alignment.links() == [(0, 0)]
    alignment.draw(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    alignment.draw(tmp_path / "a.svg")
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()
    with pytest.raises(ValueError, match="must end in one of .*a.txt"):
        alignment.draw(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="needs a source with tokens"):
        Alignment([], ["</s>"], weights[:1, :0]).draw(tmp_path / "b.png")
    assert sorted(os.listdir(tmp_path)) == ["a.png", "a.svg"]


@pytest.mark.parametrize(
    "pieces, words, places",
    [
        (["▁a", "b", "▁c"], ["ab", "c"], [0, 0, 1]),
        (["▁", "a", "b", "▁", "c"], ["ab", "c"], [0, 0, 0, 1, 1]),  # no "▁a"
        (["a", "b▁", "c▁"], ["ab", "c"], [0, 0, 1]),  # spaces as suffixes
        (["▁", "▁", "▁a", "▁", "▁b", "▁"], ["a", "b"], [0, 0, 0, 1, 1, 1]),
        (["▁", "▁"], [""], [0, 0]),
        (["東", "京"], ["東京"], [0, 0]),
        (["▁of▁the", "▁cat"], ["of▁the", "cat"], [0, 1]),
        ([], [], []),
    ],
)
def test_words_share_the_attention_of_their_pieces(pieces, words, places):
    weights = np.random.default_rng(0).random((3, len(pieces) + 1))
    weights = (weights / weights.sum(axis=1, keepdims=True)).astype("float32")
    target = ["▁x", "y", "</s>"]
    found = Alignment([*pieces, "</s>"], target, weights).words()
    assert found.source_pieces == [*words, "</s>"]
    assert found.target_pieces == ["xy", "</s>"]
    expected = np.zeros((2, len(words) + 1), "float32")
    means = np.stack([weights[:2].mean(axis=0), weights[2]])
    for piece, word in enumerate([*places, -1]):
        expected[:, word] += means[:, piece]
    np.testing.assert_allclose(found.weights, expected, rtol=1e-5)
    assert found.weights.dtype == weights.dtype
    # The other way round, places of the target.
    back = Alignment(target, [*pieces, "</s>"], weights.T).words()
    assert back.target_pieces == found.source_pieces
    for word in range(len(words)):
        rows = [row for row, place in enumerate(places) if place == word]
        mean = weights.T[rows].mean(axis=0)
        np.testing.assert_allclose(
            back.weights[word], [mean[0] + mean[1], mean[2]], rtol=1e-5
        )


def test_empty_text_has_no_words_but_the_end_token(other_translator):
    texts, translations = ["", "the cat", ""], ["", "", "der Hund"]
    found = other_translator.align(texts, translations)
    words = [x.words() for x in found]
    assert [x.source_pieces for x in words] == [[], ["the", "cat", "</s>"], []]
    assert [x.target_pieces[-1] for x in words] == ["</s>"] * 3
    assert [x.links() for x in words] == [[], [], []]
    assert [x.weights.shape for x in words] == [(1, 0), (1, 3), (3, 0)]


def test_what_cannot_be_aligned(translator, monkeypatch):
    with pytest.raises(ValueError, match="must have the same length.*2 and 1"):
        translator.align(["the cat"] * 2, ["der"])
    with pytest.raises(ValueError, match="`layer` must be one of -1, 0. .*=1"):
        translator.align(["the cat"], ["der"], layer=1)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[plot\]'"):
        translator.align(["the cat"], ["der"])[0].draw("a.png")


def test_scoring_takes_batches_by_their_logits(translator, monkeypatch):
    texts = ["one two", "three", "two two one"] * 3
    expected, _ = translator.score(texts, texts)
    sizes = []
    score = translator.model.score

    def spy(source_ids, target_ids):
        sizes.append(len(source_ids))
        return score(source_ids, target_ids)

    monkeypatch.setattr(translator.model, "score", spy)
    longest = max(len(ids) for ids in translator.tokenizer.encode(texts)) + 1
    logits = 2 * longest * translator.model.vocabulary_size
    monkeypatch.setattr(translator_module, "LOGITS_PER_BATCH", logits)
    scores, _ = translator.score(texts, texts)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert sizes[0] == 2 and sum(sizes) == len(texts)
    # However small the vocabulary, there are not more tokens at once.
    sizes.clear()
    monkeypatch.setattr(translator_module, "LOGITS_PER_BATCH", 2**40)
    monkeypatch.setattr(translator_module, "TOKENS_PER_BATCH", 2 * longest)
    translator.score(texts, texts)
    assert sizes[0] == 2 and sum(sizes) == len(texts)


def test_a_part_that_is_frozen_is_not_trained_again(translator, tmp_path):
    layer = translator.model.encoder.layers[0]
    layer.trainable = False
    expected = [weight.trainable for weight in translator.model.weights]
    translator.save(tmp_path / "saved")
    loaded = kt.Translator.load(tmp_path / "saved")
    halved = translator.with_dtype("mixed_bfloat16")
    layer.trainable = True
    assert not all(expected)
    for again in (loaded, halved):
        weights = again.model.weights
        assert [weight.trainable for weight in weights] == expected


def test_a_call_may_have_a_search_of_its_own(translator, monkeypatch):
    texts = ["the cat sees the dog", "fox", ""]
    search = kt.BeamSearch(3, num_hypotheses=2)
    own = translator(texts)
    generate = translator.model.generate

    def generate_while_another_sets(*arguments, **options):
        translator.search = kt.Sampling(num_hypotheses=5)
        return generate(*arguments, **options)

    monkeypatch.setattr(
        translator.model, "generate", generate_while_another_sets
    )
    before = translator.search
    try:
        found = translator(texts, search=search, tokens_per_batch=1)
        translator.search = before
        assert translator(texts, tokens_per_batch=1) == own
        translator.search = search
        assert translator(texts) == found
    finally:
        translator.search = before
    assert [len(hypotheses) for hypotheses in found] == [2, 2, 2]
    for wrong in ("beam", "", 0):
        with pytest.raises(TypeError, match="`search` must be a Search"):
            translator(texts, search=wrong)


def test_the_search_that_is_set_is_one(translator):
    before = translator.search
    for wrong in ("beam", kt.BeamSearch):
        with pytest.raises(TypeError, match="`search` must be a Search"):
            translator.search = wrong
    assert translator.search is before
    translator.search = None
    assert isinstance(translator.search, kt.GreedySearch)
    translator.search = before


def test_as_many_translations_as_texts_are_scored(translator):
    with pytest.raises(ValueError, match="must have the same length"):
        translator.score(["the cat"], [])


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("tokens", [1, 60, 130, 1000, 8192])
def test_batches_hold_each_sentence_once_within_the_limit(tokens, width):
    lengths = [3, 0, 17, 9, 9, 200, 1, 0, 50, 2] * 7
    batches = batches_by_length(lengths, tokens, width)
    indices = [index for batch in batches for index in batch]
    assert sorted(indices) == [i for i, length in enumerate(lengths) if length]
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        room = (longest + 50) * width
        assert len(batch) == 1 or len(batch) * room <= tokens


def test_batches_leave_room_for_long_targets():
    batches = batches_by_length([4] * 6, tokens_per_batch=1000, max_length=500)
    assert [len(batch) for batch in batches] == [2, 2, 2]


def test_batches_have_as_many_rows_as_they_may():
    batches = batches_by_length([4, 0, 5, 6, 7, 8], max_rows=2)
    assert batches == [[5, 4], [3, 2], [0]]


@pytest.mark.parametrize("rows", [[], [[]], [[], []]])
def test_no_rows_and_empty_rows_can_be_padded(rows):
    assert pad_rows(rows).shape == (len(rows), 1)
    assert not pad_rows(rows).any()


def test_text_longer_than_the_model_is_refused(other_translator):
    texts = ["the cat", "the cat " * 90]
    message = r"longer than 90 tokens. Received: text 1 with \d+"
    with pytest.raises(ValueError, match=message) as raised:
        other_translator(texts)
    assert "Split it into sentences, or pass `truncate=True`." in str(
        raised.value
    )


def test_text_longer_than_the_model_may_be_cut(other_translator, tokenizer):
    texts = ["the cat", "the cat sees the dog " * 90, ""]
    short, long, _ = tokenizer.encode(texts)
    target_ids, expected = other_translator.model.generate(
        pad_rows([[*short, 3], [*long[:89], 3]])
    )
    found, scores = other_translator(texts, return_scores=True, truncate=True)
    np.testing.assert_allclose(scores[:2], expected, atol=1e-4)
    decode = other_translator.target_tokenizer.decode
    assert found == [*decode(target_ids.tolist()), ""]
    assert other_translator(["the cat"], truncate=True) == found[:1]
    with pytest.raises(TypeError, match="`truncate` must be True or False"):
        other_translator(texts, truncate="yes")


def test_target_tokenizer_joins_the_target(other_translator, tokenizer):
    (text,) = other_translator(["the cat"])
    ids = [*tokenizer.encode("the cat"), 3]
    target_ids, _ = other_translator.model.generate([[*ids, *[0] * 5][:8]])
    assert other_translator.target_tokenizer.decode(target_ids) == [text]
    assert other_translator.target_tokenizer.vocabulary_size == 31


# Making


def test_vocabularies_of_another_size_are_refused(tokenizer, target_tokenizer):
    model = kt.Transformer(32, **SIZES)
    message = (
        "must have the vocabularies of `model`. Received: 31 source and 31 "
        "target pieces, model with 32 and 32"
    )
    with pytest.raises(ValueError, match=message):
        kt.Translator(model, target_tokenizer)
    message = "Received: 32 source and 31 target pieces, model with 32 and 32"
    with pytest.raises(ValueError, match=message):
        kt.Translator(model, tokenizer, target_tokenizer)


def test_what_is_no_model_or_tokenizer_is_refused(translator, tokenizer):
    for search in ("beam", kt.BeamSearch):
        with pytest.raises(TypeError, match="`search` must be a Search.*type"):
            kt.Translator(translator.model, translator.tokenizer, search=search)
    with pytest.raises(TypeError, match="`model` must be a Transformer.*str"):
        kt.Translator("model", tokenizer)
    with pytest.raises(TypeError, match="`tokenizer` must be a Tokenizer.*str"):
        kt.Translator(translator.model, "tokenizer")
    message = "`target_tokenizer` must be a Tokenizer.*bytes"
    with pytest.raises(TypeError, match=message):
        kt.Translator(translator.model, tokenizer, b"tokenizer")


# Saving and loading


def test_loaded_translator_translates_the_same(translator, saved):
    loaded = kt.Translator.load(str(saved))
    expected, scores = translator(TEXTS, return_scores=True)
    translations, loaded_scores = loaded(TEXTS, return_scores=True)
    assert translations == expected
    np.testing.assert_array_equal(loaded_scores, scores)
    assert loaded.target_tokenizer is loaded.tokenizer
    assert isinstance(loaded.search, kt.GreedySearch)


def test_the_search_comes_back(translator, tmp_path):
    translator.search = kt.BeamSearch(width=3, length_penalty=0.2)
    translator.save(tmp_path)
    loaded = kt.Translator.load(tmp_path).search
    assert isinstance(loaded, kt.BeamSearch)
    assert loaded.get_config() == translator.search.get_config()


def test_two_tokenizers_and_every_argument_come_back(
    other_translator, tmp_path
):
    other_translator.save(tmp_path)
    loaded = kt.Translator.load(tmp_path)
    assert loaded(TEXTS) == other_translator(TEXTS)
    assert_same(loaded, other_translator)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_dtype_policies_come_back(tokenizer, tmp_path, dtype):
    model = kt.Transformer(tokenizer.vocabulary_size, **SIZES, dtype=dtype)
    translator = kt.Translator(sharpened(model), tokenizer)
    translator.save(tmp_path)
    loaded = kt.Translator.load(tmp_path)
    assert loaded.model.dtype_policy.name == dtype
    assert loaded(TEXTS) == translator(TEXTS)


@keras.saving.register_keras_serializable(package="tests")
class LateAdapter(kt.Transformer):
    """Adds a layer that is built when it is called."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.adapter = keras.layers.Dense(self.hidden_dim)

    def encode(self, source_ids, training=None):
        return self.adapter(super().encode(source_ids, training=training))


def test_layers_that_were_added_come_back(tokenizer, tmp_path):
    model = LateAdapter(tokenizer.vocabulary_size, **SIZES)
    translator = kt.Translator(sharpened(model), tokenizer)
    translator.save(tmp_path)
    loaded = kt.Translator.load(tmp_path)
    assert_same(loaded, translator)
    assert loaded(TEXTS) == translator(TEXTS)
    halved = translator.with_dtype("bfloat16").model.adapter.kernel
    np.testing.assert_allclose(halved, model.adapter.kernel, rtol=1e-2)


def test_model_inside_of_a_layer_is_saved_as_any_other(tokenizer, tmp_path):
    class Outer(keras.layers.Layer):
        def build(self, inputs_shape):
            self.model = kt.Transformer(tokenizer.vocabulary_size, **SIZES)

    outer = Outer(name="outer")
    outer.build(None)
    assert outer.model.weights[0].path.startswith("outer/")
    translator = kt.Translator(outer.model, tokenizer)
    translator.save(tmp_path)
    assert_same(kt.Translator.load(tmp_path), translator)


def double(x):
    return 2 * x


class OwnTransformer(kt.Transformer):
    pass


class OwnSearch(kt.GreedySearch):
    pass


def test_classes_must_be_registered_to_be_saved(tokenizer, tmp_path):
    model = OwnTransformer(tokenizer.vocabulary_size, **SIZES)
    translator = kt.Translator(model, tokenizer)
    message = "`model` must be of a class .* Received: a OwnTransformer. Deco"
    with pytest.raises(ValueError, match=message):
        translator.save(tmp_path / "saved")
    with keras.saving.custom_object_scope({"OwnTransformer": OwnTransformer}):
        translator.save(tmp_path / "saved")
        loaded = kt.Translator.load(tmp_path / "saved")
        assert type(loaded.model) is OwnTransformer
        translator.search = OwnSearch()
        with pytest.raises(ValueError, match="`search` must be of a class"):
            translator.save(tmp_path / "other")


@keras.saving.register_keras_serializable(package="tests")
class SearchWithoutConfig(kt.GreedySearch):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin


@keras.saving.register_keras_serializable(package="tests")
class SearchWithDefaults(kt.GreedySearch):
    def __init__(self, margin=1.0, **kwargs):
        super().__init__(**kwargs)
        self.margin = margin


@keras.saving.register_keras_serializable(package="tests")
class SearchWithNothing(SearchWithDefaults):
    def get_config(self):
        return {}


@keras.saving.register_keras_serializable(package="tests")
class SearchWithItsConfig(SearchWithDefaults):
    def get_config(self):
        return {**super().get_config(), "margin": self.margin}


@keras.saving.register_keras_serializable(package="tests")
class WithDomains(kt.Transformer):
    """A layer of it is built by a further input alone."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.domains = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        logits = super().call(inputs, training)
        if "domain" in inputs:
            logits += self.domains(inputs["domain"])
        return logits


def test_a_model_must_come_back_to_be_saved(tokenizer, tmp_path):
    model = WithDomains(tokenizer.vocabulary_size, **SIZES)
    ids = np.array([[4, 3]])
    model({"source_ids": ids, "target_ids": ids, "domain": np.ones((1, 1, 1))})
    translator = kt.Translator(model, tokenizer)
    with pytest.raises(ValueError, match="must be built by a call .*dense"):
        translator.save(tmp_path / "saved")
    assert os.listdir(tmp_path) == []


def test_a_search_must_come_back_to_be_saved(tokenizer, tmp_path):
    model = kt.Transformer(tokenizer.vocabulary_size, **SIZES)
    translator = kt.Translator(model, tokenizer, search=SearchWithoutConfig(2))
    message = "`search` must describe what can be rec.*: SearchWithoutConfig"
    with pytest.raises(ValueError, match=message):
        translator.save(tmp_path / "saved")
    assert os.listdir(tmp_path) == []
    translator.search = SearchWithItsConfig(margin=2)
    translator.save(tmp_path / "saved")
    assert kt.Translator.load(tmp_path / "saved").search.margin == 2
    translator.search = SearchWithDefaults()
    translator.save(tmp_path / "others")
    translator.search = SearchWithNothing(forbidden_token_ids=[4])
    message = r"SearchWithNothing with forbidden_token_ids=\(4,\), .*=\(\)"
    with pytest.raises(ValueError, match=message):
        translator.save(tmp_path / "others", overwrite=True)
    translator.search = SearchWithDefaults(margin=2.5)
    message = (
        "`search` must have a `get_config` .*SearchWithDefaults with margin=2.5"
        ", which would be loaded with margin=1.0"
    )
    with pytest.raises(ValueError, match=message):
        translator.save(tmp_path / "others", overwrite=True)


@pytest.mark.parametrize(
    "activation", [lambda x: 2 * x, double, functools.partial(double)]
)
def test_model_with_a_function_of_ones_own_is_refused(
    tokenizer, tmp_path, activation
):
    model = kt.Transformer(
        tokenizer.vocabulary_size, **SIZES, activation=activation
    )
    translator = kt.Translator(model, tokenizer)
    for use in (
        lambda: translator.save(tmp_path / "saved"),
        lambda: translator.with_dtype("mixed_bfloat16"),
    ):
        with pytest.raises(ValueError, match="activations that Keras can load"):
            use()
    assert os.listdir(tmp_path) == []


def test_model_with_lora_is_refused_until_it_is_merged(tokenizer, tmp_path):
    model = kt.Transformer(tokenizer.vocabulary_size, **SIZES)
    layer = model.encoder.layers[0].self_attention.query_projection
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    translator = kt.Translator(model, tokenizer)
    for change in (translator.save, translator.with_dtype):
        with pytest.raises(ValueError, match="without LoRA.*attention/query"):
            change("bfloat16")
    model.save(tmp_path / "merged.keras")
    merged = keras.saving.load_model(tmp_path / "merged.keras")
    kt.Translator(merged, tokenizer).save(tmp_path / "merged")
    loaded = kt.Translator.load(tmp_path / "merged")
    assert loaded(TEXTS) == translator(TEXTS)


def test_model_that_diverged_is_not_written(tokenizer, tmp_path):
    model = kt.Transformer(tokenizer.vocabulary_size, **SIZES)
    model.encoder.layers[0].feed_forward.inner.bias.assign(
        np.full(SIZES["intermediate_dim"], np.nan)
    )
    translator = kt.Translator(model, tokenizer)
    for write in (
        translator.save,
        translator.export_saved_model,
        translator.export_litert,
        translator.export_ctranslate2,
    ):
        with pytest.raises(ValueError, match="finite.*inner/bias, which"):
            write(tmp_path / "written")
    assert os.listdir(tmp_path) == []


def test_saved_twice_is_the_same_translator(translator, saved, tmp_path):
    again = tmp_path / "again"
    kt.Translator.load(saved).save(again)
    assert_same(kt.Translator.load(again), translator)


def test_folder_holds_weights_tokenizer_and_description(saved):
    files = sorted(
        re.sub("[0-9a-f]{16}", "*", name) for name in contents(saved)
    )
    assert files == [
        "model-*.safetensors",
        "tokenizer-*.model",
        "translator.json",
    ]
    description = json.loads((saved / "translator.json").read_text())
    assert description["format"] == 1
    assert description["keras_transformer"] == kt.__version__


def test_saving_again_leaves_files_of_the_user(translator, tmp_path):
    translator.save(tmp_path)
    theirs = {
        "translator.json.original",
        "model-20240131.safetensors",
        ".source-notes.model.12345678",
    }
    for name in theirs:
        (tmp_path / name).write_text("precious")
    unfinished = tmp_path / ".translator.json.0123abcd"
    unfinished.write_text("{")
    translator.save(tmp_path, overwrite=True)
    assert theirs < set(os.listdir(tmp_path))
    assert not unfinished.exists()
    assert len(os.listdir(tmp_path)) == len(theirs) + 3


def test_folder_holds_no_training_state(tokenizer, tmp_path):
    model = kt.Transformer(tokenizer.vocabulary_size, **SIZES)
    translator = kt.Translator(model, tokenizer)
    model.compile("adam", "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    translator.save(tmp_path)
    weights = safetensors.numpy.load_file(weights_file(tmp_path))
    assert len(weights) == len(model.weights)
    assert sum(map(np.size, weights.values())) == model.count_params()
    description = (tmp_path / "translator.json").read_text().lower()
    assert "compile" not in description and "adam" not in description
    assert not kt.Translator.load(tmp_path).model.compiled


def test_weights_are_called_by_the_path_of_their_layers(saved):
    names = set(safetensors.numpy.load_file(weights_file(saved)))
    assert "token_embedding/embeddings" in names
    assert not any(name.startswith("transformer") for name in names)


def test_save_into_an_empty_folder(translator, tmp_path):
    translator.save(tmp_path)
    assert_same(kt.Translator.load(tmp_path), translator)


def test_save_by_a_link_to_a_folder_that_is_not_made(translator, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    translator.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert "translator.json" in os.listdir(tmp_path / "folder")


def test_save_replaces_only_what_it_is_told_to(translator, tmp_path):
    (tmp_path / "translator.json").write_text("precious")
    before = contents(tmp_path)
    message = "exists already, and nothing in it was touched.*overwrite=True"
    with pytest.raises(FileExistsError, match=message):
        translator.save(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", "more/file"])
def test_save_touches_no_folder_of_something_else(
    translator, tmp_path, name, overwrite
):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("precious")
    # Of a name that a translator has too.
    (tmp_path / "model-0123456789abcdef.safetensors").write_text("precious")
    before = contents(tmp_path)
    message = "holds something other than a translator, and nothing in it was"
    with pytest.raises(FileExistsError, match=message):
        translator.save(tmp_path, overwrite=overwrite)
    assert contents(tmp_path) == before


def test_save_replaces_what_a_killed_save_has_left(translator, tmp_path):
    (tmp_path / "model-0123456789abcdef.safetensors").write_text("half")
    with pytest.raises(FileExistsError, match="exists already, and nothing"):
        translator.save(tmp_path)
    translator.save(tmp_path, overwrite=True)
    assert_same(kt.Translator.load(tmp_path), translator)
    assert "model-0123456789abcdef.safetensors" not in contents(tmp_path)


def test_a_tokenizer_of_another_class_is_not_written(translator, tmp_path):
    class Lowercasing(kt.Tokenizer):
        def encode(self, texts):
            return super().encode([text.lower() for text in texts])

    tokenizer = Lowercasing(translator.tokenizer.model)
    other = kt.Translator(translator.model, tokenizer)
    assert other(["THE CAT"]) == translator(["the cat"])
    message = "`tokenizer` must be a Tokenizer itself.*Received: a Lowercasing"
    for write in (
        *(other.save, other.export_saved_model, other.export_litert),
        other.export_ctranslate2,
    ):
        with pytest.raises(ValueError, match=message):
            write(tmp_path / "written")
    assert not any(tmp_path.iterdir())


def test_save_touches_no_file(translator, tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
            translator.save(path, overwrite=overwrite)
    assert path.read_text() == "precious"


def test_overwrite_replaces_the_old_translator(
    translator, other_translator, saved
):
    before = set(contents(saved))
    other_translator.save(saved, overwrite=True)
    assert_same(kt.Translator.load(saved), other_translator)
    assert set(contents(saved)) & before == {"translator.json"}
    assert len(contents(saved)) == 4
    translator.save(saved, overwrite=True)
    assert_same(kt.Translator.load(saved), translator)
    assert len(contents(saved)) == 3


def test_saves_at_the_same_time_leave_one_of_them(
    translator, saved, monkeypatch
):
    """Each would remove the files of the other, as of a translator before."""
    write_file = translator_folder.write_file
    others = []

    def write_slowly(path, content):
        write_file(path, content)
        if not others:
            others.append(threading.Thread(target=save))
            others[0].start()
            others[0].join(timeout=1)  # it waits for this one

    def save():
        translator.save(saved, overwrite=True)

    monkeypatch.setattr(translator_folder, "write_file", write_slowly)
    save()
    others[0].join()
    kt.Translator.load(saved)
    weights = [name for name in os.listdir(saved) if "safetensors" in name]
    assert len(weights) == 1


def test_a_file_system_without_locks_is_no_obstacle(
    translator, tmp_path, monkeypatch
):
    def flock(file, operation):
        raise OSError(number, "flock")

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    number = errno.ENOLCK
    translator.save(tmp_path / "saved")
    kt.Translator.load(tmp_path / "saved")
    number = errno.EIO
    with pytest.raises(OSError, match="flock"):
        translator.save(tmp_path / "other")


def test_overwrite_leaves_the_files_of_others(translator, saved):
    (saved / "training").mkdir()
    (saved / "training" / "log.csv").write_text("epoch")
    (saved / "notes.txt").write_text("precious")
    translator.save(saved, overwrite=True)
    assert (saved / "notes.txt").read_text() == "precious"
    assert (saved / "training" / "log.csv").read_text() == "epoch"


def full_disk_at(monkeypatch, number):
    """Makes the disk full in the middle of the file of this number."""
    fsync = os.fsync
    calls = []

    def full(descriptor):
        status = os.fstat(descriptor)
        calls.extend([1] * stat.S_ISREG(status.st_mode))
        if len(calls) == number:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            os.truncate(path, status.st_size // 2)
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", full)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_save_that_fails_leaves_the_old_translator_as_it_was(
    translator, other_translator, saved, monkeypatch, number
):
    before = contents(saved)
    full_disk_at(monkeypatch, number)
    with pytest.raises(OSError, match="No space left on device"):
        other_translator.save(saved, overwrite=True)
    monkeypatch.undo()
    assert_same(kt.Translator.load(saved), translator)
    assert contents(saved) == before
    other_translator.save(saved, overwrite=True)
    assert len(contents(saved)) == 4


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_first_save_that_fails_can_be_tried_again(
    other_translator, tmp_path, monkeypatch, number
):
    path = tmp_path / "en-de"
    full_disk_at(monkeypatch, number)
    with pytest.raises(OSError, match="No space left on device"):
        other_translator.save(path)
    monkeypatch.undo()
    assert not list(tmp_path.glob("en-de/*"))
    other_translator.save(path)
    assert_same(kt.Translator.load(path), other_translator)


def test_a_full_disk_is_told_where_nothing_can_be_removed(
    other_translator, saved, monkeypatch
):
    def fail(path):
        raise PermissionError(errno.EROFS, "Read-only file system", path)

    full_disk_at(monkeypatch, 1)
    monkeypatch.setattr(translator_folder.os, "remove", fail)
    with pytest.raises(OSError, match="No space left"):
        other_translator.save(saved, overwrite=True)


def test_overwrite_removes_what_a_killed_save_left(translator, saved):
    expected = len(contents(saved))
    for name in (
        "model-0123abcd4567cdef.safetensors",
        ".model-4567cdef0123abcd.safetensors.89abcdef",
        "tokenizer-0123abcd4567cdef.model",
        ".translator.json.89abcdef",
    ):
        (saved / name).write_bytes(b"half")
    translator.save(saved, overwrite=True)
    assert len(contents(saved)) == expected


@pytest.mark.slow
def test_a_save_that_is_killed_leaves_a_translator(
    translator, saved, tmp_path, run_program
):
    # More moments than there are syncs, renames and removals.
    folders = [tmp_path / f"killed at {moment}" for moment in range(1, 15)]
    for folder in folders:
        shutil.copytree(saved, folder)
    output = run_program("save_until_killed", *folders).stdout
    killed = [line == str(int(signal.SIGKILL)) for line in output.split()]
    assert killed.count(True) >= 9 and killed[-1] is False
    old = translator.model.trainable_variables[0].numpy()
    ages = []
    for folder in folders:
        loaded = kt.Translator.load(folder)
        weights = loaded.model.trainable_variables[0].numpy()
        is_new = bool(np.any(weights != old))
        np.testing.assert_array_equal(weights, old + is_new)
        ages.append(is_new)
    # Old until the last file is in its place, new from then on.
    assert ages == sorted(ages) and len(set(ages)) == 2


# Damage


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such folder: .*missing"):
        kt.Translator.load(tmp_path / "missing")


def test_file_is_no_folder(tmp_path):
    for name, message in (
        ("file", "No such folder: .* is a file.$"),
        ("model.keras", r"is a file. `Translator\(keras.saving.load_model"),
        ("model.tflite", "is a file. A LiteRT file can only translate and"),
    ):
        (tmp_path / name).touch()
        with pytest.raises(FileNotFoundError, match=message):
            kt.Translator.load(tmp_path / name)


def test_folder_that_holds_no_translator(tmp_path):
    message = "must hold a translator. Received: .*has no translator.json"
    with pytest.raises(ValueError, match=f"{message}.$"):
        kt.Translator.load(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ValueError, match=f"{message}. It is a SavedModel"):
        kt.Translator.load(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "\x00" * 100,
        "[]",
        "null",
        '"format"',
        '{"format": 1}',
        '{"format": 1, "files": {}}',
        '{"format": 1, "files": {}, "model": {}, "search": {}}',
        '{"format": 1, "files": {"weights": 1, "tokenizer": 1,'
        ' "target_tokenizer": 1}, "model": {"class_name": "Transformer"},'
        ' "search": {"class_name": "GreedySearch"}}',
        b"\xff\xfe{\x00}\x00",
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_damaged_description(saved, text):
    content = text if isinstance(text, bytes) else text.encode()
    (saved / "translator.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"translator\.json|must be of format"):
        kt.Translator.load(saved)


@pytest.mark.parametrize("changes", [{"model": {}}, {"search": None}])
def test_description_without_a_part(saved, changes):
    edit_description(saved, **changes)
    with pytest.raises(ValueError, match="translator.json is damaged.*en-de"):
        kt.Translator.load(saved)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("model", {"config": {"vocabulary_size": 13, "width": 1}}),
        ("model", {"config": {"dtype": 3}}),
        ("model", {"class_name": "Other", "registered_name": "Other"}),
        ("search", {"config": {"width": "wide"}}),
        ("search", {"registered_name": "Other"}),
    ],
)
def test_description_of_what_cannot_be_made(saved, name, changes):
    with open(saved / "translator.json") as file:
        part = json.load(file)[name]
    edit_description(saved, **{name: {**part, **changes}})
    message = r"translator\.json in .*en-de must describe what can be recreated"
    with pytest.raises(ValueError, match=message):
        kt.Translator.load(saved)


@pytest.mark.parametrize(
    ("change", "kind"),
    [(("model", "search"), "Transformer"), (("search", "model"), "Search")],
)
def test_description_of_another_kind(saved, change, kind):
    description = json.loads((saved / "translator.json").read_text())
    part, other = change
    edit_description(saved, **{part: description[other]})
    with pytest.raises(ValueError, match=f"must describe a {kind}. Received"):
        kt.Translator.load(saved)


def test_a_folder_may_be_named_in_bytes(saved):
    assert kt.Translator.load(os.fsencode(saved)).model.built


def test_description_cut_short(saved):
    path = saved / "translator.json"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="translator.json is damaged.*en-de"):
        kt.Translator.load(saved)


@pytest.mark.parametrize("found", [2, 0, None, "1"])
def test_other_format_is_refused(saved, found):
    edit_description(saved, format=found)
    message = f"of format 1. Received: .*en-de' of format {found!r}. .*newer"
    with pytest.raises(ValueError, match=message):
        kt.Translator.load(saved)


def test_missing_weights(saved):
    weights_file(saved).unlink()
    message = "No such file: .*safetensors"
    with pytest.raises(FileNotFoundError, match=message):
        kt.Translator.load(saved)


@pytest.mark.parametrize("name", ["../weights", "/dev/zero", "..", ""])
def test_files_are_those_of_the_folder(saved, name):
    description = json.loads((saved / "translator.json").read_text())
    edit_description(
        saved,
        files=description["files"] | {"weights": name},
        sha256=description["sha256"] | {name: "0"},
    )
    message = f"must name files of its .*en-de' with '{re.escape(name)}' as w"
    with pytest.raises(ValueError, match=message):
        kt.Translator.load(saved)


def test_what_is_read_is_a_file(saved):
    for path in (weights_file(saved), saved / "translator.json"):
        path.unlink()
        os.mkfifo(path)
        message = f"^'.*{path.name}' must be a file. Received: a folder, [^:]*$"
        with pytest.raises(ValueError, match=message):
            kt.Translator.load(saved)


@pytest.mark.parametrize("dtype", ["int32", "complex64"])
def test_weights_of_other_numbers_are_refused(saved, dtype):
    path = weights_file(saved)
    weights = safetensors.numpy.load_file(path)
    name = min(weights)
    weights[name] = weights[name].astype(dtype)
    replace_file(path, safetensors.numpy.save(weights))
    message = f"Received: {name} of {dtype}, the model has float32"
    with pytest.raises(ValueError, match=message):
        kt.Translator.load(saved)


def test_damaged_weights_are_named(saved):
    path = weights_file(saved)
    replace_file(path, path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"{path.name} is damaged: "):
        kt.Translator.load(saved)


def test_missing_tokenizer(saved):
    next(saved.glob("tokenizer-*.model")).unlink()
    with pytest.raises(FileNotFoundError, match="No such file: .*tokenizer-"):
        kt.Translator.load(saved)


@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
def test_truncated_weights(saved, share):
    path = weights_file(saved)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    message = "must be what was saved. Received: .*safetensors"
    with pytest.raises(ValueError, match=message):
        kt.Translator.load(saved)


def test_a_changed_bit_of_the_weights_is_named(saved):
    path = weights_file(saved)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    message = (
        f"must be what was saved. Received: .*{path.name}.*translator.json"
    )
    with pytest.raises(ValueError, match=message):
        kt.Translator.load(saved)


def test_truncated_tokenizer(saved):
    (path,) = saved.glob("tokenizer-*.model")
    path.write_bytes(path.read_bytes()[:50])
    message = "must be what was saved. Received: .*tokenizer-.* of 50 bytes"
    with pytest.raises(ValueError, match=message):
        kt.Translator.load(saved)


def test_weights_of_another_size_name_the_first_that_differs(saved):
    path = weights_file(saved)
    weights = safetensors.numpy.load_file(path)
    name = next(name for name in weights if name.endswith("inner/kernel"))
    weights[name] = np.zeros((3, 7), "float32")
    replace_file(path, safetensors.numpy.save(weights))
    message = re.escape(f"Received: {name} of shape (3, 7), the model has (")
    with pytest.raises(ValueError, match=message):
        kt.Translator.load(saved)


def test_weights_that_are_not_there_are_named(saved):
    path = weights_file(saved)
    weights = safetensors.numpy.load_file(path)
    del weights["token_embedding/embeddings"]
    replace_file(path, safetensors.numpy.save(weights))
    message = (
        r"Received: none for .*token_embedding/embeddings, which the model has"
    )
    with pytest.raises(ValueError, match=message):
        kt.Translator.load(saved)


def test_tokenizer_of_another_size_is_refused(saved, target_tokenizer):
    (path,) = saved.glob("tokenizer-*.model")
    replace_file(path, target_tokenizer.model)
    with pytest.raises(ValueError, match="must have the vocabularies of"):
        kt.Translator.load(saved)


@pytest.mark.parametrize(
    "name",
    ["save", "export_saved_model", "export_litert", "export_ctranslate2"],
)
def test_what_is_there_is_replaced_for_a_flag_alone(translator, tmp_path, name):
    (tmp_path / "there").write_text("precious")
    with pytest.raises(TypeError, match="`overwrite` must be True or False"):
        getattr(translator, name)(tmp_path / "there", overwrite="no")
    assert (tmp_path / "there").read_text() == "precious"


@pytest.mark.slow
def test_a_fork_is_told_what_to_do(run_program):
    run_program("translate_in_a_fork", KERAS_BACKEND="tensorflow")

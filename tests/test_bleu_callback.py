"""BLEU in the logs of `fit`."""

import csv
import io
import math
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import bleu_callback
from keras_transformer.system import progress

LINES = ["one two three two", "two | three", "three one two one", "two"] * 4
SIZES = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
}


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.train(LINES, vocabulary_size=15, verbose=0)


@pytest.fixture
def translator(tokenizer):
    model = kt.Transformer(tokenizer.vocabulary_size, **SIZES)
    model.compile(
        keras.optimizers.Adam(0.01),
        kt.LabelSmoothedCrossentropy(),
        jit_compile=False,
    )
    return kt.Translator(model, tokenizer)


def fit(translator, *callbacks, epochs=3):
    dataset = kt.translation_dataset(
        LINES,
        LINES,
        translator.tokenizer,
        tokens_per_batch=64,
        max_length=16,
        verbose=0,
    )
    return translator.model.fit(
        dataset, epochs=epochs, verbose=0, callbacks=list(callbacks)
    ).history


def bleu_of(translator, monkeypatch, scores):
    """Lets the translator score what the test wants, epoch after epoch."""
    monkeypatch.setattr(
        bleu_callback,
        "corpus_scores",
        lambda *_, **__: kt.CorpusScores(next(scores), 0.0, ""),
    )
    return kt.BleuCallback(translator, LINES[:2], LINES[:2])


@pytest.mark.slow
def test_it_is_the_score_of_the_weights_in_the_model(translator):
    references = [line.upper() for line in LINES]
    options = {"lowercase": True, "tokenize": "none"}
    callback = kt.BleuCallback(translator, LINES, references, **options)
    history = fit(translator, callback, epochs=30)
    scores = kt.corpus_scores(translator(LINES), references, **options)
    assert history["val_bleu"][-1] == scores.bleu > 1
    assert len({*history["val_bleu"]}) > 1


def test_text_that_is_too_long_is_named_before_training(translator):
    callback = kt.BleuCallback(translator, ["a", "the cat " * 3000], ["a"] * 2)
    message = "lines of `sources` must not be longer than 4096 .*: line 2 w"
    with pytest.raises(ValueError, match=message):
        fit(translator, callback, epochs=1)
    assert int(translator.model.optimizer.iterations) == 0


@pytest.mark.slow
def test_it_scores_the_averages_that_come_before_it(translator):
    averaging = kt.WeightAveraging(decay=0.5)
    callback = kt.BleuCallback(translator, LINES, LINES)
    seen = []
    translator_call = translator.__class__.__call__
    first = translator.model.trainable_variables[0]

    class Spy(kt.Translator):
        def __call__(self, texts):
            seen.append(np.array(first))
            return translator_call(self, texts)

    translator.__class__ = Spy
    fit(translator, averaging, callback)
    np.testing.assert_allclose(seen[-1], averaging.averages()[0])
    averaging.restore()
    assert np.abs(seen[-1] - np.array(first)).max() > 1e-4


def test_callbacks_behind_it_read_the_score(translator, monkeypatch, tmp_path):
    callback = bleu_of(translator, monkeypatch, iter([5.0, 7.0, 6.0, 6.0, 8.0]))
    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=2)
    save = keras.callbacks.ModelCheckpoint(
        tmp_path / "{epoch}.weights.h5",
        monitor="val_bleu",
        mode="max",
        save_best_only=True,
        save_weights_only=True,
    )
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    history = fit(translator, callback, stop, save, log, epochs=9)
    assert history["val_bleu"] == [5.0, 7.0, 6.0, 6.0]
    assert sorted(path.name for path in tmp_path.glob("*.h5")) == [
        "1.weights.h5",
        "2.weights.h5",
    ]
    with open(tmp_path / "log.csv") as file:
        rows = [float(row["val_bleu"]) for row in csv.DictReader(file)]
    assert rows == history["val_bleu"]


@pytest.mark.slow
def test_epochs_in_between_have_none(translator, monkeypatch):
    callback = bleu_of(translator, monkeypatch, iter([5.0, 7.0]))
    callback.every = 2
    scores = fit(translator, callback, epochs=5)["val_bleu"]
    assert scores == [-math.inf, 5.0, -math.inf, 7.0, -math.inf]


@pytest.mark.slow
def test_epochs_in_between_are_no_improvement(translator, monkeypatch):
    callback = bleu_of(translator, monkeypatch, iter([5.0, 7.0, 6.0]))
    callback.every = 2
    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=3)
    history = fit(translator, callback, stop, epochs=9)
    assert stop.best == 7.0 and len(history["val_bleu"]) == 7


def test_a_training_that_diverges_ends_as_fit_has_it(translator, capsys):
    callback = kt.BleuCallback(translator, LINES[:2], LINES[:2])
    translator.model.optimizer.learning_rate = math.inf
    history = fit(translator, callback, keras.callbacks.TerminateOnNaN())
    assert history["val_bleu"] == [-math.inf] * len(history["loss"])
    assert len(history["loss"]) < 3
    line = "Epoch 1 has no BLEU: the weights are not finite numbers.\n"
    assert capsys.readouterr().err.startswith(line)


def test_one_string_is_not_many(translator):
    for arguments in (("abc", LINES[:3]), (LINES[:3], "abc")):
        with pytest.raises(TypeError, match="must be a sequence of strings"):
            kt.BleuCallback(translator, *arguments)
        with pytest.raises(TypeError, match="must be a sequence of strings"):
            kt.corpus_scores(*arguments)


@pytest.mark.slow
def test_the_best_of_several_hypotheses_is_scored(translator):
    translator.search = kt.BeamSearch(width=3, num_hypotheses=2)
    callback = kt.BleuCallback(translator, LINES, LINES)
    scores = fit(translator, callback, epochs=1)["val_bleu"]
    translator.search = kt.BeamSearch(width=3)
    assert scores == [kt.corpus_scores(translator(LINES), LINES).bleu]


@pytest.mark.slow
def test_samples_are_printed_and_written(translator, capsys, tmp_path):
    callback = kt.BleuCallback(
        translator, LINES, LINES, samples=2, log_dir=tmp_path
    )
    fit(translator, callback, epochs=1)
    translations = translator(LINES[:2])
    shown = "".join(
        f"\n  {source}\n  -> {translation}\n"
        for source, translation in zip(LINES, translations, strict=False)
    )
    assert capsys.readouterr().out == shown
    (path,) = tmp_path.iterdir()
    texts = [
        value.tensor.string_val[0].decode()
        for record in tf.data.TFRecordDataset(str(path))
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value
    ]
    assert len(texts) == 1
    *_, last = texts[0].splitlines()
    escaped = translations[1].replace("|", r"\|")
    assert last == rf"two \| three | two \| three | {escaped}"


def test_samples_are_printed_in_whatever_codes_there_are(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="iso-8859-1")
    monkeypatch.setattr(sys, "stdout", output)
    progress.print_sample("Bäume \u2047", "\u2047 trees")
    expected = "\n  Bäume ?\n  -> ? trees\n"
    assert output.buffer.getvalue().decode("iso-8859-1") == expected


def test_arguments_out_of_range(translator):
    for arguments, message in (
        ({"references": LINES[1:]}, "the same length.*Received: 16 and 15"),
        ({"sources": [], "references": []}, "`sources` must not be empty"),
        ({"every": 0}, "`every` must be at least 1.*every=0"),
        ({"samples": -1}, "`samples` must not be negative.*samples=-1"),
    ):
        options = {"sources": LINES, "references": LINES, **arguments}
        with pytest.raises(ValueError, match=message):
            kt.BleuCallback(translator, **options)
    with pytest.raises(TypeError, match="must be a Translator.*Transformer"):
        kt.BleuCallback(translator.model, LINES, LINES)


def test_a_tokenizer_that_is_none_is_found_before_training(translator):
    with pytest.raises(ValueError, match="`tokenize` must be one of"):
        kt.BleuCallback(translator, ["cat"], ["Katze"], tokenize="v13a")


def test_a_log_that_cannot_be_written_is_found_before_training(
    translator, tmp_path
):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
        kt.BleuCallback(translator, LINES, LINES, log_dir=path)


def test_another_model_is_refused(translator, tokenizer):
    other = kt.Translator(
        kt.Transformer(tokenizer.vocabulary_size, **SIZES), tokenizer
    )
    with pytest.raises(ValueError, match="the model that `fit` trains"):
        fit(translator, kt.BleuCallback(other, LINES, LINES))

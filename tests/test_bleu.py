"""Scores equal sacreBLEU's own."""

import types
import urllib.error

import numpy as np
import pytest
import sacrebleu

import keras_transformer as kt

REFERENCES = [
    "Die Katze sitzt auf der Matte.",
    "Am Montag fährt der Zug um halb acht nach Köln.",
    "Wie viel ist sieben mal acht?",
]
TRANSLATIONS = [
    "Die Katze liegt auf der Matte.",
    "am Montag fährt ein Zug um acht nach Köln.",
    "Wie viel ist sieben plus acht?",
]


def test_scores_equal_those_of_sacrebleu():
    scores = kt.corpus_scores(TRANSLATIONS, REFERENCES)
    expected_bleu = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES])
    expected_chrf = sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES])
    assert scores.bleu == pytest.approx(expected_bleu.score, abs=1e-9)
    assert scores.chrf == pytest.approx(expected_chrf.score, abs=1e-9)
    assert 0 < scores.bleu < scores.chrf < 100


def test_several_references_equal_those_of_sacrebleu():
    several = [REFERENCES, TRANSLATIONS[:2] + REFERENCES[2:]]
    scores = kt.corpus_scores(TRANSLATIONS, several)
    expected_bleu = sacrebleu.corpus_bleu(TRANSLATIONS, several)
    expected_chrf = sacrebleu.corpus_chrf(TRANSLATIONS, several)
    assert scores.bleu == pytest.approx(expected_bleu.score, abs=1e-9)
    assert scores.chrf == pytest.approx(expected_chrf.score, abs=1e-9)
    assert scores.bleu > kt.corpus_scores(TRANSLATIONS, REFERENCES).bleu
    assert scores.signature.startswith("nrefs:2|")
    assert kt.corpus_scores(TRANSLATIONS, several[:1]) == kt.corpus_scores(
        TRANSLATIONS, REFERENCES
    )


def test_lowercase_ignores_case():
    exact = kt.corpus_scores(TRANSLATIONS, REFERENCES)
    lower = kt.corpus_scores(TRANSLATIONS, REFERENCES, lowercase=True)
    expected = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES], lowercase=True)
    assert lower.bleu == pytest.approx(expected.score, abs=1e-9)
    assert lower.bleu > exact.bleu


def test_lowercase_is_a_flag():
    with pytest.raises(TypeError, match="`lowercase` must be True or False"):
        kt.corpus_scores(TRANSLATIONS, REFERENCES, lowercase="no")


def test_tokenizers_are_those_of_sacrebleu():
    message = "`tokenize` must be one of 'none', .*Received: tokenize=.*13a"
    for tokenize in ("v13a", ["13a"]):
        with pytest.raises(ValueError, match=message):
            kt.corpus_scores(TRANSLATIONS, REFERENCES, tokenize=tokenize)


def test_what_cannot_be_downloaded_is_named(monkeypatch):
    def download(**_):
        raise urllib.error.URLError("no network")

    download.TOKENIZERS = sacrebleu.BLEU.TOKENIZERS
    monkeypatch.setattr(sacrebleu, "BLEU", download)
    message = "not download .*tokenize='flores200': .*no network.*'13a', needs"
    with pytest.raises(OSError, match=message):
        kt.corpus_scores(TRANSLATIONS, REFERENCES, tokenize="flores200")


def test_tokenize_is_passed_on():
    scores = kt.corpus_scores(TRANSLATIONS, REFERENCES, tokenize="none")
    expected = sacrebleu.corpus_bleu(
        TRANSLATIONS, [REFERENCES], tokenize="none", force=True
    )
    assert scores.bleu == pytest.approx(expected.score, abs=1e-9)
    assert "tok:none" in scores.signature


def test_signature_says_how_bleu_was_computed():
    signature = kt.corpus_scores(TRANSLATIONS, REFERENCES).signature
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in signature
    assert f"version:{sacrebleu.__version__}" in signature
    lower = kt.corpus_scores(TRANSLATIONS, REFERENCES, lowercase=True)
    assert "case:lc" in lower.signature


def test_equal_text_scores_100():
    scores = kt.corpus_scores(REFERENCES, REFERENCES)
    assert (scores.bleu, scores.chrf) == (100, 100)


def test_scores_are_not_rounded_twice(monkeypatch):
    score = types.SimpleNamespace(score=39.60504)  # not 39.605, which is 39.60
    for metric in (sacrebleu.BLEU, sacrebleu.CHRF):
        monkeypatch.setattr(metric, "corpus_score", lambda *_: score)
    monkeypatch.setattr(sacrebleu.BLEU, "get_signature", lambda _: "")
    scores = kt.corpus_scores(TRANSLATIONS, REFERENCES)
    assert f"{scores.bleu:.2f} {scores.chrf:.2f}" == "39.61 39.61"


def test_empty_translations_score_0():
    scores = kt.corpus_scores([""] * 3, REFERENCES)
    assert (scores.bleu, scores.chrf) == (0, 0)


def test_any_iterable_of_strings_is_scored():
    scores = kt.corpus_scores(iter(TRANSLATIONS), tuple(REFERENCES))
    assert scores == kt.corpus_scores(TRANSLATIONS, REFERENCES)


def test_unequal_counts_are_named():
    message = "the same length. Received: 3 and 2"
    with pytest.raises(ValueError, match=message):
        kt.corpus_scores(TRANSLATIONS, REFERENCES[:2])
    with pytest.raises(ValueError, match=message):
        kt.corpus_scores(TRANSLATIONS, [REFERENCES, REFERENCES[:2]])


def test_references_may_be_arrays():
    found = kt.corpus_scores(
        np.array(TRANSLATIONS), [np.array(REFERENCES), TRANSLATIONS]
    )
    assert found == kt.corpus_scores(TRANSLATIONS, [REFERENCES, TRANSLATIONS])
    message = "`references` .* of type ndarray and shape"
    with pytest.raises(TypeError, match=message):
        kt.corpus_scores(TRANSLATIONS, np.array([REFERENCES, REFERENCES]))


@pytest.mark.parametrize(
    "references, message",
    [
        (([*REFERENCES], "abc"), r"Received: \['Die .* of type list"),
        ([["a", "b", "c"], ["a", "b", None]], r"`references\[1\]` .*: None"),
    ],
)
def test_references_must_be_strings(references, message):
    with pytest.raises(TypeError, match=message):
        kt.corpus_scores(TRANSLATIONS, references)


def test_nothing_to_score_is_an_error():
    message = "`references` must not be empty. Received: none"
    for references in ([], [[]], [[], []]):
        with pytest.raises(ValueError, match=message):
            kt.corpus_scores([], references)


def test_scores_are_equal_where_their_values_are():
    assert kt.CorpusScores(1.0, 2.0, "s") == kt.CorpusScores(1.0, 2.0, "s")

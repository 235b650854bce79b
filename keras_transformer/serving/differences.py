"""Where two sets of translations differ, and by how much to the model."""

import dataclasses
import itertools
import math
import re

import keras
import numpy as np

from keras_transformer.pieces import SPACE
from keras_transformer.pieces import UNKNOWN_TEXT
from keras_transformer.pieces import end_sources
from keras_transformer.pieces import end_targets
from keras_transformer.search import BeamSearch
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where a translation of an export differs from the translator's.

    Attributes:
        line: Number of the line, from 1.
        source: The line.
        expected: The translator's translation.
        found: The export's translation.
        position: Number of tokens that both begin with; without the end token
            where all are the same.
        expected_token: The translator's token after them, `</s>` at the end.
        found_token: The export's token after them.
        expected_score: Log-probability of `expected`, in nats, as the
            translator's model computes it.
        found_score: Log-probability of `found`, computed likewise.
        token_gap: Log-probability of `expected_token` minus that of
            `found_token`, in nats; negative where the model finds the export's
            more probable, as happens in beam search.
        gap: Log-probability of `expected` minus that of `found`, in nats per
            token; negative where the model finds the export's more probable.

    Both gaps are infinite where the model cannot tell: a text is too long for
    it, or the texts have the same tokens.
    """

    line: int
    source: str
    expected: str
    found: str
    position: int
    expected_token: str
    found_token: str
    expected_score: float
    found_score: float
    token_gap: float
    gap: float

    @property
    def severity(self) -> float:
        """The smaller gap, in nats: what is compared with the tolerance.

        A more probable token is no excuse: where the translator's search does
        not choose it, the export's must not either.
        """
        return min(abs(self.token_gap), self.gap)


def differences_of(translator, lines, expected, found) -> list[Difference]:
    """Compares translations of lines, and has the model judge them.

    Args:
        translator: The `Translator`.
        lines: The lines, `B` of them.
        expected: The translator's translation of each, or `K` of them.
        found: The export's, likewise.

    Returns:
        A `Difference` for each line that has one, in order: of several
        hypotheses, the one that differs most.
    """
    unequal = [
        (index, pair)
        for index, outputs in enumerate(zip(expected, found, strict=True))
        for pair in _unequal(*outputs)
    ]
    return [
        max(of_a_line, key=lambda x: x.severity)
        for _, of_a_line in itertools.groupby(
            _judged(translator, lines, unequal), key=lambda x: x.line
        )
    ]


def _unequal(expected, found):
    """The hypotheses of a line that differ, in pairs."""
    if isinstance(expected, str):
        expected, found = [expected], [found]
    pairs = zip(expected, found, strict=True)
    return [(one, other) for one, other in pairs if one != other]


def score_gap(translator, expected, found, expected_scores, scores):
    """The largest difference between scores of the same text, per token.

    Of log-probabilities: what a beam search divided by its length penalty is
    multiplied by it again.
    """
    shape = (len(expected), -1)
    texts = np.reshape(np.array(expected, object), shape)
    is_same = texts == np.reshape(np.array(found, object), shape)
    expected_scores, scores = (
        np.reshape(x, shape)[is_same] for x in (expected_scores, scores)
    )
    # Missing hypotheses have infinite scores, on both sides.
    unequal = expected_scores != scores
    gaps = np.abs(expected_scores[unequal] - scores[unequal])
    rows = _tokens_of(translator, [*texts[is_same][unequal]])
    lengths = np.array([len(row) for row in rows])
    if isinstance(translator.search, BeamSearch):
        penalty = translator.search.penalty(lengths)
        gaps = gaps * keras.ops.convert_to_numpy(penalty)
    return float(np.max(gaps / lengths, initial=0.0))


def _judged(translator, lines, unequal):
    """Makes the difference of each unequal pair, as the model judges it."""
    sources = [lines[index] for index, _ in unequal]
    sides = [
        _scored(translator, sources, [pair[side] for _, pair in unequal])
        for side in (0, 1)
    ]
    return [
        _difference(index + 1, lines[index], pair, expected, found)
        for (index, pair), expected, found in zip(unequal, *sides, strict=True)
    ]


def _scored(translator, sources, texts):
    """The tokens of each text, and the log-probability of each."""
    rows = _tokens_of(translator, texts)
    # The model cannot score a text that is longer than it takes.
    longest = translator.longest_source
    is_scored = [len(row) <= longest for row in rows]
    _, scores = translator.score_rows(
        end_sources(translator.encode(sources)),
        [
            row if known else row[-1:]
            for row, known in zip(rows, is_scored, strict=True)
        ],
    )
    pieces = translator.target_tokenizer.pieces
    return [
        (
            [pieces[token] for token in row],
            of_tokens if known else np.full(len(row), -np.inf),
        )
        for row, of_tokens, known in zip(rows, scores, is_scored, strict=True)
    ]


def _tokens_of(translator, texts):
    """The tokens of translations, lists of ids with their end tokens."""
    tokenizer = translator.target_tokenizer
    rows = tokenizer.encode(texts)
    for index, text in enumerate(texts):
        if tokenizer.decode(rows[index]) != text:
            rows[index] = _with_spaces(tokenizer, text)
    return end_targets(rows)


def _with_spaces(tokenizer, text):
    """The tokens of a text with one for each space that encoding leaves out."""
    if SPACE not in tokenizer.pieces:
        return tokenizer.encode(text)
    space = [tokenizer.pieces.index(SPACE)]
    ids = []
    # A text has no space where its first piece has one.
    for spaces, word in re.findall(
        f"( *?)({UNKNOWN_TEXT}|[^ ]+|$)", f" {text}"
    ):
        if word == UNKNOWN_TEXT:
            ids += [*(space * len(spaces)), UNKNOWN_TOKEN_ID]
            continue
        tokens = tokenizer.encode(word)
        if not spaces and tokens[:1] == space:  # behind an unknown token
            tokens = tokens[1:]
        elif word:  # its first piece has a space too
            spaces = spaces[1:]
        ids += space * len(spaces) + tokens
    return ids


def _difference(line, source, texts, expected, found):
    (tokens, scores), (found_tokens, found_scores) = expected, found
    are_same = tokens == found_tokens
    shorter = min(len(tokens), len(found_tokens))
    position = next(
        (i for i in range(shorter) if tokens[i] != found_tokens[i]), shorter - 1
    )
    return Difference(
        line=line,
        source=source,
        expected=texts[0],
        found=texts[1],
        position=position,
        expected_token=tokens[position],
        found_token=found_tokens[position],
        expected_score=float(np.sum(scores)),
        found_score=float(np.sum(found_scores)),
        token_gap=_gap(scores[position], found_scores[position], are_same),
        gap=_gap(np.mean(scores), np.mean(found_scores), are_same),
    )


def _gap(expected, found, are_same):
    # What the model cannot score or tell apart is beyond any tolerance.
    if are_same or -math.inf in (expected, found):
        return math.inf
    return float(expected - found)

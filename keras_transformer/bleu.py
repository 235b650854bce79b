"""BLEU and chrF of translations, as sacreBLEU computes them."""

import dataclasses

import sacrebleu

from keras_transformer.checks import check_as_many
from keras_transformer.checks import check_choice
from keras_transformer.checks import check_flag
from keras_transformer.checks import check_texts
from keras_transformer.checks import is_sequence

# Decimal places of scores: few enough that 100 is 100 and not a little more,
# enough that rounding them once more gives what rounding once would.
PLACES = 10


@dataclasses.dataclass(frozen=True)
class CorpusScores:
    """Scores of a set of translations.

    Attributes:
        bleu: BLEU points, 0 to 100.
        chrf: chrF2 points, 0 to 100.
        signature: How sacreBLEU computed BLEU, to quote beside it.
    """

    bleu: float
    chrf: float
    signature: str


def bleu_metric(lowercase: bool, tokenize: str) -> sacrebleu.BLEU:
    """Makes the metric.

    Raises:
        OSError: If sacreBLEU cannot download what the tokenizer needs.
        RuntimeError: If a library that it needs is not installed.
        TypeError: If `lowercase` is not `True` or `False`.
        ValueError: If there is no such tokenizer.
    """
    check_flag(lowercase=lowercase)
    check_choice([*sacrebleu.BLEU.TOKENIZERS], tokenize=tokenize)
    try:
        return sacrebleu.BLEU(
            lowercase=lowercase,
            tokenize=tokenize,
            force=tokenize == "none",  # no warning that the text is tokenised
        )
    except OSError as error:
        raise OSError(
            "sacreBLEU could not download what it needs for "
            f"tokenize={tokenize!r}: {error}. It downloads this once; another "
            "`tokenize`, such as '13a', needs no network."
        ) from error


def corpus_scores(
    translations, references, lowercase: bool = False, tokenize: str = "13a"
) -> CorpusScores:
    """Scores translations against one reference each, or several.

    Args:
        translations: Strings, detokenised.
        references: Strings, as many; or a list of such lists or arrays, where
            each translation has several references.
        lowercase: Whether case does not count.
        tokenize: sacreBLEU's tokenizer; `"none"` for text that is tokenised
            already.

    Raises:
        TypeError: If anything but strings is found, or `lowercase` is not
            `True` or `False`.
        OSError: If sacreBLEU cannot download what the tokenizer needs.
        RuntimeError: If a library that it needs is not installed.
        ValueError: If the numbers of strings differ, there are none, or
            sacreBLEU has no such tokenizer.

    Example:
    >>> corpus_scores(["ein Haus am See"], ["ein Haus am See"]).bleu
    100.0
    """
    translations = check_texts("translations", translations)
    references = _by_reference(references)
    for texts in references:
        check_as_many(translations=translations, references=texts)
        if not texts:
            raise ValueError("`references` must not be empty. Received: none.")
    bleu = bleu_metric(lowercase, tokenize)
    chrf = sacrebleu.CHRF(lowercase=lowercase)
    return CorpusScores(
        bleu=round(bleu.corpus_score(translations, references).score, PLACES),
        chrf=round(chrf.corpus_score(translations, references).score, PLACES),
        signature=str(bleu.get_signature()),
    )


def _by_reference(references):
    """Returns a list of texts for each reference that a translation has."""
    if isinstance(references, (list, tuple)) and references:
        if all(map(is_sequence, references)):
            return [
                check_texts(f"references[{index}]", texts)
                for index, texts in enumerate(references)
            ]
    return [check_texts("references", references)]

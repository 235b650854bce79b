"""Learning a vocabulary from text, with SentencePiece."""

import io
import random
import re

import sentencepiece

from keras_transformer.checks import check_choice
from keras_transformer.checks import check_flag
from keras_transformer.checks import check_number
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_texts
from keras_transformer.pieces import check_encodable
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID
from keras_transformer.system.progress import tracked
from keras_transformer.text.lines import lines_of
from keras_transformer.text.lines import name_of

MODEL_TYPES = ("unigram", "bpe")

# SentencePiece's rules for how text is changed before it is split.
NORMALIZATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")

SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")  # as SentencePiece has them

# The special pieces and one more.
LEAST_VOCABULARY_SIZE = 5

# SentencePiece's lower limit for the share of characters that have pieces.
LEAST_COVERAGE = 0.98

# Learning from more lines hardly changes the vocabulary, and costs memory.
MAX_TRAINING_LINES = 2_000_000

# Characters of a line that are learned from at once. A longer one is learned
# from in parts: with unigram, a repetitive one would take the square of its
# length in time.
MAX_LINE_LENGTH = 4096

# SentencePiece's default. It determines the order of sums, and so the last
# digits of unigram scores: fixed, they are the same on every machine.
NUM_THREADS = 16


def learn(
    files_or_lines,
    vocabulary_size: int,
    model_type: str,
    byte_fallback: bool,
    split_digits: bool,
    character_coverage: float,
    symbols,
    normalization: str,
    verbose: int,
) -> bytes:
    """Learns the SentencePiece model that `Tokenizer.train` describes."""
    check_positive(vocabulary_size=vocabulary_size)
    if vocabulary_size < LEAST_VOCABULARY_SIZE:
        raise ValueError(
            f"`vocabulary_size` must be at least {LEAST_VOCABULARY_SIZE}, "
            "the special pieces and one more. Received: vocabulary_size="
            f"{vocabulary_size}."
        )
    check_choice(MODEL_TYPES, model_type=model_type)
    check_choice(NORMALIZATIONS, normalization=normalization)
    check_flag(byte_fallback=byte_fallback, split_digits=split_digits)
    check_number(character_coverage=character_coverage)
    if not LEAST_COVERAGE <= character_coverage <= 1:
        raise ValueError(
            f"`character_coverage` must be in [{LEAST_COVERAGE}, 1], as "
            "SentencePiece has it. Received: "
            f"character_coverage={character_coverage}."
        )
    symbols = _checked_symbols(symbols)
    lines = tracked(lines_of(files_or_lines), "Reading text", verbose)
    kept, count = _sampled(lines, MAX_TRAINING_LINES)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_parts(kept),
            model_writer=model,
            vocab_size=vocabulary_size,
            model_type=model_type,
            byte_fallback=byte_fallback,
            split_digits=split_digits,
            character_coverage=character_coverage,
            user_defined_symbols=symbols,
            normalization_rule_name=normalization,
            pad_id=PAD_TOKEN_ID,
            unk_id=UNKNOWN_TOKEN_ID,
            bos_id=START_TOKEN_ID,
            eos_id=END_TOKEN_ID,
            # In bytes; longer sentences would be left out silently.
            max_sentence_length=2**30,
            num_threads=NUM_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        name = name_of(files_or_lines)
        text = f"{count} lines"
        if name != "lines":
            text += f" in {name}"
        raise _training_error(str(error), vocabulary_size, text) from error
    return model.getvalue()


def _sampled(lines, most):
    """Reads lines, and keeps at most `most`, the same ones each time.

    SentencePiece itself would draw a different sample each time.

    Returns:
        The lines kept, and the number of all lines.
    """
    generator = random.Random(0)
    kept = []
    count = 0
    for count, line in enumerate(lines, 1):
        if count <= most:
            kept.append(line)
        elif (place := generator.randrange(count)) < most:
            kept[place] = line
    return kept, count


def _parts(lines):
    """Yields lines, the long ones in parts, which end with a word if they can.

    SentencePiece takes the start of a part for that of a word.
    """
    for line in lines:
        # SentencePiece writes this character for unknown ones, and skips lines
        # that have it.
        line = line.replace("\u2585", " ")
        start = 0
        while len(line) - start > MAX_LINE_LENGTH:
            longest = start + MAX_LINE_LENGTH
            place = line.rfind(" ", start + 1, longest + 1)
            end = longest if place == -1 else place
            yield line[start:end]
            start = end
        yield line[start:]


def _checked_symbols(symbols):
    symbols = check_texts("symbols", symbols)
    for index, symbol in enumerate(symbols):
        check_encodable(symbol, f"symbol {index}")
        is_one = symbol.replace("▁", " ").split() == [symbol]
        if not is_one or symbol in (*SPECIAL_PIECES, *symbols[:index]):
            raise ValueError(
                "`symbols` must be without spaces, all different, and none of "
                f"{', '.join(SPECIAL_PIECES)}. Received: {symbol!r}."
            )
    return symbols


def _training_error(message, vocabulary_size, text):
    """Makes an error in our terms from a message of SentencePiece's trainer."""
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return ValueError(
            f"Text must not be empty. Received: {text} without anything to "
            "learn a vocabulary from."
        )
    text = f"Received: vocabulary_size={vocabulary_size}, {text}."
    most = re.search(r"value <= (\d+)", message)
    if most:
        return ValueError(
            f"`vocabulary_size` must be at most {most[1]} for this text. {text}"
        )
    least = re.search(r"required_chars\. \d+ vs (\d+)", message)
    if least:
        return ValueError(
            f"`vocabulary_size` must be at least {least[1]} for the characters "
            f"of this text, or `character_coverage` lower. {text}"
        )
    return ValueError(
        f"The vocabulary could not be learned: {message.strip()} {text}"
    )

"""How text becomes pieces and pieces text, with sentencepiece alone."""

from keras_transformer.checks import check_texts
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID

UNKNOWN_TEXT = " ⁇ "

# What pieces have for a space.
SPACE = "▁"


def split_texts(processor, texts):
    """Splits a string into ids, a sequence of strings into lists of ids.

    Raises:
        TypeError: If anything but strings is found.
        ValueError: If a string holds half of a surrogate pair, which Python
            puts in place of bytes that are not UTF-8.
    """
    rows = check_splittable(texts)
    return processor.Encode(texts if isinstance(texts, str) else rows)


def check_splittable(texts) -> list[str]:
    """A string, or several, as a list; raises what `split_texts` does."""
    rows = [texts] if isinstance(texts, str) else check_texts("texts", texts)
    for number, text in enumerate(rows):
        check_encodable(text, f"text {number}")
    return rows


def check_encodable(text, name):
    """Raises `ValueError` if text, called `name`, holds half of a pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"Text must be Unicode that can be encoded. Received: {name} with "
            f"{text[error.start]!a} at {error.start}."
        ) from None


def end_sources(rows) -> list[list[int]]:
    """Rows of ids with the end token, except those of empty text."""
    return [[*ids, END_TOKEN_ID] if ids else [] for ids in rows]


def end_targets(rows) -> list[list[int]]:
    """Rows of ids with the end token, which ends empty targets too."""
    return [[*ids, END_TOKEN_ID] for ids in rows]


class Joiner:
    """Joins pieces to text, as the graph of an export would.

    Tensorflow-text's operations differ from SentencePiece at the start of a
    text. The fast one has spellings of its own; the other one, of an older
    SentencePiece, leaves out all spaces there which are pieces of their own.

    Args:
        processor: The `SentencePieceProcessor`.
        is_fast: Whether as the fast operation does.
    """

    def __init__(self, processor, is_fast: bool):
        self._processor = processor
        self._spellings = None
        # Of several spaces, this SentencePiece leaves out the first, where the
        # older one leaves out all: those, before it joins the rest. (Without a
        # piece for a space, the id is the unknown one, joined to " ⁇  ⁇ ".)
        space = processor.PieceToId(SPACE)
        keeps_others = processor.Decode([space, space]) == " "
        self._left_out = (space,) if keeps_others else ()
        if is_fast:
            size = processor.GetPieceSize()
            self._spellings = [*map(self._spelling, range(size))]

    def __call__(self, ids) -> str:
        """Joins ids without special tokens but the unknown one."""
        if self._spellings is None:
            start = 0
            while start < len(ids) and ids[start] in self._left_out:
                start += 1
            return self._processor.Decode(ids[start:])
        text = "".join([self._spellings[token_id] for token_id in ids])
        if ids and not self._spellings[ids[0]]:  # a special one, and what
            return text  # follows it has another piece before
        return text.removeprefix(" ")

    def _spelling(self, token_id):
        """What a piece adds to a text; special ones nothing."""
        if token_id == UNKNOWN_TOKEN_ID:
            return UNKNOWN_TEXT
        if self._processor.IsControl(token_id):
            return ""
        return self._processor.IdToPiece(token_id).replace(SPACE, " ")

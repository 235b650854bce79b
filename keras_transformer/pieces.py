"""How pieces become text, with sentencepiece alone."""

from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID

UNKNOWN_TEXT = " ⁇ "


def join_pieces(processor, ids) -> str:
    """Joins pieces as tensorflow-text's fast operation does.

    Which differs from SentencePiece at the start of a text.

    Args:
        processor: A `SentencePieceProcessor`.
        ids: Token ids without special tokens but the unknown one.
    """
    text = "".join(
        UNKNOWN_TEXT
        if token_id == UNKNOWN_TOKEN_ID
        else processor.IdToPiece(token_id).replace("▁", " ")
        for token_id in ids
    )
    return text.removeprefix(" ")

"""The text processing of OPUS-MT models: SentencePiece beside the model."""

import os

from keras_transformer.text.sentencepiece_model import with_symbols
from keras_transformer.text.tokenizer import Tokenizer


def is_language(piece) -> bool:
    """Whether a piece names the language to translate into: `>>fra<<`."""
    return piece.startswith(">>") and piece.endswith("<<")


def languages_in(ids: dict) -> dict:
    """The rows of languages, by what a tokenizer calls them.

    A text for several languages begins with the name of one, to which a
    tokenizer adds the mark of the start of a word.

    Args:
        ids: Row of each source piece.
    """
    return {f"▁{x}": row for x, row in ids.items() if is_language(x)}


def read_tokenizers(folder, languages) -> tuple[Tokenizer, Tokenizer]:
    """Reads the tokenizers of source and target.

    Args:
        folder: Has `source.spm` and `target.spm`.
        languages: From `languages_in`. The source tokenizer gets them, which
            SentencePiece does not know.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If one is damaged.
    """
    tokenizer = Tokenizer.from_sentencepiece(os.path.join(folder, "source.spm"))
    if languages:
        tokenizer = Tokenizer(with_symbols(tokenizer.model, languages))
    target_tokenizer = Tokenizer.from_sentencepiece(
        os.path.join(folder, "target.spm")
    )
    return tokenizer, target_tokenizer

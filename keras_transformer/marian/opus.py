"""The text processing of OPUS-MT models: SentencePiece beside the model."""

import os

from keras_transformer.text.sentencepiece_model import with_symbols
from keras_transformer.text.tokenizer import Tokenizer


def is_language(piece) -> bool:
    """Whether a piece names the language to translate into: `>>fra<<`."""
    return piece.startswith(">>") and piece.endswith("<<")


def read_tokenizers(folder, ids: dict) -> tuple[Tokenizer, Tokenizer]:
    """Reads the tokenizers of source and target.

    A text for several languages begins with the name of one, which
    SentencePiece does not know: the source tokenizer gets those in `ids`.

    Args:
        folder: Has `source.spm` and `target.spm`.
        ids: Row of each source piece. Languages are entered again, with the
            mark of the start of a word that the tokenizer gives them.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If one is damaged.
    """
    languages = {f"▁{piece}": piece for piece in ids if is_language(piece)}
    tokenizer = Tokenizer.from_sentencepiece(os.path.join(folder, "source.spm"))
    if languages:
        tokenizer = Tokenizer(with_symbols(tokenizer.model, languages))
    target_tokenizer = Tokenizer.from_sentencepiece(
        os.path.join(folder, "target.spm")
    )
    ids.update({word: ids[piece] for word, piece in languages.items()})
    return tokenizer, target_tokenizer

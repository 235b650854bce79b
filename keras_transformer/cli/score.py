"""`keras-transformer score`."""

from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.command_io import check_pair_lengths
from keras_transformer.cli.command_io import load
from keras_transformer.cli.command_io import printable_piece
from keras_transformer.cli.options import Dtype
from keras_transformer.cli.options import TranslatorFolder
from keras_transformer.cli.options import path_argument


def score(
    folder: TranslatorFolder,
    source: Annotated[Path, path_argument(help="Text file.")],
    target: Annotated[Path, path_argument(help="Translations to score.")],
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Print the score of each token as well."),
    ] = False,
    dtype: Dtype = None,
):
    """Say how probable given translations are, one line per sentence.

    Prints log-probabilities in nats: that of the whole translation and, with
    --tokens, that of each of its tokens.

    \b
    Example:
      keras-transformer score runs/en-de test.en test.de > scores.txt
    """  # noqa: D301
    from keras_transformer.pieces import end_targets
    from keras_transformer.text.lines import read_pairs

    sources, translations = read_pairs(source, target)
    translator = load(folder, dtype)
    check_pair_lengths(translator, sources, source, translations, target)
    scores, token_scores = translator.score(sources, translations, verbose=1)
    tokenizer = translator.target_tokenizer
    for translation, total, of_tokens in zip(
        translations, scores, token_scores, strict=True
    ):
        line = f"{total:.4f}"
        if tokens:
            [ids] = end_targets([tokenizer.encode(translation)])
            line += "".join(
                f"\t{printable_piece(tokenizer.pieces[token_id])} {value:.4f}"
                for token_id, value in zip(ids, of_tokens, strict=True)
            )
        print(line)

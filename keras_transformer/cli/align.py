"""`keras-transformer align`."""

from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.command_io import LINES_AT_ONCE
from keras_transformer.cli.command_io import check_output
from keras_transformer.cli.command_io import check_pair_lengths
from keras_transformer.cli.command_io import load
from keras_transformer.cli.command_io import printable_piece
from keras_transformer.cli.options import Dtype
from keras_transformer.cli.options import Overwrite
from keras_transformer.cli.options import TranslatorFolder
from keras_transformer.cli.options import path_argument
from keras_transformer.cli.options import path_option


def align(
    folder: TranslatorFolder,
    source: Annotated[Path, path_argument(help="Text file.")],
    target: Annotated[Path, path_argument(help="Translation, line by line.")],
    pieces: Annotated[
        bool,
        typer.Option(
            "--pieces", help="Print pieces, or words, before the links."
        ),
    ] = False,
    words: Annotated[
        bool,
        typer.Option(
            "--words", help="Link words, which spaces separate, not pieces."
        ),
    ] = False,
    layer: Annotated[
        int,
        typer.Option(
            help="Decoder layer, from 0; negative numbers count from the last."
        ),
    ] = -1,
    picture: Annotated[
        Path | None,
        path_option(help="File for a picture of the first line's weights."),
    ] = None,
    overwrite: Overwrite = False,
    dtype: Dtype = None,
):
    """Say what the pieces or words of translations look at in the source.

    Prints one line per sentence: 0-0 2-1 means that the first piece of the
    translation looks most at the first piece of the source, and the second at
    the third; end tokens are left out. With --pieces, prints the source's
    pieces, the translation's pieces and then the links, separated by tabs.
    With --words, words take the place of pieces.

    \b
    Example:
      keras-transformer align runs/en-de test.en test.de --picture links.png
    """  # noqa: D301
    from keras_transformer.text.lines import read_pairs

    if picture:
        from keras_transformer.system.picture import check_picture

        check_picture(picture)
    check_output("--picture", picture, overwrite, [source, target])
    sources, translations = read_pairs(source, target)
    if picture and not sources[0].strip():
        raise ValueError(
            "`--picture` draws the first pair, which must have text. Received: "
            f"{source}, line 1 empty."
        )
    translator = load(folder, dtype)
    check_pair_lengths(translator, sources, source, translations, target)
    for start in range(0, len(sources), LINES_AT_ONCE):
        some = slice(start, start + LINES_AT_ONCE)
        alignments = translator.align(sources[some], translations[some], layer)
        if words:
            alignments = [alignment.words() for alignment in alignments]
        if picture and start == 0:
            alignments[0].draw(picture)
        for alignment in alignments:
            columns = [[f"{x}-{y}" for x, y in alignment.links()]]
            if pieces:
                both = alignment.source_pieces, alignment.target_pieces
                names = [map(printable_piece, side[:-1]) for side in both]
                columns = [*names, *columns]
            print("\t".join(map(" ".join, columns)))

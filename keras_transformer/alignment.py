"""What the tokens of a translation attend to in its source."""

import sys
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_transformer.pieces import SPACE
from keras_transformer.system.picture import check_picture
from keras_transformer.system.picture import write_figure


class Alignment(NamedTuple):
    """The attention of a translation's pieces to those of its source.

    Attributes:
        source_pieces: `S` strings, the last the end token's; none of empty
            text.
        target_pieces: `T` strings, likewise; empty text has only the end
            token's.
        weights: Float32 array `(T, S)`, each row summing to 1.
    """

    source_pieces: list[str]
    target_pieces: list[str]
    weights: Any

    def links(self) -> list[tuple[int, int]]:
        """The source piece that each target piece looks at most.

        The end token is left out, even where it gets most of the attention.

        Returns:
            For each piece of the target but the end token a pair of places
            from 0, of the source piece and its own.
        """
        weights = self.weights[:-1, :-1]
        if not weights.size:
            return []
        return [
            (source, target)
            for target, source in enumerate(np.argmax(weights, axis=1).tolist())
        ]

    def words(self) -> "Alignment":
        """Joins pieces to the words that spaces separate.

        A word looks where its pieces look on average, and gets what its pieces
        get in sum. A piece with a space inside belongs to one word, as does
        text without spaces; pieces of single bytes stay as they are written.

        Returns:
            An `Alignment` with words as its pieces, the end token as before.
        """
        sources = _words(self.source_pieces)
        targets = _words(self.target_pieces)
        sums = self.weights @ _belongs(sources, self.source_pieces).T
        belongs = _belongs(targets, self.target_pieces)
        means = belongs @ sums / belongs.sum(axis=1, keepdims=True)
        return Alignment(
            [_joined(self.source_pieces[word]) for word in sources],
            [_joined(self.target_pieces[word]) for word in targets],
            means,
        )

    def draw(self, path):
        """Draws the weights as a picture.

        Characters that no font on this machine has are drawn as boxes, and
        named on standard error.

        Args:
            path: The file; its ending says the format, such as `.png`. One
                that is there is replaced.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If the source is empty, or matplotlib cannot write
                that format.
        """
        if not self.source_pieces:
            raise ValueError(
                "A picture needs a source with tokens. Received: an alignment "
                f"of {self.source_pieces} and {self.target_pieces}."
            )
        ending = check_picture(path)
        from matplotlib.figure import Figure

        text = "".join([*self.source_pieces, *self.target_pieces])
        fonts, missing = _fonts_for(text)
        height, width = self.weights.shape
        figure = Figure(figsize=(width / 2 + 2, height / 2 + 2))  # inches
        axes = figure.add_subplot()
        axes.imshow(self.weights, cmap="Blues", vmin=0, vmax=1)
        axes.xaxis.tick_top()
        axes.set_xticks(
            range(width),
            _shown(self.source_pieces, missing),
            rotation=90,
            fontfamily=fonts,
        )
        axes.set_yticks(
            range(height),
            _shown(self.target_pieces, missing),
            fontfamily=fonts,
        )
        axes.set_xlabel("where each piece of the translation looked")
        write_figure(figure, path, ending, bbox_inches="tight")


def _words(pieces) -> list[slice]:
    """Where the words are among pieces, the end token's alone."""
    if not pieces:
        return []
    last = len(pieces) - 1  # the end token's
    has_text = [place for place in range(last) if _joined(pieces[place])]
    starts = [0]
    for place in range(1, last):
        word, piece = "".join(pieces[starts[-1] : place]), pieces[place]
        is_apart = word.endswith(SPACE) or piece.startswith(SPACE)
        # Spaces that are pieces of their own belong to the word that follows,
        # the last ones to the last word.
        if _joined(word) and is_apart and place <= has_text[-1]:
            starts.append(place)
    if last:
        starts.append(last)
    return [*map(slice, starts, [*starts[1:], None])]


def _belongs(words, pieces):
    """Which pieces belong to a word, float32 `(words, pieces)`, 1 or 0."""
    belongs = np.zeros((len(words), len(pieces)), "float32")
    for number, word in enumerate(words):
        belongs[number, word] = 1
    return belongs


def _joined(pieces):
    """The text of pieces, without spaces around it."""
    return "".join(pieces).strip(SPACE)


def _fonts_for(text) -> tuple[list[str], set[str]]:
    """Matplotlib's fonts, and fonts of this machine for what they lack.

    Also the characters that no font has, which it prints.
    """
    from matplotlib import font_manager
    from matplotlib import rcParams

    chosen = list(rcParams["font.family"])
    default = font_manager.findfont(font_manager.FontProperties())
    missing = {*text}.difference(_characters(default), SPACE)
    for font in font_manager.fontManager.ttflist if missing else ():
        if font.name.lstrip(".").replace(" ", "").startswith("LastResort"):
            continue  # it draws boxes
        try:
            found = missing.intersection(_characters(font.fname))
        except (OSError, RuntimeError):  # gone, or damaged
            continue
        if found:
            chosen.append(font.name)
            missing -= found
    if missing:
        print(
            f"No font on this machine has {' '.join(sorted(missing))}: drawn "
            "as boxes. Fonts such as Google's Noto have them.",
            file=sys.stderr,
        )
    return chosen, missing


def _characters(font):
    from matplotlib import font_manager

    return map(chr, font_manager.get_font(font).get_charmap())


def _shown(pieces, missing):
    # Few fonts have SentencePiece's sign for a space, and "$" begins formulas.
    signs = {SPACE: "·", "$": r"\$", **dict.fromkeys(missing, "□")}
    return [piece.translate(str.maketrans(signs)) for piece in pieces]

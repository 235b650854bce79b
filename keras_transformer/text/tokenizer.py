"""Tokenizer: text to ids and ids to text, by a SentencePiece model."""

import contextlib
import operator

import numpy as np

from keras_transformer.checks import check_positive_share
from keras_transformer.pieces import Joiner
from keras_transformer.pieces import check_splittable
from keras_transformer.pieces import split_texts
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID
from keras_transformer.system.atomic import write_file
from keras_transformer.system.extras import not_installed
from keras_transformer.system.paths import check_file
from keras_transformer.text.segmentation import draw_segmentations
from keras_transformer.text.segmentation import generator_of
from keras_transformer.text.sentencepiece_model import SPECIAL_IDS
from keras_transformer.text.sentencepiece_model import fast_operation_agrees
from keras_transformer.text.sentencepiece_model import processor_of
from keras_transformer.text.sentencepiece_model import special_ids
from keras_transformer.text.sentencepiece_model import with_our_special_ids
from keras_transformer.text.vocabulary import learn


class Tokenizer:
    """Splits text into ids of subword pieces, and joins ids into text.

    [SentencePiece](https://aclanthology.org/D18-2012) with fixed special ids:
    0 padding, 1 unknown, 2 start, 3 end. The ids are the same in Python
    (`encode`, `decode`) and as TensorFlow operations (`encode_tensor`,
    `decode_tensor`). Text is normalised first, as the model says (by default
    `nmt_nfkc`: compatibility forms, white space), so `decode` returns the
    normalised text.

    Args:
        model: A serialised SentencePiece model, as in a `.model` file.

    Attributes:
        model: As given.
        pieces: The text of every piece, by id.
        is_fast: Whether tensorflow-text's fast operation, which LiteRT has too,
            joins pieces to the same text.

    Raises:
        TypeError: If `model` is not bytes.
        ValueError: If `model` is not a SentencePiece model, or has other
            special ids.

    Example:
    >>> lines = ["the cat sees the dog", "the dog sees the cat"] * 10
    >>> tokenizer = Tokenizer.train(lines, vocabulary_size=16, verbose=0)
    >>> tokenizer.decode(tokenizer.encode("the dog sees the dog"))
    'the dog sees the dog'
    """

    pad_token_id = PAD_TOKEN_ID
    unknown_token_id = UNKNOWN_TOKEN_ID
    start_token_id = START_TOKEN_ID
    end_token_id = END_TOKEN_ID

    def __init__(self, model: bytes):
        if not isinstance(model, bytes):
            raise TypeError(
                "`model` must be the bytes of a SentencePiece model. Received: "
                f"model of type {type(model).__name__}. To read a file use "
                "`Tokenizer.load(path)`."
            )
        self.model = model
        self._processor = processor_of(model)
        self._check_special_ids()
        self.is_fast = fast_operation_agrees(model, self._processor)
        self.pieces = [
            self._processor.IdToPiece(index)
            for index in range(self.vocabulary_size)
        ]
        self._join = Joiner(self._processor, self.is_fast)

    @classmethod
    def train(
        cls,
        files_or_lines,
        vocabulary_size: int = 8000,
        model_type: str = "unigram",
        byte_fallback: bool = False,
        split_digits: bool = False,
        character_coverage: float = 1.0,
        symbols=(),
        normalization: str = "nmt_nfkc",
        verbose: int = 1,
    ) -> "Tokenizer":
        """Learns a vocabulary from text.

        Args:
            files_or_lines: A path, a sequence of paths, or an iterable of
                lines. A sequence of at most a hundred strings is taken as paths
                if one of them is a file; a longer one, if most of the first
                hundred are. For a vocabulary that source and target share, pass
                both files. From more than two million lines, a sample is used,
                always the same one.
            vocabulary_size: Number of pieces, including the four special ones.
            model_type: `"unigram"`
                ([Kudo, 2018](https://aclanthology.org/P18-1007)) or `"bpe"`
                ([Sennrich et al., 2016](https://aclanthology.org/P16-1162)),
                as in the paper.
            byte_fallback: Whether characters outside the vocabulary are
                spelled in bytes (256 pieces) instead of becoming unknown.
            split_digits: Whether each digit is a piece of its own, which
                suits text full of numbers.
            character_coverage: Share of the text's characters that have
                pieces, in [0.98, 1]. For Chinese or Japanese, 0.9995 is usual.
            symbols: Pieces that are never split, whatever the text: names of
                languages, such as `"<2de>"`, or placeholders. LiteRT files with
                them need `text=False`; `LiteRTTranslator` takes and returns
                strings all the same.
            normalization: SentencePiece's rule for how text is changed before
                it is split, so that no translation has what it changes.
                `"nmt_nfkc"` is Unicode's NFKC, which makes ASCII of full-width
                signs and two characters of the Thai vowel am, with spaces for
                zero-width characters and tabs; `"nfkc"` is without these
                spaces, `"nmt_nfkc_cf"` and `"nfkc_cf"` also make lower case,
                and `"identity"` only joins spaces. With `"nfkc"`, `"nfkc_cf"`
                and `"identity"` LiteRT files need `text=False`.
            verbose: 0 is silent, 1 shows a progress bar.

        Raises:
            FileNotFoundError: If a path is not a file, or if all of a few
                strings look like names of files; for such lines, pass
                `iter(lines)`.
            TypeError: If a symbol is not a string, or another argument of the
                wrong kind.
            ValueError: If there is no text, the vocabulary is larger than the
                text allows or too small for its characters, or text is not
                UTF-8 or cannot be encoded; or if a symbol is empty, contains
                spaces, occurs twice, or is a special piece.
        """
        return cls(
            learn(
                files_or_lines,
                vocabulary_size,
                model_type=model_type,
                byte_fallback=byte_fallback,
                split_digits=split_digits,
                character_coverage=character_coverage,
                symbols=symbols,
                normalization=normalization,
                verbose=verbose,
            )
        )

    @classmethod
    def load(cls, path) -> "Tokenizer":
        """Reads a SentencePiece `.model` file.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is not a SentencePiece model, or its special ids
                are not ours.
        """
        with open(check_file(path), "rb") as file, _naming(path):
            return cls(file.read())

    @classmethod
    def from_sentencepiece(cls, path) -> "Tokenizer":
        """Reads any SentencePiece `.model` file, for a model to be trained.

        The pieces stay the same, and the special ones are moved to our ids, or
        added: so text is split in the same way, but ids differ from the file's.
        A user-defined symbol with the name of an added piece, such as `<pad>`,
        becomes that piece.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is not a SentencePiece model.
        """
        with open(check_file(path), "rb") as file, _naming(path):
            return cls(with_our_special_ids(file.read()))

    def save(self, path):
        """Writes a SentencePiece `.model` file, which other tools read too.

        An existing file is replaced.
        """
        write_file(path, self.model)

    @property
    def vocabulary_size(self) -> int:
        """Number `V` of pieces, the special ones included."""
        return self._processor.GetPieceSize()

    def encode(self, texts):
        """Splits a string into ids, a sequence of strings into lists of ids.

        No special tokens are added. Empty text has no ids.

        Raises:
            TypeError: If anything but strings is found.
            ValueError: If a string holds half of a surrogate pair.
        """
        return split_texts(self._processor, texts)

    def sample(self, texts, alpha: float = 0.1, seed: int | None = None):
        """Splits text as `encode` does, but into pieces drawn at random.

        Subword regularization, section 3 of
        [Kudo, 2018](https://aclanthology.org/P18-1007): a model that has seen a
        text in several pieces depends less on any of them. One of the 64 most
        probable segmentations is drawn. Needs a unigram vocabulary.

        Args:
            texts: A string, or a sequence of strings.
            alpha: Segmentations are drawn in proportion to their probability to
                the power of `alpha`: the lower, the more of them.
            seed: The same seed gives the same pieces.

        Raises:
            TypeError: If anything but strings is found, or `alpha` or `seed` is
                of the wrong kind.
            ValueError: If a string holds half of a surrogate pair, `alpha` is
                not in `(0, 1]`, or the vocabulary is not unigram.

        Example:
        >>> lines = ["the cat sees the dog", "the dog sees the cat"] * 10
        >>> tokenizer = Tokenizer.train(lines, vocabulary_size=16, verbose=0)
        >>> tokenizer.decode(tokenizer.sample("the cat", seed=1))
        'the cat'
        """
        check_positive_share(alpha=alpha)
        rows = draw_segmentations(
            self._processor, check_splittable(texts), alpha, generator_of(seed)
        )
        rows = [row for [row] in rows]
        return rows[0] if isinstance(texts, str) else rows

    def segmentations(self, texts, number, alpha, generator, max_length):
        """Splits texts in several ways, the one of `encode` first.

        Args:
            texts: A sequence of strings.
            number: Segmentations of each text.
            alpha: As for `sample`.
            generator: NumPy generator that draws the others.
            max_length: Most tokens of a segmentation. A text of which the first
                has more, or for which too many longer ones are drawn, has the
                first each time.

        Returns:
            A list of `number` lists of ids for each text.
        """
        best = self.encode(texts)
        if number == 1:
            return [[row] for row in best]
        short = [n for n, row in enumerate(best) if len(row) <= max_length]
        drawn = draw_segmentations(
            self._processor,
            [texts[n] for n in short],
            alpha,
            generator,
            number - 1,
        )
        found = [[row] * number for row in best]
        for n, rows in zip(short, drawn, strict=True):
            found[n][1:] = [
                row if len(row) <= max_length else best[n] for row in rows
            ]
        return found

    def decode(self, ids):
        """Joins ids into a string, a sequence of rows of ids into strings.

        A row ends at its end token; padding and start tokens are left out, and
        an unknown token becomes ` ⁇ `. No ids, `[]`, are empty text, but an
        array of shape `(0, T)` has no rows.

        Raises:
            TypeError: If an id is not an integer.
            ValueError: If an id is not in the vocabulary.
        """
        rows = _members(ids)
        shape = np.shape(rows[0]) if rows else getattr(ids, "shape", (0,))[1:]
        if shape == ():
            return self._join(self._content(rows))
        return [self._join(self._content(row)) for row in rows]

    def encode_tensor(self, texts):
        """`encode` as TensorFlow operations.

        Args:
            texts: String tensor of shape `(B,)`.

        Returns:
            Ragged int32 tensor of shape `(B, None)`.
        """
        return self.tensor_tokenizer().encode(texts)

    def decode_tensor(self, ids):
        """`decode` as TensorFlow operations, which do not check the ids.

        Args:
            ids: Int32 tensor of shape `(B, T)`, padded or ragged.

        Returns:
            String tensor of shape `(B,)`.
        """
        return self.tensor_tokenizer().decode(ids)

    def tensor_tokenizer(self):
        """Makes a module with which a graph can encode and decode."""
        try:  # Python alone needs no tensorflow
            from keras_transformer.text.tensor_tokenizer import TensorTokenizer
        except ModuleNotFoundError as error:
            what = "A tokenizer of tensors"
            raise ImportError(not_installed(what, error.name)) from error
        return TensorTokenizer(self)

    def _content(self, row):
        content = []
        vocabulary_size = self.vocabulary_size
        for token_id in _members(row):
            try:
                token_id = operator.index(token_id)
            except TypeError:
                raise TypeError(
                    "`ids` must be integers. Received: "
                    f"{token_id!r} of type {type(token_id).__name__}."
                ) from None
            if not 0 <= token_id < vocabulary_size:
                raise ValueError(
                    f"`ids` must be in [0, {vocabulary_size}). Received: id "
                    f"{token_id}."
                )
            if token_id == END_TOKEN_ID:
                break
            if token_id not in (PAD_TOKEN_ID, START_TOKEN_ID):
                content.append(token_id)
        return content

    def _check_special_ids(self):
        found = special_ids(self._processor)
        if found != SPECIAL_IDS:
            raise ValueError(
                "`model` must have the ids 0 padding, 1 unknown, 2 start, 3 "
                "end. Received: padding, unknown, start, end = "
                f"{', '.join(map(str, found))}. "
                "`Tokenizer.from_sentencepiece` moves them, for a "
                "`Transformer` that is not trained yet."
            )


@contextlib.contextmanager
def _naming(path):
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error.__cause__


def _members(ids):
    try:
        return list(ids)
    except TypeError:
        raise TypeError(
            "`ids` must be a sequence of ids, or of such sequences. "
            "Received: "
            f"{ids!r} of type {type(ids).__name__}."
        ) from None

"""Tokenizer: SentencePiece in Python and inside TensorFlow's graphs."""

import contextlib
import hashlib
import io
import operator
import random
import re

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.atomic import write_file
from keras_transformer.checks import check_choice
from keras_transformer.checks import check_number
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_texts
from keras_transformer.lines import lines_of
from keras_transformer.lines import name_of
from keras_transformer.paths import check_file
from keras_transformer.pieces import check_encodable
from keras_transformer.pieces import join_pieces
from keras_transformer.pieces import spellings
from keras_transformer.pieces import split_texts
from keras_transformer.progress import tracked
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID

MODEL_TYPES = ("unigram", "bpe")

SPECIAL_IDS = (PAD_TOKEN_ID, UNKNOWN_TOKEN_ID, START_TOKEN_ID, END_TOKEN_ID)
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")  # as SentencePiece has them

# The special pieces and one more.
LEAST_VOCABULARY_SIZE = 5

# SentencePiece's own limit for the share of characters that have pieces.
LEAST_COVERAGE = 0.98

# A vocabulary learned from more lines hardly differs, and costs memory.
MAX_TRAINING_LINES = 2_000_000

# SentencePiece's default. It decides the order of sums, and so the last digits
# of a unigram's scores: those are the same on every machine.
NUM_THREADS = 16


class Tokenizer:
    """Splits text into the ids of subword pieces, and joins ids to text.

    [SentencePiece](https://aclanthology.org/D18-2012) with fixed special ids:
    0 padding, 1 unknown, 2 start, 3 end. The ids are the same in Python
    (`encode`, `decode`) and as TensorFlow operations (`encode_tensor`,
    `decode_tensor`). Text is normalised first (`nmt_nfkc`: compatibility
    forms, white space), so `decode` gives back the normalised text.

    Args:
        model: A serialised SentencePiece model, as in a `.model` file.

    Attributes:
        pieces: The text of every piece, by id.

    Raises:
        TypeError: If `model` is not bytes.
        ValueError: If `model` is no SentencePiece model, or has other special
            ids.

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
        self._processor = _processor_of(model)
        self._check_special_ids()
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        self.is_fast = _fast_operation_agrees(proto, self._processor)
        self.pieces = [
            self._processor.IdToPiece(index)
            for index in range(self.vocabulary_size)
        ]
        self._spelled = spellings(self._processor) if self.is_fast else None

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
        verbose: int = 1,
    ) -> "Tokenizer":
        """Learns a vocabulary from text.

        Args:
            files_or_lines: A path, a sequence of paths, or an iterable of
                lines. A list of strings is taken as paths where one of at most
                a hundred is a file, or all of the first hundred are. For a
                vocabulary that source and target share, pass both files. Of
                more than two million lines a sample is learned from, the same
                one each time.
            vocabulary_size: Number of pieces with the four special ones.
            model_type: `"unigram"`
                ([Kudo, 2018](https://aclanthology.org/P18-1007)) or `"bpe"`
                ([Sennrich et al., 2016](https://aclanthology.org/P16-1162)),
                the paper's.
            byte_fallback: Whether characters outside the vocabulary are
                spelled in bytes (256 pieces) instead of becoming unknown.
            split_digits: Whether each digit is a piece of its own, which
                suits text full of numbers.
            character_coverage: Share of the text's characters to have pieces
                for, in [0.98, 1]. For Chinese or Japanese 0.9995 is usual.
            symbols: Pieces that are never split, whatever the text: names of
                languages, such as `"<2de>"`, or what stands for something else
                in it. LiteRT files with them take and return ids alone, and
                strings through `LiteRTTranslator`.
            verbose: 0 is silent, 1 shows a progress bar.

        Raises:
            FileNotFoundError: If a path is no file.
            TypeError: If a symbol is not a string.
            ValueError: If there is no text, the vocabulary is larger than the
                text allows or too small for its characters, or text is not
                UTF-8, or has no encoding; or a symbol is empty, has spaces in
                it, comes twice, or is a special piece.
        """
        check_positive(vocabulary_size=vocabulary_size)
        if vocabulary_size < LEAST_VOCABULARY_SIZE:
            raise ValueError(
                f"`vocabulary_size` must be at least {LEAST_VOCABULARY_SIZE}, "
                "the special pieces and one more. Received: vocabulary_size="
                f"{vocabulary_size}."
            )
        check_choice(MODEL_TYPES, model_type=model_type)
        check_number("character_coverage", character_coverage)
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
                sentence_iterator=iter(kept),
                model_writer=model,
                vocab_size=vocabulary_size,
                model_type=model_type,
                byte_fallback=byte_fallback,
                split_digits=split_digits,
                character_coverage=character_coverage,
                user_defined_symbols=symbols,
                pad_id=PAD_TOKEN_ID,
                unk_id=UNKNOWN_TOKEN_ID,
                bos_id=START_TOKEN_ID,
                eos_id=END_TOKEN_ID,
                # In bytes; it would leave longer ones out, and not say so.
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
        return cls(model.getvalue())

    @classmethod
    def load(cls, path) -> "Tokenizer":
        """Reads a SentencePiece `.model` file.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is no SentencePiece model, or has other special
                ids than ours.
        """
        with open(check_file(path), "rb") as file, _naming(path):
            return cls(file.read())

    @classmethod
    def from_sentencepiece(cls, path) -> "Tokenizer":
        """Reads any SentencePiece `.model` file, for a model to be trained.

        The pieces stay what they are and the special ones are moved to our
        ids, or added, so that text is split in the same way but the ids are
        others than in the file. A symbol of the user's that has the name of an
        added one, such as `<pad>`, becomes that.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is no SentencePiece model.
        """
        with open(check_file(path), "rb") as file, _naming(path):
            return cls(_with_our_special_ids(file.read()))

    def save(self, path):
        """Writes a SentencePiece `.model` file, which other tools read too.

        It replaces a file that is there.
        """
        write_file(path, self.model)

    @property
    def vocabulary_size(self) -> int:
        """Number `V` of pieces, the special ones included."""
        return self._processor.GetPieceSize()

    def encode(self, texts):
        """Turns a string into a list of ids, a sequence into a list of lists.

        No special tokens are added. Empty text gives no ids.

        Raises:
            TypeError: If something else than strings is found.
            ValueError: If a string holds half of a surrogate pair.
        """
        return split_texts(self._processor, texts)

    def decode(self, ids):
        """Turns ids into a string, a sequence of sequences into strings.

        A target ends at its end token; padding and start are left out, and an
        unknown token reads ` ⁇ `. No ids, `[]`, are empty text, but an array
        of shape `(0, T)` has no rows.

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
            ids: Int32 tensor of shape `(B, T)`.

        Returns:
            String tensor of shape `(B,)`.
        """
        return self.tensor_tokenizer().decode(ids)

    def tensor_tokenizer(self) -> "TensorTokenizer":
        """Makes what a graph keeps to encode and decode by itself."""
        return TensorTokenizer(self)

    def _join(self, ids):
        if self.is_fast:
            return join_pieces(self._spelled, ids)
        return self._processor.Decode(ids)

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
        found = _special_ids(self._processor)
        if found != SPECIAL_IDS:
            raise ValueError(
                "`model` must have the ids 0 padding, 1 unknown, 2 start, 3 "
                "end. Received: padding, unknown, start, end = "
                f"{', '.join(map(str, found))}. "
                "`Tokenizer.from_sentencepiece` moves them, for a model that "
                "is not trained yet."
            )


class TensorTokenizer(tf.Module):
    """A tokenizer as TensorFlow operations, for a graph to keep.

    Make it where it is used: the operations of BPE models are gone after
    `tf.random.set_seed`, which clears TensorFlow's cache of kernels.

    Args:
        tokenizer: The `Tokenizer` to equal.
    """

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        if tokenizer.is_fast:
            self.operations = tf_text.FastSentencepieceTokenizer(
                model=tokenizer.model
            )
        else:
            # Named for its vocabulary: two tokenizers of one name swap
            # vocabularies in a SavedModel (tensorflow/text #1304).
            digest = hashlib.sha256(tokenizer.model).hexdigest()
            self.operations = tf_text.SentencepieceTokenizer(
                model=tokenizer.model,
                out_type=tf.int32,
                name=f"sentencepiece_{digest[:16]}",
            )

    def encode(self, texts):
        """Ragged ids `(B, None)` of strings `(B,)`."""
        return self.operations.tokenize(texts)

    def decode(self, ids):
        """Strings `(B,)` of ids `(B, T)`, each up to its end token."""
        ids = tf.convert_to_tensor(ids, tf.int32)
        is_end = tf.cast(tf.equal(ids, END_TOKEN_ID), tf.int32)
        is_content = tf.equal(tf.cumsum(is_end, axis=1), 0)
        for token_id in (PAD_TOKEN_ID, START_TOKEN_ID):
            is_content &= tf.not_equal(ids, token_id)
        content = tf.ragged.boolean_mask(ids, is_content)
        return self.operations.detokenize(content)

    def decode_rows(self, ids):
        """Strings `(B,)` of ragged ids `(B, None)`, ended."""
        content = tf.ragged.boolean_mask(ids, ids != END_TOKEN_ID)
        return self.operations.detokenize(content)


@contextlib.contextmanager
def _naming(path):
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error.__cause__


def _processor_of(model):
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ValueError(
            "`model` must be a SentencePiece model. Received: "
            f"{len(model)} bytes that are none."
        ) from error
    return processor


def _fast_operation_agrees(proto, processor):
    """Whether tensorflow-text's fast operation has the ids of SentencePiece.

    That is the one that runs in LiteRT.
    """
    settings, normalizer = proto.trainer_spec, proto.normalizer_spec
    kinds = {piece.type for piece in proto.pieces}
    return (
        settings.model_type == settings.UNIGRAM
        and not settings.byte_fallback  # it knows no byte pieces
        # It marks where words start, at the start of a text too.
        and not settings.treat_whitespace_as_suffix
        and normalizer.add_dummy_prefix
        # It takes these for blanks, whatever the rules of normalisation say,
        and all(
            processor.Encode(f"a{space}a") == processor.Encode("a a")
            for space in "\t\n\r"
        )
        # and normalises what should be matched as it is written.
        and proto.SentencePiece.USER_DEFINED not in kinds
    )


def _special_ids(processor):
    return (
        processor.pad_id(),
        processor.unk_id(),
        processor.bos_id(),
        processor.eos_id(),
    )


def _with_our_special_ids(model):
    """Puts the special pieces of a SentencePiece model first, in our order."""
    if _special_ids(_processor_of(model)) == SPECIAL_IDS:
        return model
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    settings = proto.trainer_spec
    kind = proto.SentencePiece
    special = {
        PAD_TOKEN_ID: kind(piece=settings.pad_piece, type=kind.CONTROL),
        UNKNOWN_TOKEN_ID: kind(piece=settings.unk_piece, type=kind.UNKNOWN),
        START_TOKEN_ID: kind(piece=settings.bos_piece, type=kind.CONTROL),
        END_TOKEN_ID: kind(piece=settings.eos_piece, type=kind.CONTROL),
    }
    names = {piece.piece for piece in special.values()}
    pieces = [special[token_id] for token_id in sorted(special)]
    pieces += [piece for piece in proto.pieces if piece.piece not in names]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    settings.vocab_size = len(pieces)
    settings.pad_id = PAD_TOKEN_ID
    settings.unk_id = UNKNOWN_TOKEN_ID
    settings.bos_id = START_TOKEN_ID
    settings.eos_id = END_TOKEN_ID
    return proto.SerializeToString()


def _sampled(lines, most):
    """Reads lines, and keeps `most` of them, the same ones each time.

    SentencePiece itself would draw others each time.

    Returns:
        The lines kept, and the number of all.
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


def _checked_symbols(symbols):
    symbols = check_texts("symbols", symbols)
    for index, symbol in enumerate(symbols):
        check_encodable(symbol, f"symbol {index}")
        is_one = symbol.replace("▁", " ").split() == [symbol]
        if not is_one or symbol in (*SPECIAL_PIECES, *symbols[:index]):
            raise ValueError(
                "`symbols` must be without spaces, each another, and none of "
                f"{', '.join(SPECIAL_PIECES)}. Received: {symbol!r}."
            )
    return symbols


def _training_error(message, vocabulary_size, text):
    """Says in our words what SentencePiece's trainer says in its own."""
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
            f"of this text, or `character_coverage` be lower. {text}"
        )
    return ValueError(
        f"The vocabulary could not be learned: {message.strip()} {text}"
    )


def _members(ids):
    try:
        return list(ids)
    except TypeError:
        raise TypeError(
            "`ids` must be a sequence of ids, or of such. Received: "
            f"{ids!r} of type {type(ids).__name__}."
        ) from None

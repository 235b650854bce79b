"""A translator that runs a LiteRT file, without TensorFlow."""

import os

import numpy as np
import sentencepiece

from keras_transformer.checks import check_file
from keras_transformer.checks import check_positive
from keras_transformer.pieces import join_pieces
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID

# Source tokens in one batch with the room for their targets.
TOKENS_PER_BATCH = 2048
EXTRA_LENGTH = 50

# What a LiteRT file begins with, after four bytes.
IDENTIFIER = b"TFL3"


class LiteRTTranslator:
    """Translates strings with a file that `export_litert` has written.

    Needs ai-edge-litert and sentencepiece alone: text is split and joined by
    the SentencePiece models in the file.

    Args:
        path: The file.
        num_threads: Threads to compute with. One is faster for small models.

    Call arguments:
        texts: A sequence of strings, of any number.
        return_scores: Whether to return the scores as well.

    Returns:
        A list of strings in the order of `texts`; with `return_scores` a pair
        of it and a float32 array of scores, in nats. A search for `K` > 1
        hypotheses gives lists of `K` strings and scores `(B, K)`.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If ai-edge-litert is not installed.
        TypeError: If `texts` are no strings.
        ValueError: If the file is no LiteRT model, damaged, or has not the
            signatures of `export_litert`; or if a text is longer than the
            exported translator takes.
    """

    def __init__(self, path, num_threads: int = 1):
        check_positive(num_threads=num_threads)
        path = check_litert_file(path)
        self.interpreter = _interpreter(path, num_threads)
        signatures = self.interpreter.get_signature_list()
        missing = {"translate_ids", "tokenizers"} - set(signatures)
        if missing:
            raise ValueError(
                "The file must be one that `export_litert` has written. "
                f"Received: {path!r} without the signatures "
                f"{', '.join(sorted(missing))}."
            )
        models = self._run("tokenizers", start=np.zeros(1, "int32"))
        self.source, self.target = (
            sentencepiece.SentencePieceProcessor(
                model_proto=models[name].tobytes()
            )
            for name in ("source_model", "target_model")
        )
        self.is_fast = bool(models["is_fast"][0])
        self.longest_source = int(models["longest_source"][0])

    def __call__(self, texts, return_scores: bool = False):
        if isinstance(texts, str) or not all(
            isinstance(text, str) for text in texts
        ):
            raise TypeError(
                "`texts` must be a sequence of strings. Received: "
                f"{type(texts).__name__}."
            )
        rows = [
            [*ids, END_TOKEN_ID] if ids else []
            for ids in self.source.encode(list(texts))
        ]
        self._check_lengths(rows)
        found = {}
        for batch in _batches([len(row) for row in rows]):
            result = self._run(
                "translate_ids",
                source_ids=_padded([rows[index] for index in batch]),
            )
            for index, target_ids, score in zip(
                batch, result["target_ids"], result["score"], strict=True
            ):
                found[index] = self._text(target_ids), score
        translations = [found[index][0] for index in range(len(rows))]
        if not return_scores:
            return translations
        scores = [found[index][1] for index in range(len(rows))]
        scores = np.array(scores, "float32")
        # LiteRT keeps no infinity, the score of what does not exist.
        lowest = np.finfo("float32").min
        return translations, np.where(scores > lowest, scores, -np.inf)

    def _check_lengths(self, rows):
        for index, row in enumerate(rows):
            if len(row) > self.longest_source:
                raise ValueError(
                    f"`texts` must not be longer than {self.longest_source} "
                    f"tokens. Received: text {index} of {len(row)} tokens. "
                    "Split it into sentences."
                )

    def _text(self, target_ids):
        if target_ids.ndim == 2:  # several hypotheses
            return [self._text(row) for row in target_ids]
        special = (PAD_TOKEN_ID, END_TOKEN_ID)
        ids = [token for token in target_ids.tolist() if token not in special]
        if self.is_fast:
            return join_pieces(self.target, ids)
        return self.target.decode(ids)

    def _run(self, signature, **inputs):
        return self.interpreter.get_signature_runner(signature)(**inputs)


def _interpreter(path, num_threads):
    try:
        from ai_edge_litert import interpreter
    except ModuleNotFoundError as error:
        raise ImportError(
            f"`LiteRTTranslator` needs {error.name}, which is not installed. "
            "`pip install keras-transformer[litert]` installs it."
        ) from error
    try:
        return interpreter.Interpreter(path, num_threads=num_threads)
    except (RuntimeError, ValueError) as error:
        raise damaged(path, error) from error


def check_litert_file(path) -> str:
    """Returns `path` as a string, or raises unless it is a LiteRT file."""
    path = check_file(path)
    with open(path, "rb") as file:
        start = file.read(8)
    if start[4:] != IDENTIFIER:
        raise ValueError(
            f"The file must be a LiteRT model. Received: {path!r}, of "
            f"{os.path.getsize(path):,} bytes."
        )
    return path


def damaged(path, error) -> ValueError:
    """Makes the error that names a damaged file."""
    return ValueError(
        f"The LiteRT model is damaged. Received: {os.fspath(path)!r}: {error}."
    )


def _batches(lengths):
    """Groups sentences of like length, longest first, empty ones last."""
    batches = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches:
            room = lengths[batches[-1][0]] + EXTRA_LENGTH
            if (len(batches[-1]) + 1) * room <= TOKENS_PER_BATCH:
                batches[-1].append(index)
                continue
        batches.append([index])
    return batches


def _padded(rows):
    ids = np.zeros((len(rows), max(*map(len, rows), 1)), "int32")
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return ids

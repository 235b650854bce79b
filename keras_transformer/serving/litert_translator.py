"""A translator that runs a LiteRT file, without TensorFlow."""

import contextlib
import dataclasses
import os

import numpy as np
import sentencepiece

from keras_transformer.batches import batches_by_length
from keras_transformer.batches import in_text_order
from keras_transformer.batches import in_threads
from keras_transformer.batches import pad_rows
from keras_transformer.checks import check_flag
from keras_transformer.checks import check_texts
from keras_transformer.lengths import rows_to_translate
from keras_transformer.pieces import Joiner
from keras_transformer.pieces import end_sources
from keras_transformer.pieces import split_texts
from keras_transformer.serving.litert_file import Facts
from keras_transformer.serving.litert_file import check_litert_file
from keras_transformer.serving.litert_file import damaged
from keras_transformer.serving.litert_workers import Workers
from keras_transformer.serving.litert_workers import check_threads
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.system.paths import check_utf8
from keras_transformer.system.progress import with_progress

# Tokens that a batch has room for, per hypothesis of the number that is best
# decoded at once: 24 of a source and 50 more, and half as many again, as
# `sentences_per_batch` may exceed that number by half.
TOKENS_PER_HYPOTHESIS = 111

# Outputs of `tokenizers`, besides the `Facts`.
MODELS = ("source_model", "target_model")


class LiteRTTranslator:
    """Translates strings with a file written by `export_litert`.

    Needs neither tensorflow nor keras, but ai-edge-litert, numpy,
    sentencepiece and wrapt: the SentencePiece models in the file split and join
    text.

    Args:
        path: The file.
        num_threads: Threads that compute one batch. One is best for small
            models.
        num_workers: Batches to compute at the same time. With several texts,
            more workers gain more than more threads. Each worker needs about
            as much memory as the first.

    Attributes:
        num_workers: As given.
        longest_source: Most tokens of a text, with the end token.
        facts: What else the file says about the translator, as
            `litert_file.Facts`.

    Call arguments:
        texts: A sequence of any number of strings.
        return_scores: Whether to return the scores as well.
        tokens_per_batch: Most tokens to decode at once, including padding and
            room for targets; by default 111 for each of the hypotheses that
            are best decoded at once, 14 to 56 according to the file. Fewer take
            less memory. A file with a `source_length` decodes one text at a
            time.
        truncate: Whether to translate the beginning of a text that is too long;
            by default it is an error.
        verbose: 0 is silent, 1 shows a progress bar, in tokens, which needs
            rich.

    Returns:
        A list of strings in the order of `texts`; with `return_scores`, a pair
        of this list and a float32 array of scores, in nats. A search for
        `K` > 1 hypotheses returns lists of `K` strings, and scores `(B, K)`.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If ai-edge-litert is not installed.
        RuntimeError: In the fork of a process, if the file is no longer what
            was loaded.
        TypeError: If `texts` are not strings, a flag is not `True` or `False`,
            or a number is not an integer.
        ValueError: If the file is not a LiteRT model, is damaged, or lacks the
            signatures of `export_litert`; if a text is longer than the
            exported translator takes, unless `truncate`; or if a number is less
            than 1, or there would be more than 1,024 threads.
    """

    def __init__(self, path, num_threads: int = 1, num_workers: int = 1):
        check_threads(num_threads, num_workers)
        path = check_litert_file(path)
        check_utf8(path)
        # An absolute path, valid from any folder.
        self._arguments = (os.path.abspath(path), num_threads, num_workers)
        self.num_workers = num_workers
        with _named_if_damaged(path):
            self._workers = Workers(*self._arguments)
            with self._workers.lend() as interpreter:
                signatures = interpreter.get_signature_list()
        missing = {"translate_ids", "tokenizers"} - set(signatures)
        if not missing:
            outputs = signatures["tokenizers"]["outputs"]
            needed = {field.name for field in dataclasses.fields(Facts)}
            missing = {*needed, *MODELS} - set(outputs)
        if missing:
            raise ValueError(
                "The file must be one that `export_litert` of this version has "
                f"written. Received: {path!r} without the signatures or "
                f"outputs {', '.join(sorted(missing))}."
            )
        with _named_if_damaged(path):
            models = self._run("tokenizers", start=np.zeros(1, "int32"))
            self.facts = Facts.of(models)
            with self._workers.lend() as interpreter:
                runner = interpreter.get_signature_runner("translate_ids")
                details = runner.get_input_details()["source_ids"]
        try:
            self._source, self._target = (
                sentencepiece.SentencePieceProcessor(
                    model_proto=models[name].tobytes()
                )
                for name in MODELS
            )
        except RuntimeError as error:
            raise damaged(path, "its tokenizer cannot be read") from error
        self.longest_source = self.facts.longest_source
        self._is_fixed = -1 not in details["shape_signature"]
        self._join = Joiner(self._target, self.facts.is_fast)

    def __call__(
        self,
        texts,
        return_scores: bool = False,
        tokens_per_batch: int | None = None,
        truncate: bool = False,
        verbose: int = 0,
    ):
        """Translates texts; the class says what the arguments are."""
        check_flag(return_scores=return_scores, truncate=truncate)
        rows = end_sources(self.encode(check_texts("texts", texts)))
        rows = rows_to_translate(rows, self.longest_source, truncate)
        least_length = self.longest_source if self._is_fixed else 1

        def translate(batch):
            result = self._run(
                "translate_ids",
                source_ids=pad_rows(
                    [rows[index] for index in batch], least_length
                ),
            )
            shape = (len(batch) * self.facts.num_hypotheses, -1)
            target_ids = result["target_ids"].reshape(shape)
            return batch, [*map(self._text, target_ids)], result["score"]

        best = self.facts.hypotheses_per_batch
        if tokens_per_batch is None:
            tokens_per_batch = TOKENS_PER_HYPOTHESIS * best
        lengths = [len(row) for row in rows]
        max_rows = 1
        if not self._is_fixed:
            max_rows = sentences_per_batch(
                sum(map(bool, rows)),
                self.num_workers,
                best / self.facts.num_slots,
            )
        batches = batches_by_length(
            lengths, tokens_per_batch, self.facts.num_slots, max_rows=max_rows
        )
        found = in_threads(translate, batches, self.num_workers)
        translations, scores = in_text_order(
            len(rows),
            self.facts.num_hypotheses,
            with_progress(found, "Translating", lengths, verbose),
        )
        # LiteRT does not keep infinity, the score of a missing hypothesis.
        scores[scores <= np.finfo("float32").min] = -np.inf
        return (translations, scores) if return_scores else translations

    def encode(self, texts):
        """Splits a string into ids, a sequence of strings into lists of ids."""
        return split_texts(self._source, texts)

    def __reduce__(self):
        return type(self), self._arguments  # for processes of a pool

    def _text(self, target_ids):
        special = (PAD_TOKEN_ID, END_TOKEN_ID)
        return self._join([x for x in target_ids.tolist() if x not in special])

    def _run(self, signature, **inputs):
        with self._workers.lend() as interpreter:
            return interpreter.get_signature_runner(signature)(**inputs)


def sentences_per_batch(
    num_sentences: int, num_workers: int, best: float
) -> int:
    """How many sentences each worker should decode at once.

    It gives each worker the same number of batches, all of the same size.

    Args:
        num_sentences: Total number of sentences.
        num_workers: Number of workers that share them.
        best: About how many sentences a batch should have.
    """
    share = -(-num_sentences // num_workers)
    num_batches = max(round(share / best), 1)
    return max(-(-share // num_batches), 1)


@contextlib.contextmanager
def _named_if_damaged(path):
    """Names the file in errors of LiteRT, which do not."""
    try:
        yield
    except (KeyError, RuntimeError, ValueError) as error:
        raise damaged(path, error) from error

"""SavedModel: a folder that takes strings wherever TensorFlow runs."""

import contextlib
import io
import os

import keras
import tensorflow as tf

from keras_transformer.atomic import check_replaceable
from keras_transformer.atomic import new_folder
from keras_transformer.batches import EXTRA_LENGTH
from keras_transformer.batches import TOKENS_PER_BATCH
from keras_transformer.decoding import Decode
from keras_transformer.generation import LENGTH_STEP
from keras_transformer.generation import row_counts
from keras_transformer.serving.warmup import write_warmup_requests
from keras_transformer.tensorflow_only import jit
from keras_transformer.tensorflow_only import plain_graph
from keras_transformer.translator import longest_source

TEXT_SPEC = tf.TensorSpec([None], tf.string, name="text")
SOURCE_IDS_SPEC = tf.TensorSpec([None, None], tf.int32, name="source_ids")


def export_saved_model(translator, path, overwrite: bool = False):
    """Writes a SavedModel whose graph holds text processing and search.

    Signatures:

    - `serving_default`: `text` string `(B,)` -> `translation` string `(B,)`,
      `score` float32 `(B,)`.
    - `translate_ids`: `source_ids` int32 `(B, S)` -> `target_ids` int32 `(B,
      T)`, `score` float32 `(B,)`. Rows of ids end with the end token, 3, then
      padding, 0.
    - `translate_compiled` and `translate_ids_compiled`: the same, compiled
      with XLA when they are first called, and again for each of a few shapes;
      faster from then on. TensorFlow Serving on a CPU needs
      `--xla_cpu_compilation_enabled` for them.

    A search for `K` > 1 hypotheses adds an axis `K` to each output after `B`.
    Any number of sentences may come in one call: the graph sorts them by
    length and decodes them in batches of bounded size.

    A program that loads it needs tensorflow, and tensorflow-text for its
    operations; not this library. TensorFlow Serving finds requests to warm up
    with.

    Args:
        translator: A `Translator`.
        path: The folder; TensorFlow Serving wants a number for its name.
        overwrite: Whether to replace what is there.

    Raises:
        FileExistsError: If something is there that is not empty, unless it
            is a SavedModel and `overwrite`.
        RuntimeError: If Keras does not run on TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "A SavedModel can be exported with the TensorFlow backend only. "
            f"Received: backend {keras.backend.backend()!r}. Start Python "
            "with KERAS_BACKEND=tensorflow; the translator's folder is the "
            "same for every backend."
        )
    check_replaceable(path, overwrite, "a SavedModel", "saved_model.pb")
    graph = TranslationGraph(translator)
    with new_folder(path) as folder:
        archive = keras.export.ExportArchive()
        archive.track(graph)
        for name, function in (
            ("serving_default", graph.translate_text),
            ("translate_ids", graph.translate_ids),
            ("translate_compiled", graph.translate_text_compiled),
            ("translate_ids_compiled", graph.translate_ids_compiled),
        ):
            archive.add_endpoint(name, function)
        # Keras prints a page of tensor specs, which the docstring says better.
        with contextlib.redirect_stdout(io.StringIO()):
            archive.write_out(os.fspath(folder), verbose=False)
        write_warmup_requests(translator, folder)


class TranslationGraph(tf.Module):
    """The functions an exported graph consists of, strings to strings.

    Those of text call those of ids, each of which is in the graph once.
    """

    def __init__(self, translator):
        super().__init__()
        self.model = translator.model
        self.search = translator.search
        self.end_token_id = translator.tokenizer.end_token_id
        self.source_tokenizer = translator.tokenizer.tensor_tokenizer()
        self.target_tokenizer = translator.target_tokenizer.tensor_tokenizer()

    @tf.function(input_signature=[TEXT_SPEC], autograph=False)
    def translate_text(self, text):
        """Translates strings `(B,)`."""
        return self._translate_text(text, self.translate_ids)

    @tf.function(input_signature=[TEXT_SPEC], autograph=False)
    def translate_text_compiled(self, text):
        """Translates strings `(B,)`, the search compiled."""
        return self._translate_text(text, self.translate_ids_compiled)

    @tf.function(input_signature=[SOURCE_IDS_SPEC], autograph=False)
    def translate_ids(self, source_ids):
        """Translates ids `(B, S)`, each row through its end token."""
        with plain_graph():
            return self._translate_ids(source_ids, self._search)

    @tf.function(input_signature=[SOURCE_IDS_SPEC], autograph=False)
    def translate_ids_compiled(self, source_ids):
        """Translates ids `(B, S)`, the search compiled."""

        def search(source_ids):
            rows, length = tf.unstack(tf.shape(source_ids))
            filled = self._filled_up(source_ids, rows, length)
            return [x[:rows] for x in self._search(filled, jit)]

        return self._translate_ids(source_ids, search)

    def _translate_text(self, text, translate_ids):
        pieces = self.source_tokenizer.encode(text)
        result = translate_ids(self._sources(pieces))
        target_ids = result["target_ids"]  # (B, T) or (B, K, T)
        shape = tf.shape(target_ids)
        translation = self.target_tokenizer.decode(
            tf.reshape(target_ids, [tf.reduce_prod(shape[:-1]), shape[-1]])
        )
        translation = tf.reshape(translation, shape[:-1])
        translation.set_shape(target_ids.shape[:-1])
        return {"translation": translation, "score": result["score"]}

    def _translate_ids(self, source_ids, search):
        """Sorts by length, searches in batches, and restores the order."""
        source_ids = self._checked(source_ids)
        lengths = tf.math.count_nonzero(source_ids, axis=1, dtype=tf.int32)
        order = tf.argsort(lengths, direction="DESCENDING", stable=True)
        source_ids = tf.gather(source_ids, order)
        lengths = tf.gather(lengths, order)
        num_rows = tf.shape(source_ids)[0]
        width = self.search.num_hypotheses

        def not_done(start, target_ids, scores):
            return start < num_rows

        def translate_batch(start, target_ids, scores):
            longest = tf.maximum(lengths[start], 1)
            room = (longest + EXTRA_LENGTH) * self.search.num_slots
            end = start + tf.maximum(TOKENS_PER_BATCH // room, 1)
            batch = source_ids[start:end, :longest]
            new_ids, new_scores = search(batch)
            target_ids = _stacked(target_ids, new_ids)
            scores = tf.concat([scores, new_scores], axis=0)
            return start + tf.shape(batch)[0], target_ids, scores

        _, target_ids, scores = tf.while_loop(
            not_done,
            translate_batch,
            (
                tf.constant(0),
                tf.zeros([0, width, 0], tf.int32),
                tf.zeros([0, width]),
            ),
            shape_invariants=(
                tf.TensorShape([]),
                tf.TensorShape([None, width, None]),
                tf.TensorShape([None, width]),
            ),
        )
        restored = tf.argsort(order)
        target_ids = tf.gather(target_ids, restored)
        scores = tf.gather(scores, restored)
        if width == 1:
            target_ids, scores = target_ids[:, 0], scores[:, 0]
        return {"target_ids": target_ids, "score": scores}

    def _search(self, source_ids, compile_function=None):
        found = Decode(self.model, self.search).in_segments(
            {"source_ids": source_ids}, compile_function
        )
        return found.target_ids, found.scores

    def _checked(self, source_ids):
        size = self.model.source_vocabulary_size
        is_padding = tf.equal(source_ids, 0)
        lengths = tf.math.count_nonzero(source_ids, axis=1, dtype=tf.int32)
        checks = [
            self._check_lengths(lengths),
            tf.debugging.Assert(
                tf.reduce_all((source_ids >= 0) & (source_ids < size)),
                [f"Source ids must be in [0, {size})."],
            ),
            tf.debugging.Assert(
                tf.reduce_all(~is_padding[:, :-1] | is_padding[:, 1:]),
                ["Padding, id 0, must come after the tokens of a row."],
            ),
        ]
        # Before anything is computed, which would need memory without end.
        with tf.control_dependencies(checks):
            # One column at least, as a model needs.
            return tf.pad(source_ids, [[0, 0], [0, 1]])

    def _check_lengths(self, lengths):
        longest = longest_source(self.model)
        return tf.debugging.assert_less_equal(
            lengths,
            longest,
            f"The source must not be longer than {longest} tokens.",
        )

    def _filled_up(self, source_ids, rows, length):
        """Adds padding up to one of few shapes."""
        sizes = row_counts(TOKENS_PER_BATCH)
        wanted_rows = tf.gather(sizes, tf.searchsorted(sizes, [rows])[0])
        wanted = -(-length // LENGTH_STEP) * LENGTH_STEP
        if self.model.max_length is not None:
            wanted = tf.minimum(wanted, self.model.max_length)
        return tf.pad(
            source_ids, [[0, wanted_rows - rows], [0, wanted - length]]
        )

    def _sources(self, pieces):
        """Adds the end token, but to empty text, and pads: `(B, S)`."""
        lengths = tf.cast(pieces.row_lengths(), tf.int32)
        # Before all texts are as long as the longest.
        with tf.control_dependencies([self._check_lengths(lengths + 1)]):
            ids = tf.pad(pieces.to_tensor(), [[0, 0], [0, 1]])
        positions = tf.range(tf.shape(ids)[1])
        lengths = lengths[:, tf.newaxis]
        is_end = tf.equal(positions, lengths) & tf.greater(lengths, 0)
        return tf.where(is_end, self.end_token_id, ids)


def _stacked(above, below):
    """Puts ids `(B, K, T)` under others, both without empty columns."""
    used = tf.reduce_any(tf.not_equal(below, 0), axis=[0, 1])  # (T,)
    below = below[:, :, : tf.reduce_sum(tf.cast(used, tf.int32))]
    length = tf.maximum(tf.shape(above)[2], tf.shape(below)[2])
    return tf.concat(
        [
            tf.pad(x, [[0, 0], [0, 0], [0, length - tf.shape(x)[2]]])
            for x in (above, below)
        ],
        axis=0,
    )

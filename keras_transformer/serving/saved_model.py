"""SavedModel: a folder that takes strings wherever TensorFlow runs."""

import functools
import os

import keras
import tensorflow as tf

from keras_transformer.batches import TOKENS_PER_BATCH
from keras_transformer.decoding import DecodingLoop
from keras_transformer.generation import length_for
from keras_transformer.generation import row_counts
from keras_transformer.lengths import default_max_length
from keras_transformer.masking import padding_mask
from keras_transformer.serving.export_note import FILE
from keras_transformer.serving.export_note import note_of
from keras_transformer.serving.export_note import write_note
from keras_transformer.serving.warmup import write_warmup_requests
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.system.atomic import new_folder
from keras_transformer.system.paths import check_replaceable
from keras_transformer.system.paths import check_utf8
from keras_transformer.tensorflow_only.graphs import graph_for
from keras_transformer.tensorflow_only.graphs import jit
from keras_transformer.weights import check_finite_model

TEXT_SPEC = tf.TensorSpec([None], tf.string, name="text")
SOURCE_IDS_SPEC = tf.TensorSpec([None, None], tf.int32, name="source_ids")
ROWS_SPEC = tf.RaggedTensorSpec([None, None], tf.int32)
# `tf.saved_model.load` finds no files in folders whose names contain these.
PATTERN_CHARACTERS = "[\\"


def export_saved_model(translator, path, overwrite: bool = False):
    """Writes what `Translator.export_saved_model` describes."""
    path = os.fsdecode(path)
    check_utf8(path)
    for character in PATTERN_CHARACTERS:
        if character in os.path.realpath(path):
            raise ValueError(
                f"`path` must not contain {character}, which TensorFlow takes "
                "for a pattern when it reads a SavedModel. Received: "
                f"{path!r}. Choose another folder."
            )
    check_finite_model(translator.model)
    check = functools.partial(
        check_replaceable, path, overwrite, "a SavedModel", "saved_model.pb"
    )
    note = note_of(translator)  # before minutes of work
    with new_folder(path, check) as folder:
        graph = TranslationGraph(translator)
        archive = keras.export.ExportArchive()
        archive.track(graph)
        for name, function in (
            ("serving_default", graph.translate_text),
            ("translate_ids", graph.translate_ids),
            ("translate_compiled", graph.translate_text_compiled),
            ("translate_ids_compiled", graph.translate_ids_compiled),
        ):
            archive.add_endpoint(name, function)
        archive.write_out(os.fspath(folder), verbose=False)
        write_warmup_requests(translator, folder)
        write_note(note, os.path.join(folder, FILE))


class TranslationGraph(tf.Module):
    """The functions of an exported graph, which takes and returns strings.

    Those for text and those for ids call one for ragged rows of ids: padded to
    the longest text of a call, a million short texts and a long one would need
    gigabytes.
    """

    def __init__(self, translator):
        super().__init__()
        self.model = translator.model
        self.search = translator.search
        self.longest_source = translator.longest_source
        self.source_tokenizer = translator.tokenizer.tensor_tokenizer()
        self.target_tokenizer = translator.target_tokenizer.tensor_tokenizer()

    @tf.function(input_signature=[TEXT_SPEC], autograph=False)
    def translate_text(self, text):
        """Translates strings `(B,)`."""
        return self._translate_text(text, self.translate_rows)

    @tf.function(input_signature=[TEXT_SPEC], autograph=False)
    def translate_text_compiled(self, text):
        """Translates strings `(B,)`, with the search compiled."""
        return self._translate_text(text, self.translate_rows_compiled)

    @tf.function(input_signature=[SOURCE_IDS_SPEC], autograph=False)
    def translate_ids(self, source_ids):
        """Translates ids `(B, S)`, each row through its end token."""
        return self._translate_ids(source_ids, self.translate_rows)

    @tf.function(input_signature=[SOURCE_IDS_SPEC], autograph=False)
    def translate_ids_compiled(self, source_ids):
        """Translates ids `(B, S)`, with the search compiled."""
        return self._translate_ids(source_ids, self.translate_rows_compiled)

    @tf.function(input_signature=[ROWS_SPEC], autograph=False)
    def translate_rows(self, rows):
        """Translates ragged ids `(B, None)` to ids `(B * K, None)`, scores."""
        with graph_for("tensorflow"):
            return self._translate_rows(rows, self._search)

    @tf.function(input_signature=[ROWS_SPEC], autograph=False)
    def translate_rows_compiled(self, rows):
        """Translates ragged ids `(B, None)`, with the search compiled."""

        def search(source_ids):
            num_rows, length = tf.unstack(tf.shape(source_ids))
            filled = self._filled_up(source_ids, num_rows, length)
            return [x[:num_rows] for x in self._search(filled, jit)]

        return self._translate_rows(rows, search)

    def _translate_text(self, text, translate_rows):
        pieces = self.source_tokenizer.encode(text)
        found, scores = translate_rows(self._ended(pieces))
        translation = self.target_tokenizer.decode_rows(found)
        return self._result("translation", translation, scores)

    def _translate_ids(self, source_ids, translate_rows):
        is_token = padding_mask(source_ids)
        size = self.model.source_vocabulary_size
        checks = [
            tf.debugging.Assert(
                tf.reduce_all((source_ids >= 0) & (source_ids < size)),
                [f"Source ids must be in [0, {size})."],
            ),
            tf.debugging.Assert(
                tf.reduce_all(is_token[:, :-1] | ~is_token[:, 1:]),
                ["Padding, id 0, must come after the tokens of a row."],
            ),
        ]
        with tf.control_dependencies(checks):
            lengths = tf.math.count_nonzero(source_ids, axis=1)
            rows = tf.RaggedTensor.from_tensor(source_ids, lengths)
        found, scores = translate_rows(rows)
        return self._result("target_ids", found.to_tensor(), scores)

    def _result(self, name, found, scores):
        """Adds the axis of hypotheses, if the search returns several."""
        num_hypotheses = self.search.num_hypotheses
        if num_hypotheses > 1:
            found = tf.reshape(
                found,
                tf.concat([tf.shape(scores), tf.shape(found)[1:]], axis=0),
            )
            found = tf.ensure_shape(
                found, [None, num_hypotheses] + [None] * (found.shape.rank - 2)
            )
        else:
            scores = scores[:, 0]
        return {name: found, "score": scores}

    def _translate_rows(self, rows, search):
        """Sorts by length, searches in batches, and restores the order."""
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        # Checked before computing, which could need unbounded memory.
        with tf.control_dependencies([self._check_lengths(lengths)]):
            order = tf.argsort(lengths, direction="DESCENDING", stable=True)
        num_rows = tf.size(order)
        num_hypotheses = self.search.num_hypotheses

        def not_done(start, *found):
            return start < num_rows

        def translate_batch(start, num_batches, ids, id_counts, scores):
            longest = tf.maximum(lengths[order[start]], 1)
            room = default_max_length(longest) * self.search.num_slots
            end = start + tf.maximum(TOKENS_PER_BATCH // room, 1)
            batch = tf.gather(rows, order[start:end]).to_tensor()
            # At least one column, as a model needs.
            batch = tf.pad(batch, [[0, 0], [0, 1]])[:, :longest]
            new_ids, new_scores = search(batch)
            new_ids = tf.reshape(new_ids, [-1, tf.shape(new_ids)[-1]])
            counts = tf.math.count_nonzero(new_ids, axis=1)
            new_ids = tf.RaggedTensor.from_tensor(new_ids, counts)
            return (
                start + tf.shape(batch)[0],
                num_batches + 1,
                ids.write(num_batches, new_ids.values),
                id_counts.write(num_batches, counts),
                scores.write(num_batches, new_scores),
            )

        _, _, *found = tf.while_loop(
            not_done,
            translate_batch,
            (
                tf.constant(0),
                tf.constant(0),
                _growing_array(tf.int32, [None]),
                _growing_array(tf.int64, [None]),
                _growing_array(tf.float32, [None, num_hypotheses]),
            ),
        )
        ids, id_counts, scores = (array.concat() for array in found)
        ids = tf.RaggedTensor.from_row_lengths(ids, id_counts, validate=False)
        restored = tf.argsort(order)
        hypotheses = restored[:, tf.newaxis] * num_hypotheses + tf.range(
            num_hypotheses
        )  # (B, K)
        return (
            tf.gather(ids, tf.reshape(hypotheses, [-1])),
            tf.gather(scores, restored),
        )

    def _search(self, source_ids, compile_function=None):
        found = DecodingLoop(self.model, self.search).in_segments(
            {"source_ids": source_ids}, compile_function
        )
        return found.target_ids, found.scores

    def _check_lengths(self, lengths):
        return tf.debugging.assert_less_equal(
            lengths,
            self.longest_source,
            f"The source must not be longer than {self.longest_source} tokens.",
        )

    def _filled_up(self, source_ids, num_rows, length):
        """Pads ids to one of a few shapes, for each of which XLA compiles."""
        sizes = row_counts(TOKENS_PER_BATCH)
        wanted_rows = tf.gather(sizes, tf.searchsorted(sizes, [num_rows])[0])
        wanted = length_for(length)
        if self.model.max_length is not None:
            wanted = tf.minimum(wanted, self.model.max_length)
        return tf.pad(
            source_ids, [[0, wanted_rows - num_rows], [0, wanted - length]]
        )

    def _ended(self, pieces):
        """Adds the end token to each row that is not empty."""
        pieces = pieces.with_row_splits_dtype(tf.int64)
        has_end = tf.cast(pieces.row_lengths() > 0, tf.int64)
        ends = tf.fill([tf.reduce_sum(has_end)], END_TOKEN_ID)
        return tf.concat(
            [pieces, tf.RaggedTensor.from_row_lengths(ends, has_end)], axis=1
        )


def _growing_array(dtype, shape):
    """An array that grows as tensors of any number of rows are written."""
    return tf.TensorArray(
        dtype,
        size=0,
        dynamic_size=True,
        infer_shape=False,
        element_shape=shape,
    )

"""SavedModel: a folder that takes strings wherever TensorFlow runs."""

import contextlib
import io
import os

import keras
import tensorflow as tf

from keras_transformer.atomic import new_folder


def export_saved_model(translator, path, overwrite: bool = False):
    """Writes a SavedModel whose graph holds text processing and search.

    Signatures:

    - `serving_default`: `text` string `(N,)` -> `translation` string `(N,)`,
      `score` float32 `(N,)`.
    - `translate_ids`: `source_ids` int32 `(N, S)` -> `target_ids` int32 `(N,
      T)`, `score` float32 `(N,)`. Rows of ids end with the end token, 3, then
      padding, 0.

    A program that loads it needs tensorflow, and tensorflow-text for its
    operations; not this library.

    Args:
        translator: A `Translator`.
        path: The folder; TensorFlow Serving wants a number for its name.
        overwrite: Whether to replace what is there.

    Raises:
        FileExistsError: If the folder is not empty, unless `overwrite`.
        RuntimeError: If Keras does not run on TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "A SavedModel can be exported with the TensorFlow backend only. "
            f"Received: backend {keras.backend.backend()!r}. Start Python "
            "with KERAS_BACKEND=tensorflow; the translator's folder is the "
            "same for every backend."
        )
    graph = TranslationGraph(translator)
    with new_folder(path, overwrite) as folder:
        archive = keras.export.ExportArchive()
        archive.track(translator.model)
        archive.track(graph)
        archive.add_endpoint(
            "serving_default",
            graph.translate_text,
            input_signature=[tf.TensorSpec([None], tf.string, name="text")],
        )
        archive.add_endpoint(
            "translate_ids",
            graph.translate_ids,
            input_signature=[
                tf.TensorSpec([None, None], tf.int32, name="source_ids")
            ],
        )
        # Keras prints a page of tensor specs, which the docstring says better.
        with contextlib.redirect_stdout(io.StringIO()):
            archive.write_out(os.fspath(folder), verbose=False)


class TranslationGraph(tf.Module):
    """The functions an exported graph consists of, strings to strings."""

    def __init__(self, translator):
        super().__init__()
        self.translator = translator
        # Kept by name, so that a SavedModel tracks what resources they have.
        self.source_tokenizer = translator.tokenizer.tensor_tokenizer
        self.target_tokenizer = translator.target_tokenizer.tensor_tokenizer

    def translate_text(self, text):
        """Translates strings `(N,)`."""
        pieces = self.translator.tokenizer.encode_tensor(text)
        result = self.translate_ids(self._sources(pieces))
        translation = self.translator.target_tokenizer.decode_tensor(
            result["target_ids"]
        )
        return {"translation": translation, "score": result["score"]}

    def translate_ids(self, source_ids):
        """Translates ids `(N, S)`, each row through its end token."""
        target_ids, scores = self.translator.model.search(
            source_ids, self.translator.search
        )
        used = tf.reduce_any(tf.not_equal(target_ids, 0), axis=0)  # (T,)
        longest = tf.reduce_sum(tf.cast(used, tf.int32))
        return {"target_ids": target_ids[:, :longest], "score": scores}

    def _sources(self, pieces):
        """Adds the end token, but to empty text, and pads: `(N, S)`."""
        lengths = tf.cast(pieces.row_lengths(), tf.int32)[:, tf.newaxis]
        ids = tf.pad(pieces.to_tensor(), [[0, 0], [0, 1]])
        positions = tf.range(tf.shape(ids)[1])
        is_end = tf.equal(positions, lengths) & tf.greater(lengths, 0)
        return tf.where(is_end, self.translator.tokenizer.end_token_id, ids)

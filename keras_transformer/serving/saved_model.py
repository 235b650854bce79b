"""SavedModel: a folder that takes strings wherever TensorFlow runs."""

import contextlib
import io
import os

import keras
import tensorflow as tf

from keras_transformer.atomic import check_absent
from keras_transformer.atomic import new_folder


def export_saved_model(translator, path, overwrite: bool = False):
    """Writes a SavedModel whose graph holds text processing and search.

    Signatures:

    - `serving_default`: `text` string `(B,)` -> `translation` string `(B,)`,
      `score` float32 `(B,)`.
    - `translate_ids`: `source_ids` int32 `(B, S)` -> `target_ids` int32 `(B,
      T)`, `score` float32 `(B,)`. Rows of ids end with the end token, 3, then
      padding, 0.

    A program that loads it needs tensorflow, and tensorflow-text for its
    operations; not this library.

    Args:
        translator: A `Translator`.
        path: The folder; TensorFlow Serving wants a number for its name.
        overwrite: Whether to replace what is there.

    Raises:
        FileExistsError: If the folder is not empty, unless `overwrite` and it
            holds a SavedModel.
        RuntimeError: If Keras does not run on TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "A SavedModel can be exported with the TensorFlow backend only. "
            f"Received: backend {keras.backend.backend()!r}. Start Python "
            "with KERAS_BACKEND=tensorflow; the translator's folder is the "
            "same for every backend."
        )
    if (
        os.path.isdir(path)
        and os.listdir(path)
        and not os.path.isfile(os.path.join(path, "saved_model.pb"))
    ):
        raise FileExistsError(
            f"{os.fspath(path)!r} holds something else than a SavedModel, and "
            "nothing in it was touched. Export to another folder."
        )
    check_absent(path, overwrite)
    graph = TranslationGraph(translator)
    with new_folder(path, overwrite) as folder:
        archive = keras.export.ExportArchive()
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
        self.source_tokenizer = translator.tokenizer.tensor_tokenizer()
        self.target_tokenizer = translator.target_tokenizer.tensor_tokenizer()

    def translate_text(self, text):
        """Translates strings `(B,)`."""
        pieces = self.source_tokenizer.encode(text)
        result = self.translate_ids(self._sources(pieces))
        translation = self.target_tokenizer.decode(result["target_ids"])
        return {"translation": translation, "score": result["score"]}

    def translate_ids(self, source_ids):
        """Translates ids `(B, S)`, each row through its end token."""
        longest = self.translator.model.max_length
        if longest is not None:
            tf.debugging.assert_less_equal(
                tf.shape(source_ids)[1],
                longest,
                f"The source must not be longer than {longest} tokens.",
            )
        target_ids, scores = self.translator.model.search(
            source_ids, self.translator.search
        )
        used = tf.reduce_any(tf.not_equal(target_ids, 0), axis=0)  # (T,)
        longest = tf.reduce_sum(tf.cast(used, tf.int32))
        return {"target_ids": target_ids[:, :longest], "score": scores}

    def _sources(self, pieces):
        """Adds the end token, but to empty text, and pads: `(B, S)`."""
        lengths = tf.cast(pieces.row_lengths(), tf.int32)[:, tf.newaxis]
        ids = tf.pad(pieces.to_tensor(), [[0, 0], [0, 1]])
        positions = tf.range(tf.shape(ids)[1])
        is_end = tf.equal(positions, lengths) & tf.greater(lengths, 0)
        return tf.where(is_end, self.translator.tokenizer.end_token_id, ids)

"""Real sentences, text to text: how long a user of each engine waits.

Each engine is one class: made from a folder of `export`, its `translate` takes
and returns a list of strings. Every measurement has a process of its own, which
runs this file and imports what its engine needs, and what this file does: with
Keras, which TensorFlow imports, that is the core of this library too.
"""

import gc
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

from cases import search_of
from cases import thread_settings
from cases import width_of
from cases import worker_settings
from command import run_elsewhere

from keras_transformer.lengths import default_max_length
from keras_transformer.serving.run_export import peak_bytes

# Batch sizes to try with CTranslate2, in source tokens; its documentation
# suggests 1,024 to 2,048, and more suits some models.
BATCH_TOKENS = (1024, 2048, 4096)

# Our LiteRT files, and the quantisation of their weights.
LITERT = {"float32": None, "int8": "int8"}


def export(translator_folder: str, search: str, folder: str):
    """Writes the translator in every format, with that search.

    In float32, whatever it was trained in, as the other engines compute.
    """
    import keras_transformer as kt

    translator = kt.Translator.load(translator_folder).with_dtype("float32")
    translator.search = search_of(search)
    translator.save(os.path.join(folder, "translator"))
    translator.export_saved_model(os.path.join(folder, "saved_model"))
    for name, quantization in LITERT.items():
        path = os.path.join(folder, f"{name}.tflite")
        translator.export_litert(path, quantization, text=False)
    if importlib.util.find_spec("ctranslate2"):
        translator.export_ctranslate2(os.path.join(folder, "ctranslate2"))


class OurTranslator:
    """The Translator in Python."""

    title = "Translator"
    needs = ()
    jit_compile = False

    def __init__(self, folder, search, operation_threads=0):
        import tensorflow as tf

        import keras_transformer as kt

        tf.config.threading.set_intra_op_parallelism_threads(operation_threads)
        path = os.path.join(folder, "translator")
        self.translator = kt.Translator.load(path)

    @staticmethod
    def settings():
        return [{}, {"operation_threads": 1}]

    def translate(self, texts):
        return self.translator(texts, jit_compile=self.jit_compile)


class OurTranslatorXla(OurTranslator):
    """The Translator, compiled with XLA."""

    title = "Translator, XLA"
    jit_compile = True

    @staticmethod
    def settings():
        return [{}]


class OurSavedModel:
    """The SavedModel, whose graph needs tensorflow and tensorflow-text."""

    title = "SavedModel"
    needs = ()
    signature = "serving_default"

    def __init__(self, folder, search):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  (registers operations)

        path = os.path.join(folder, "saved_model")
        self.loaded = tf.saved_model.load(path)
        self.serve = self.loaded.signatures[self.signature]

    @staticmethod
    def settings():
        return [{}]

    def translate(self, texts):
        import tensorflow as tf

        translations = self.serve(text=tf.constant(texts))["translation"]
        return [text.decode() for text in translations.numpy()]


class OurSavedModelXla(OurSavedModel):
    """The SavedModel's signature that is compiled with XLA."""

    title = "SavedModel, XLA"
    signature = "translate_compiled"


class OurLiteRT:
    """The LiteRT file, in a process without TensorFlow."""

    title = "LiteRT float32"
    needs = ("ai-edge-litert",)
    weights = "float32"

    def __init__(self, folder, search, **workers):
        import keras_transformer as kt

        path = os.path.join(folder, f"{self.weights}.tflite")
        self.translator = kt.LiteRTTranslator(path, **workers)

    @staticmethod
    def settings():
        return worker_settings(batch=max(BATCH_TOKENS))

    def translate(self, texts):
        return self.translator(texts)


class OurLiteRTInt8(OurLiteRT):
    """The same with weights quantised to 8 bits."""

    title = "LiteRT int8"
    weights = "int8"


class CTranslate2:
    """CTranslate2, with SentencePiece before and after."""

    title = "CTranslate2 float32"
    needs = ("ctranslate2",)
    compute_type = "float32"

    def __init__(self, folder, search, max_batch_size, **threads):
        import ctranslate2
        import sentencepiece

        folder = os.path.join(folder, "ctranslate2")
        self.width = width_of(search)
        self.max_batch_size = max_batch_size
        self.source, self.target = (
            sentencepiece.SentencePieceProcessor(
                os.path.join(folder, f"{side}.spm")
            )
            for side in ("source", "target")
        )
        self.translator = ctranslate2.Translator(
            folder, compute_type=self.compute_type, **threads
        )

    @staticmethod
    def settings():
        return [
            {**threads, "max_batch_size": tokens}
            for threads in thread_settings(batch=max(BATCH_TOKENS))
            for tokens in BATCH_TOKENS
        ]

    def translate(self, texts):
        # Unknown text must be the unknown piece.
        ids = self.source.encode(texts)
        pieces = [self.source.id_to_piece(row) if row else [] for row in ids]
        results = self.translator.translate_batch(
            pieces,
            max_batch_size=self.max_batch_size,
            batch_type="tokens",
            beam_size=self.width,
            patience=1,
            length_penalty=0,
            min_decoding_length=0,
            # Ours limits each target by its source, this one all targets by
            # the longest source.
            max_decoding_length=default_max_length(max(map(len, pieces)) + 1),
        )
        return self.target.decode([one.hypotheses[0] for one in results])


class CTranslate2Int8(CTranslate2):
    """The same with weights quantised to 8 bits."""

    title = "CTranslate2 int8"
    compute_type = "int8"


ENGINES = {
    "translator": OurTranslator,
    "translator-xla": OurTranslatorXla,
    "saved-model": OurSavedModel,
    "saved-model-xla": OurSavedModelXla,
    "litert-float32": OurLiteRT,
    "litert-int8": OurLiteRTInt8,
    "ct2-float32": CTranslate2,
    "ct2-int8": CTranslate2Int8,
}
REFERENCE = "translator"
BASELINE = "ct2-float32"


def measure(
    name: str, folder: str, search: str, texts: list[str], setting: dict
) -> dict:
    """Translates twice in this process, which must be a new one.

    Returns:
        Seconds of the second call, seconds until the first result, peak
        resident memory in bytes, and the translations.
    """
    start = time.perf_counter()
    engine = ENGINES[name](folder, search, **setting)
    engine.translate(texts)
    first_result_seconds = time.perf_counter() - start
    gc.collect()  # else what loading has left may be collected in the call
    start = time.perf_counter()
    translations = engine.translate(texts)
    return {
        "seconds": time.perf_counter() - start,
        "first_result_seconds": first_result_seconds,
        "peak_bytes": peak_bytes(),
        "translations": translations,
    }


def measure_elsewhere(log, **job) -> dict:
    """Runs `measure` in a new process; what it prints goes to `log`."""
    return run_elsewhere(__file__, job, log)


if __name__ == "__main__":
    measured = measure(**json.load(sys.stdin))
    Path(sys.argv[1]).write_text(json.dumps(measured), "utf-8")

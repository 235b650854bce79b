"""A program that runs an export as any other program would.

`verify` starts it with a file that describes the task and one for the result.
A SavedModel is run with tensorflow and tensorflow_text alone, a LiteRT file
with `LiteRTTranslator`, which imports neither tensorflow nor Keras, a folder of
CTranslate2 with ctranslate2 and sentencepiece.
"""

import contextlib
import json
import os
import pathlib
import resource
import sys
import threading
import time

# Source tokens that CTranslate2 decodes at once; its documentation suggests
# 1,024 to 2,048.
BATCH_TOKENS = 2048


class SavedModel:
    """A function from strings to their translations and scores.

    Args:
        path: Folder of the SavedModel.
    """

    @staticmethod
    def prepare():
        """Imports what it needs, which is not part of loading it."""
        import tensorflow  # noqa: F401
        import tensorflow_text  # noqa: F401

    def __init__(self, path):
        import tensorflow as tf

        try:  # kept, as it must live as long as its signatures
            self._loaded = tf.saved_model.load(path)
        except (OSError, ValueError, IndexError, tf.errors.OpError) as error:
            raise ValueError(
                f"The SavedModel is damaged. Received: {path!r}: {error}"
            ) from error
        self._translate = self._loaded.signatures["serving_default"]

    def __call__(self, lines):
        import tensorflow as tf

        found = self._translate(text=tf.constant(lines, tf.string))
        translations = found["translation"].numpy().tolist()
        return _decoded(translations), found["score"].numpy()


class LiteRT:
    """Like `SavedModel`, of a LiteRT file."""

    @staticmethod
    def prepare():
        from keras_transformer.serving import litert_translator  # noqa: F401

        with contextlib.suppress(ImportError):  # loading explains it
            from ai_edge_litert import interpreter  # noqa: F401

    def __init__(self, path):
        from keras_transformer import LiteRTTranslator

        self._translate = LiteRTTranslator(path)

    def __call__(self, lines):
        return self._translate(lines, return_scores=True)


class CTranslate2:
    """Like `SavedModel`, of a folder of CTranslate2.

    Args:
        path: The folder.
        longest: Most tokens of a target.
        is_fast: Whether the translator joins pieces as tensorflow-text's fast
            operation does.
        **search: Arguments of `translate_batch`.
    """

    @staticmethod
    def prepare():
        from keras_transformer.system.extras import not_installed

        try:
            import ctranslate2  # noqa: F401
            import sentencepiece  # noqa: F401
        except ModuleNotFoundError as error:
            raise ImportError(
                not_installed("`verify_export`", error.name, "ctranslate2")
            ) from error

    def __init__(self, path, longest, is_fast, **search):
        import ctranslate2
        import sentencepiece

        from keras_transformer.pieces import Joiner

        try:
            self._translator = ctranslate2.Translator(path)
            # The names of `export_ctranslate2`, which imports Keras.
            self._source, target = (
                sentencepiece.SentencePieceProcessor(os.path.join(path, name))
                for name in ("source.spm", "target.spm")
            )
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"The CTranslate2 model cannot be read. Received: {path!r}: "
                f"{error}"
            ) from error
        self._pieces_to_ids = target.piece_to_id
        self._join = Joiner(target, is_fast)
        self._longest = longest
        self._search = search

    def __call__(self, lines):
        import numpy as np

        from keras_transformer.lengths import default_max_length

        # By their limit, as a batch has one for all.
        groups = {}
        for index, ids in enumerate(self._source.encode(lines)):
            limit = default_max_length(len(ids) + 1)  # and its end token
            limit = min(limit, self._longest)
            pieces = self._source.id_to_piece(ids)
            groups.setdefault(limit, []).append((index, pieces))
        translations = [None] * len(lines)
        scores = np.zeros(len(lines), "float32")
        for limit, members in groups.items():
            indices, sources = zip(*members, strict=True)
            results = self._translator.translate_batch(
                sources,
                max_batch_size=BATCH_TOKENS,
                batch_type="tokens",
                max_input_length=0,
                max_decoding_length=limit,
                return_scores=True,
                **self._search,
            )
            for index, result in zip(indices, results, strict=True):
                ids = self._pieces_to_ids(result.hypotheses[0])
                translations[index] = self._join(ids)
                scores[index] = result.scores[0]
        return translations, scores


def _decoded(value):
    if isinstance(value, list):
        return [_decoded(x) for x in value]
    return value.decode()


def peak_bytes():
    """Peak resident memory of this process, in bytes."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        for line in status.read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    # On Linux, this would include the process that started this one.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(format, path, lines, options):
    """Loads the export and translates the lines, after one to warm up."""
    kind = {
        "SavedModel": SavedModel,
        "LiteRT": LiteRT,
        "CTranslate2": CTranslate2,
    }[format]
    kind.prepare()
    start = time.perf_counter()
    translate = kind(path, **options)
    loaded = time.perf_counter()
    # Of an empty line, nothing would be computed.
    translate([next(filter(str.strip, lines), lines[0])])
    warm = time.perf_counter()
    translations, scores = translate(lines)
    end = time.perf_counter()
    return {
        "translations": translations,
        "scores": scores.tolist(),
        "load_seconds": loaded - start,
        "seconds_per_sentence": (end - warm) / len(lines),
        "peak_memory_bytes": peak_bytes(),
    }


def end_with_parent():
    """Ends this process when the one that started it ends."""
    # Not `sys.stdin.read`, whose lock Python needs on exit.
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    task, result = map(pathlib.Path, sys.argv[1:])
    try:
        measured = measure(**json.loads(task.read_text("utf-8")))
    except ImportError as error:
        measured = {"error": ["ImportError", str(error)]}
    except ValueError as error:
        measured = {"error": ["ValueError", str(error)]}
    result.write_text(json.dumps(measured), "utf-8")

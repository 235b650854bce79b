"""A program that runs an export as any other program would.

`verify` starts it with a file that describes the task and one for the result.
A SavedModel is run with tensorflow and tensorflow_text alone, a LiteRT file
with `LiteRTTranslator`, which imports neither tensorflow nor Keras.
"""

import contextlib
import json
import os
import pathlib
import resource
import sys
import threading
import time


def saved_model_loader(path):
    """Makes a function without arguments that loads a SavedModel.

    That returns a function from strings to their translations and scores.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    def load():
        try:
            loaded = tf.saved_model.load(path)
        except (OSError, ValueError, IndexError, tf.errors.OpError) as error:
            raise ValueError(
                f"The SavedModel is damaged. Received: {path!r}: {error}"
            ) from error
        translate = loaded.signatures["serving_default"]

        def run(lines):
            found = translate(text=tf.constant(lines, tf.string))
            translations = found["translation"].numpy().tolist()
            return _decoded(translations), found["score"].numpy()

        run.loaded = loaded  # it must live as long as its signatures
        return run

    return load


def litert_loader(path):
    """Like `saved_model_loader`, for a LiteRT file."""
    from keras_transformer import LiteRTTranslator

    with contextlib.suppress(ImportError):  # loading explains it
        from ai_edge_litert import interpreter  # noqa: F401

    def load():
        translate = LiteRTTranslator(path)
        return lambda lines: translate(lines, return_scores=True)

    return load


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


def measure(format, path, lines):
    """Loads the export and translates the lines, after one to warm up."""
    loaders = {"SavedModel": saved_model_loader, "LiteRT": litert_loader}
    load = loaders[format](path)
    start = time.perf_counter()
    run = load()
    loaded = time.perf_counter()
    run(lines[:1])
    warm = time.perf_counter()
    translations, scores = run(lines)
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
    except (ImportError, ValueError) as error:
        measured = {"error": [type(error).__name__, str(error)]}
    result.write_text(json.dumps(measured), "utf-8")

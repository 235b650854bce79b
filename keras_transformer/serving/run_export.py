"""Runs an export as any program would; a program of its own.

`verify` starts it with a file that says what to do and a file for the result.
A SavedModel is run with tensorflow and tensorflow_text alone, a LiteRT file
with `LiteRTTranslator`, which imports neither tensorflow nor Keras.
"""

import contextlib
import json
import pathlib
import resource
import sys
import time


def run_saved_model(path):
    """Gives a function that loads it and gives one of strings to strings."""
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
            return _strings(translate(text=tf.constant(lines, tf.string)))

        run.loaded = loaded  # it must live as long as its signatures
        return run

    return load


def run_litert(path):
    """Gives a function that loads it and gives one of strings to strings."""
    from keras_transformer import LiteRTTranslator

    with contextlib.suppress(ImportError):  # which loading explains
        from ai_edge_litert import interpreter  # noqa: F401
    return lambda: LiteRTTranslator(path)


def _strings(outputs):
    def decoded(value):
        if isinstance(value, list):
            return [decoded(x) for x in value]
        return value.decode()

    return decoded(outputs["translation"].numpy().tolist())


def peak_bytes():
    """Most resident memory that this process has had."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        for line in status.read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    # On Linux this would count the process that started this one too.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(format, path, lines):
    """Translates the lines, after one to warm up."""
    load = {"SavedModel": run_saved_model, "LiteRT": run_litert}[format](path)
    start = time.perf_counter()
    run = load()
    loaded = time.perf_counter()
    run(lines[:1])
    warm = time.perf_counter()
    translations = run(lines)
    end = time.perf_counter()
    return {
        "translations": translations,
        "load_seconds": loaded - start,
        "seconds_per_sentence": (end - warm) / len(lines),
        "peak_memory_bytes": peak_bytes(),
    }


if __name__ == "__main__":
    task, result = map(pathlib.Path, sys.argv[1:])
    try:
        measured = measure(**json.loads(task.read_text("utf-8")))
    except (ImportError, ValueError) as error:
        measured = {"error": [type(error).__name__, str(error)]}
    result.write_text(json.dumps(measured), "utf-8")

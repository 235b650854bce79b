"""Many threads and one exported model, in a process of its own.

The process runs this file and imports only what its engine needs.
"""

import json
import os
import random
import sys
import threading
import time
from pathlib import Path

from command import run_elsewhere

NUM_REQUESTS = 500  # different ones
SENTENCES = (1, 1, 1, 2, 3, 5, 8)  # per request, drawn from these
SEED = 1
# Memory and throughput are sampled once a second, but at least this often.
LEAST_SAMPLES = 24
# Share of the time in which memory may still grow.
WARM_UP = 1 / 6
# Memory may grow by the greater of the two and still count as flat.
FLAT_SHARE = 0.05
FLAT_BYTES = 20_000_000
# Makes TensorFlow log when XLA has compiled something, and what it logs.
LOG_COMPILATIONS = {"TF_CPP_VMODULE": "device_compiler=1"}
COMPILATION = b"Compilation of XLA executable time"


class SavedModel:
    """One loaded SavedModel, shared by all threads."""

    title = "SavedModel"

    def __init__(self, path):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  (registers operations)

        self.constant = tf.constant
        self.loaded = tf.saved_model.load(path)
        self.serve = self.loaded.signatures["serving_default"]

    def translators(self, number):
        return [self.translate] * number

    def translate(self, texts):
        translations = self.serve(text=self.constant(texts))["translation"]
        return translations.numpy().tolist()

    @staticmethod
    def num_traces():
        from tensorflow.python.eager import context

        return len(context.context().list_function_names())


class LiteRT:
    """A LiteRT runner for each thread: threads cannot share interpreters."""

    title = "LiteRT"

    def __init__(self, path):
        self.path = path

    def translators(self, number):
        from keras_transformer.serving.litert_translator import LiteRTTranslator

        return [LiteRTTranslator(self.path) for _ in range(number)]

    @staticmethod
    def num_traces():
        return 0  # there is nothing to trace in an interpreter


ENGINES = {"saved-model": SavedModel, "litert": LiteRT}


class Load:
    """Threads that translate, and what they have done so far.

    Args:
        requests: Lists of strings.
    """

    def __init__(self, requests):
        self.requests = requests
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.answers = {}  # the first to each request, by its index
        self.num_calls = self.num_sentences = self.num_different = 0
        self.errors = []

    def run(self, translators, seconds, state):
        """Runs a thread for each translator.

        Returns:
            A sample for each second, or more of them in a short time.
        """
        threads = [
            threading.Thread(target=self._translate, args=pair)
            for pair in enumerate(translators)
        ]
        interval = min(1.0, seconds / LEAST_SAMPLES)
        samples, done = [], 0
        start = last = time.perf_counter()
        for thread in threads:
            thread.start()
        try:
            # A fixed number, so that a machine that sleeps loses no sample.
            for _ in range(round(seconds / interval)):
                time.sleep(interval)
                now = time.perf_counter()
                before, done = done, self.num_sentences
                samples.append(
                    {
                        "second": now - start,
                        "sentences_per_second": (done - before) / (now - last),
                        **state(),
                    }
                )
                last = now
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()
        return samples

    def count_different(self, translate):
        """Translates again, one request at a time; counts unequal answers."""
        return self.num_different + sum(
            translate(self.requests[place]) != answer
            for place, answer in self.answers.items()
        )

    def _translate(self, seed, translate):
        generator = random.Random(seed)
        while not self.stop.is_set():
            place = generator.randrange(len(self.requests))
            try:
                answer = translate(self.requests[place])
            except Exception as error:
                with self.lock:
                    self.errors.append(f"{type(error).__name__}: {error}")
                return
            with self.lock:
                self.num_calls += 1
                self.num_sentences += len(answer)
                first = self.answers.setdefault(place, answer)
                self.num_different += first != answer


def measure(
    name: str, path: str, texts: list[str], threads: int, seconds: float, log
) -> dict:
    """Translates with many threads, and then with one to compare.

    The comparison comes last, so that each length is new to the threads.

    Returns:
        The samples, the number of calls, how many answers differ between
        threads or from the serial ones, and the errors.
    """
    engine = ENGINES[name](path)
    translators = engine.translators(threads)
    load = Load(make_requests(texts))

    def state():
        return {
            "bytes": resident_bytes(),
            "traces": engine.num_traces(),
            "compilations": Path(log).read_bytes().count(COMPILATION),
        }

    samples = load.run(translators, seconds, state)
    return {
        "samples": samples,
        "calls": load.num_calls,
        "different": load.count_different(translators[0]),
        "errors": load.errors,
    }


def measure_elsewhere(log: Path, **job) -> dict:
    """Runs `measure` in a new process; what it prints goes to `log`."""
    environment = {**LOG_COMPILATIONS, "TF_CPP_MIN_LOG_LEVEL": "0"}
    with open(log, "wb") as file:
        return run_elsewhere(
            __file__, {**job, "log": os.fspath(log)}, file, environment
        )


def make_requests(texts: list[str]) -> list[list[str]]:
    """Draws a few texts for each request."""
    generator = random.Random(SEED)
    return [
        generator.choices(texts, k=generator.choice(SENTENCES))
        for _ in range(NUM_REQUESTS)
    ]


def judge(measured: dict) -> dict:
    """Judges memory, tracing and compilation after the warm-up.

    Memory is flat if its peak in the last third exceeds its peak in the first
    third by at most 5 % or 20 MB, whichever is greater.
    """
    samples = measured["samples"]
    warm = samples[round(WARM_UP * len(samples)) :]
    third = len(warm) // 3
    first, last = (
        max(sample["bytes"] for sample in part)
        for part in (warm[:third], warm[-third:])
    )
    found = {
        "first_third_bytes": first,
        "last_third_bytes": last,
        "is_flat": last - first <= max(FLAT_SHARE * first, FLAT_BYTES),
    }
    for name in ("traces", "compilations"):
        found[f"new_{name}"] = warm[-1][name] - warm[0][name]
    return found


def is_good(measured: dict) -> bool:
    """Whether what was measured and judged shows no fault."""
    wrong = ("different", "errors", "new_traces", "new_compilations")
    return (
        measured["calls"] > 0
        and measured["is_flat"]
        and not any(measured[name] for name in wrong)
    )


def resident_bytes() -> int:
    """Resident memory of this process in bytes, on Linux."""
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    found = measure(**json.load(sys.stdin))
    Path(sys.argv[1]).write_text(json.dumps(found), "utf-8")

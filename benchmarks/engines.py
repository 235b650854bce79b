"""Engines that decode one batch, each in a process of its own.

An engine is a class: made from the folder of `make_weights`, its `prepare`
returns a function that decodes all sentences of a case once. To add an engine,
add a class to `ENGINES`.

Heavy imports wait until a process needs them: each process has its own
libraries, and thread pools that no other engine disturbs.
"""

import importlib.util
import math
import os
import queue
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cases import Case
from cases import pieces_of
from cases import search_of
from cases import sources
from cases import thread_settings
from cases import token_id_of
from cases import worker_settings
from peers import KerasHub
from peers import Marian

# Short calls are repeated for this many seconds, and count as one run.
REPEAT_SECONDS = 0.5
# For this many seconds after a call, an engine's threads may still spin.
SETTLE_SECONDS = 0.3
# Thread settings are compared on targets of at most this many tokens.
CALIBRATION_LENGTH = 24


def forced(source_ids, lengths):
    """Inputs of `DecodingLoop` for targets of exactly these lengths."""
    return {
        "source_ids": source_ids,
        "min_lengths": lengths,
        "max_lengths": lengths,
    }


class Graph:
    """Our search as a TensorFlow graph, as in the SavedModel."""

    title = "ours, graph"
    needs = ()
    has_same_weights = True

    def __init__(self, folder):
        import keras_transformer as kt

        path = os.path.join(folder, "translator")
        self.model = kt.Translator.load(path).model

    def settings(self, case):
        return [{}]

    def prepare(self, case):
        import tensorflow as tf

        from keras_transformer.decoding import DecodingLoop
        from keras_transformer.tensorflow_only.graphs import graph_for

        search = search_of(case.search)

        # As in the SavedModel, the graph is made for any shape.
        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
        def decode(source_ids):
            lengths = tf.fill([tf.shape(source_ids)[0]], case.length)
            decode = DecodingLoop(self.model, search, capacity=case.length)
            with graph_for("tensorflow"):
                found = decode.in_segments(forced(source_ids, lengths))
            return found.target_ids

        source_ids = tf.constant(sources(case))
        return lambda: decode(source_ids).numpy()[:, 0]

    def target_ids(self, outputs):
        return outputs.tolist()


class Xla(Graph):
    """`Transformer.generate`, compiled with XLA."""

    title = "ours, XLA"

    def prepare(self, case):
        search = search_of(case.search)
        source_ids = sources(case)
        return lambda: self.model.generate(
            source_ids,
            search=search,
            min_length=case.length,
            max_length=case.length,
            return_scores=False,
            jit_compile=True,
        )[0]


class LiteRT(Graph):
    """The graph of a LiteRT file, with its best thread setting.

    Workers decode the sentences in batches, as in `LiteRTTranslator`.
    """

    title = "ours, LiteRT float32"
    needs = ("ai-edge-litert",)
    quantization = None
    screening = True

    def __init__(self, folder):
        super().__init__(folder)
        self.contents = {}

    def settings(self, case):
        return worker_settings(case.batch)

    def prepare(self, case, num_threads=1, num_workers=1):
        from ai_edge_litert.interpreter import Interpreter

        from keras_transformer.serving.litert import hypotheses_per_batch
        from keras_transformer.serving.litert_translator import (
            sentences_per_batch,
        )

        best = hypotheses_per_batch(self.model, self.quantization) / case.width
        size = sentences_per_batch(case.batch, num_workers, best)
        batches = [
            sources(case)[start : start + size]
            for start in range(0, case.batch, size)
        ]
        runners = queue.SimpleQueue()
        for _ in range(num_workers):
            interpreter = Interpreter(
                model_content=self._content(case.search),
                num_threads=num_threads,
            )
            runners.put(interpreter.get_signature_runner())

        def run(batch):
            runner = runners.get()
            lengths = np.full(len(batch), case.length, "int32")
            try:
                found = runner(source_ids=batch, lengths=lengths)
            finally:
                runners.put(runner)
            return found["target_ids"][:, 0]

        if num_workers == 1:
            return lambda: np.concatenate([*map(run, batches)])
        workers = ThreadPoolExecutor(num_workers)
        return lambda: np.concatenate([*workers.map(run, batches)])

    def _content(self, name):
        """Converts as `export_litert` does, with lengths as an input."""
        if name not in self.contents:
            import tensorflow as tf

            from keras_transformer.decoding import DecodingLoop
            from keras_transformer.serving.litert import convert_function
            from keras_transformer.serving.litert_screen import screen_for
            from keras_transformer.serving.litert_weights import Weights

            search = search_of(name)
            screen = None
            if self.screening and self.quantization is None:
                screen = screen_for(self.model, search)
            weights = Weights(self.model, self.quantization, screen)

            def decoded(source_ids, lengths):
                decode = DecodingLoop(self.model, search, screen=screen)
                found = decode.in_segments(forced(source_ids, lengths))
                return {"target_ids": found.target_ids}

            self.contents[name] = convert_function(
                weights,
                decoded,
                tf.TensorSpec([None, None], tf.int32, name="source_ids"),
                tf.TensorSpec([None], tf.int32, name="lengths"),
            )
        return self.contents[name]


class LiteRTInt8(LiteRT):
    """The same with weights quantised to 8 bits."""

    title = "ours, LiteRT int8"
    quantization = "int8"


class LiteRTUnscreened(LiteRT):
    """LiteRT with all logits computed in float32."""

    title = "ours, LiteRT float32 unscreened"
    screening = False


# Hypotheses that CTranslate2 may decode at once, besides all of a worker's:
# ours are split, too.
SMALLER_BATCHES = (16, 32, 64)


class CTranslate2:
    """CTranslate2 on the exported weights, with its best setting."""

    title = "CTranslate2 float32"
    needs = ("ctranslate2",)
    has_same_weights = True
    compute_type = "float32"

    def __init__(self, folder):
        self.folder = os.path.join(folder, "ctranslate2")
        self.translators = {}

    def settings(self, case):
        found = []
        for threads in thread_settings(case.batch):
            share = math.ceil(case.batch / threads["inter_threads"])
            sizes = {size // case.width for size in SMALLER_BATCHES}
            sizes = [share, *(size for size in sizes if 0 < size < share)]
            found += [{**threads, "max_batch_size": size} for size in sizes]
        return found

    def prepare(self, case, max_batch_size, **threads):
        pieces = pieces_of(case.vocabulary_size)
        # The engine adds the end token.
        texts = [[pieces[i] for i in row[:-1]] for row in sources(case)]
        translator = self._translator(**threads)
        return lambda: translator.translate_batch(
            texts,
            max_batch_size=max_batch_size,
            beam_size=case.width,
            patience=1,
            length_penalty=0,
            min_decoding_length=case.length,
            max_decoding_length=case.length,
        )

    def target_ids(self, outputs):
        return [
            [token_id_of(piece) for piece in one.hypotheses[0]]
            for one in outputs
        ]

    def _translator(self, **threads):
        import ctranslate2

        key = tuple(threads.values())
        if key not in self.translators:
            self.translators[key] = ctranslate2.Translator(
                self.folder, compute_type=self.compute_type, **threads
            )
        return self.translators[key]


class CTranslate2Int8(CTranslate2):
    """The same with weights quantised to 8 bits."""

    title = "CTranslate2 int8"
    compute_type = "int8"


ENGINES = {
    "graph": Graph,
    "xla": Xla,
    "litert": LiteRT,
    "litert-int8": LiteRTInt8,
    "litert-unscreened": LiteRTUnscreened,
    "ct2-float32": CTranslate2,
    "ct2-int8": CTranslate2Int8,
    "keras-hub": KerasHub,
    "marian": Marian,
}
BASELINE = "ct2-float32"

_OURS = ("graph", "xla", "litert", "litert-unscreened")
# Other engines, and those of ours that compute with the same kind of weights.
PEERS = {
    "ct2-float32": _OURS,
    "ct2-int8": ("litert-int8",),
    "keras-hub": _OURS,
    "marian": _OURS,
}


def missing(needs) -> list[str]:
    """The packages that are not installed, by the names that pip knows."""
    return [
        name
        for name in needs
        if importlib.util.find_spec(name.replace("-", "_")) is None
    ]


class _Process:
    """What this process has loaded; it serves one engine."""

    engine = None
    call = None
    num_calls = 1


def load(name: str, folder: str):
    """Makes the engine of this process."""
    _Process.engine = ENGINES[name](folder)


def prepare(case: Case) -> dict:
    """Finds the best setting, and warms up.

    Returns:
        The setting, the seconds of the first call with the compilation in it,
        and the target ids of each sentence.
    """
    engine = _Process.engine
    setting = _fastest(engine, case)
    _Process.call = engine.prepare(case, **setting)
    start = time.perf_counter()
    outputs = _Process.call()
    first_seconds = time.perf_counter() - start
    _Process.num_calls = _number_of_calls(_Process.call)
    target_ids = engine.target_ids(outputs)
    lengths = {len(row) for row in target_ids}
    if len(target_ids) != case.batch or lengths != {case.length}:
        raise RuntimeError(
            f"{engine.title} must decode {case.batch} targets of {case.length} "
            f"tokens. Received: {len(target_ids)} of {sorted(lengths)} tokens."
        )
    return {
        "setting": setting,
        "first_seconds": first_seconds,
        "target_ids": target_ids,
    }


def measure() -> float:
    """Seconds of one call, once the other engines' threads are asleep."""
    time.sleep(SETTLE_SECONDS)
    if _Process.num_calls > 1:
        _Process.call()  # brings the weights back into the caches
    return _mean_seconds(_Process.call, _Process.num_calls)


def _fastest(engine, case):
    settings = engine.settings(case)
    if len(settings) == 1:
        return settings[0]
    short = case._replace(length=min(case.length, CALIBRATION_LENGTH))

    def seconds(setting):
        call = engine.prepare(short, **setting)
        call()
        num_calls = _number_of_calls(call)
        return min(_mean_seconds(call, num_calls) for _ in range(2))

    return min(settings, key=seconds)


def _number_of_calls(call):
    seconds = _mean_seconds(call, 1)
    if seconds < REPEAT_SECONDS:  # a short call is easily disturbed
        seconds = min(seconds, _mean_seconds(call, 1))
    return max(1, math.ceil(REPEAT_SECONDS / seconds))


def _mean_seconds(call, num_calls):
    start = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - start) / num_calls

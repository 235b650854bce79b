"""Time per step against the position in the target."""

import os
import time

from cases import Case
from cases import search_of
from cases import sources

BATCH = 8
CAPACITY = 1_000  # tokens
INTERVAL = 100  # tokens between two points


def measure(folder: str, size: str, jit_compile: bool, runs: int) -> dict:
    """Measures how long our greedy steps take, 100 positions at a time.

    Each search starts at another position, with room for all positions. The
    cache of earlier positions is zero: values do not change the time.

    Returns:
        The middles of the intervals, and milliseconds `(runs, positions)`.
    """
    import keras_transformer as kt

    model = kt.Translator.load(os.path.join(folder, "translator")).model
    decode = _decoder(model, Case(size, "greedy", BATCH, INTERVAL), jit_compile)
    starts = range(0, CAPACITY, INTERVAL)
    decode(starts[0])  # traces and compiles

    def milliseconds(start):
        begin = time.perf_counter()
        decode(start)
        return 1000 * (time.perf_counter() - begin) / INTERVAL

    return {
        "size": size,
        "title": "XLA" if jit_compile else "graph",
        "positions": [start + INTERVAL / 2 for start in starts],
        "ms_per_step": [
            [milliseconds(start) for start in starts] for _ in range(runs)
        ],
    }


def _decoder(model, case, jit_compile):
    """Makes a function that decodes a case from a given position on."""
    import tensorflow as tf

    from keras_transformer.masking import padding_mask
    from keras_transformer.search import Problem

    search = search_of(case.search)
    source_ids = tf.constant(sources(case))
    encoded_mask = padding_mask(source_ids)
    encoded_cache = model.decoder.encoded_cache(model.encode(source_ids))
    lengths = tf.fill([case.batch], case.length)
    start_ids = tf.fill([case.batch], model.start_token_id)

    @tf.function(jit_compile=jit_compile)
    def decode(start):
        def step(token_ids, position, cache, ancestry):
            return model.decode_step(
                token_ids,
                start + position,
                cache,
                encoded_cache,
                encoded_mask,
                ancestry,
            )

        return search(
            step,
            model.decoder.start_cache(case.batch, CAPACITY),
            Problem(
                start_ids,
                max_lengths=lengths,
                capacity=case.length,
                end_token_id=model.end_token_id,
                min_lengths=lengths,
            ),
        ).target_ids

    return lambda start: decode(tf.constant(start)).numpy()

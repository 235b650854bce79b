"""The machine, and how fast it can be: a lower bound on every engine's time."""

import importlib.metadata
import os
import platform
import time
from pathlib import Path

import numpy as np
from cases import SOURCE_LENGTH
from cases import Case

from keras_transformer.system.cores import num_cores

PACKAGES = (
    "keras-transformer",
    "tensorflow",
    "tensorflow-text",
    "keras",
    "jax",
    "numpy",
    "sentencepiece",
    "ai-edge-litert",
    "ctranslate2",
    "keras-hub",
    "torch",
    "transformers",
)
# The CPU flags of the instructions that matter here.
FLAGS = {
    "avx512": ("avx512f",),
    "vnni": ("avx512_vnni", "avx_vnni"),
    "bf16": ("avx512_bf16", "amx_bf16"),
}
FLOAT_BYTES = 4
DTYPES = ("float32", "bfloat16")
# Side of the square matrices whose product is measured.
MATRIX_SIZE = 2048
GPU_MATRIX_SIZE = 8192
# Each measurement is repeated for this many seconds; the best one counts.
PROBE_SECONDS = 0.3
# Reading fewer bytes takes so little time that Python would be measured.
LEAST_BYTES = 2**20
# Far more bytes than any cache holds.
MEMORY_BYTES = 2**29


def describe() -> dict:
    """The processor, its instructions and the memory."""
    text = ""
    if os.path.exists("/proc/cpuinfo"):  # on Linux
        text = Path("/proc/cpuinfo").read_text("utf-8")
    fields = dict(
        (part.strip() for part in line.split(":", 1))
        for line in text.splitlines()
        if ":" in line
    )
    found = set(fields.get("flags", "").split())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": fields.get("model name") or platform.processor(),
        "cores": num_cores(),
        "flags": {
            name: not found.isdisjoint(names) for name, names in FLAGS.items()
        },
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def ceilings() -> dict[str, float]:
    """Measures the fastest matrix products, and reading from memory.

    Returns:
        Floating-point operations per second of each dtype, and bytes per
        second.
    """
    return {**product_rates(), "bytes_per_second": bandwidth(MEMORY_BYTES)}


def product_rates() -> dict[str, float]:
    """Measures the fastest matrix product of each dtype on the processor.

    Returns:
        Floating-point operations per second.
    """
    import tensorflow as tf

    random = np.random.default_rng(1)
    x = random.random((MATRIX_SIZE, MATRIX_SIZE), dtype="float32")
    rates = {}
    for dtype in DTYPES:
        tensor = tf.cast(x, dtype)
        calls = [lambda tensor=tensor: tf.matmul(tensor, tensor).numpy()]
        if dtype == "float32":
            calls.append(lambda: np.matmul(x, x))
        rates[f"{dtype}_per_second"] = (
            2 * MATRIX_SIZE**3 / _best_seconds(*calls)
        )
    return rates


def jax_product_rates() -> dict:
    """Measures the same on JAX's device, a GPU if there is one.

    Returns:
        The name of the device, and floating-point operations per second.
    """
    import jax

    [device, *_] = jax.local_devices()
    size = MATRIX_SIZE if device.platform == "cpu" else GPU_MATRIX_SIZE
    product = jax.jit(jax.numpy.matmul)
    rates = {"device": device.device_kind}
    for dtype in DTYPES:
        x = jax.random.uniform(jax.random.key(1), (size, size), dtype)
        seconds = _best_seconds(lambda x=x: product(x, x).block_until_ready())
        rates[f"{dtype}_per_second"] = 2 * size**3 / seconds
    return rates


# By the backend of Keras.
PRODUCT_RATES = {"tensorflow": product_rates, "jax": jax_product_rates}


def bandwidth(num_bytes: int) -> float:
    """Measures the rate of reading this many bytes again and again, in bytes/s.

    Few bytes stay in a cache, and are read faster than from memory.
    """
    import tensorflow as tf

    columns = 1024
    num_bytes = max(num_bytes, LEAST_BYTES)
    rows = num_bytes // columns // FLOAT_BYTES
    x = np.ones((rows, columns), "float32")
    vector = np.ones(columns, "float32")
    tensor = tf.constant(x)
    seconds = _best_seconds(
        lambda: np.matmul(x, vector),
        lambda: tf.linalg.matvec(tensor, vector).numpy(),
        lambda: tf.reduce_sum(tensor).numpy(),
    )
    return x.nbytes / seconds


def floor(sizes: dict[str, int], case: Case, ceilings: dict[str, float]):
    """Computes the milliseconds per step that no float32 engine can beat.

    A step reads the weights of the decoder, the output matrix and the cached
    keys and values once, and multiplies; the slower of the two counts, as the
    other may overlap with it. The same holds for the encoder, whose time is
    spread over the steps, as in the measurements.

    Args:
        sizes: The sizes, from `cases.make_weights`.
        case: The `Case`.
        ceilings: The rates, from `ceilings`.

    Returns:
        Milliseconds, and what they are computed from.
    """
    num_layers = sizes["num_layers"]
    hidden_dim = sizes["hidden_dim"]
    feed_forward = 2 * hidden_dim * sizes["intermediate_dim"]
    output = sizes["vocabulary_size"] * hidden_dim
    # Queries, keys, values and output; queries and output of cross-attention.
    decoder = num_layers * (6 * hidden_dim**2 + feed_forward) + output
    # With the keys and values that cross-attention makes of its output.
    encoder = num_layers * (6 * hidden_dim**2 + feed_forward)

    rows = case.batch * case.width
    mean_length = (case.length + 1) / 2
    kept = 2 * num_layers * hidden_dim  # keys and values of a position
    caches = kept * (rows * mean_length + case.batch * SOURCE_LENGTH)
    attended = kept * rows * (mean_length + SOURCE_LENGTH)

    def seconds(weights, caches, products):
        num_bytes = FLOAT_BYTES * int(weights + caches)
        # Fewer bytes are read at least as fast as from memory; others that
        # share the machine may slow down what is measured now.
        rate = max(bandwidth(num_bytes), ceilings["bytes_per_second"])
        multiplying = 2 * products / ceilings["float32_per_second"]
        return num_bytes, max(num_bytes / rate, multiplying)

    step_bytes, step_seconds = seconds(
        decoder, caches, rows * decoder + attended
    )
    _, encoder_seconds = seconds(
        encoder, 0, case.batch * SOURCE_LENGTH * encoder
    )
    return {
        "floor_ms": 1000 * (step_seconds + encoder_seconds / case.length),
        "floor_of_encoder_ms": 1000 * encoder_seconds / case.length,
        "bytes_per_step": step_bytes,
        "multiply_adds_per_step": int(rows * decoder + attended),
    }


def _best_seconds(*calls):
    """Seconds of the fastest call of any of the functions."""
    best = float("inf")
    for call in calls:
        call()  # which may compile it
        end = time.perf_counter() + PROBE_SECONDS
        while time.perf_counter() < end:
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
    return best

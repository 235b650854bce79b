"""Engines that train, with each run in a process of its own.

A library is a class: made from a case, it trains on batches and returns how
long that took. An engine is a library in one of its dtypes, compiled or not.
All have the same sizes, the same batches, the same loss and Adam.

Heavy imports wait until a process needs them, as in `engines`.
"""

import collections
import math
import os
import re
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from cases import SEED
from peers import marian_config
from training_case import LABEL_SMOOTHING
from training_case import TEXT_LENGTH
from training_case import TrainingCase
from training_case import read_epoch
from training_case import synthetic_batch
from training_case import text_batches

from keras_transformer.serving.run_export import peak_bytes
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.system.cores import num_cores

WARM_UP = 2  # steps
ADAM = {"lr": 1e-4, "betas": (0.9, 0.98), "eps": 1e-9}
# The profiler's name of an operation: its place in the graph, and its kind.
OPERATION = re.compile(r"[^:]*/[^:]*:(\w+)")
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


class Ours:
    """Our `Transformer`, trained with `fit`."""

    title = "ours"
    needs = ()
    compiler = "XLA"

    def __init__(self, case, dtype, is_compiled):
        import keras

        import keras_transformer as kt

        keras.utils.set_random_seed(SEED)
        keras.config.set_dtype_policy(POLICIES[dtype])
        self.model = self.make_model(case)
        beta_1, beta_2 = ADAM["betas"]
        self.model.compile(
            self.adam(ADAM["lr"], beta_1, beta_2, epsilon=ADAM["eps"]),
            loss=kt.LabelSmoothedCrossentropy(LABEL_SMOOTHING),
            jit_compile=is_compiled,
        )

    def make_model(self, case):
        import keras_transformer as kt

        return kt.Transformer(case.vocabulary_size, **case.sizes)

    def adam(self, *arguments, **options):
        import keras_transformer as kt

        return kt.Adam(*arguments, **options)

    def repeated(self, batch, times):
        import keras

        if keras.backend.backend() != "tensorflow":  # it may be missing there
            return [batch] * times
        import tensorflow as tf

        return tf.data.Dataset.from_tensors(batch).repeat(times)

    def epoch(self, case):
        import keras

        if keras.backend.backend() != "tensorflow":
            import tensorflow as tf

            # It only reads batches, but would take the GPU's memory.
            tf.config.set_visible_devices([], "GPU")
        return text_batches(case)

    def train(self, batches) -> float:
        """Trains an epoch; returns the seconds from first batch to loss."""
        import keras

        seconds = []

        def note(epoch, logs):
            seconds.append(time.perf_counter())

        timer = keras.callbacks.LambdaCallback(
            on_epoch_begin=note, on_epoch_end=note
        )
        steps = None
        if isinstance(batches, list):  # which Keras takes for one batch
            steps, batches = len(batches), (batch for batch in batches)
        self.model.fit(
            batches,
            steps_per_epoch=steps,
            shuffle=False,
            verbose=0,
            callbacks=[timer],
        )
        return seconds[1] - seconds[0]

    def profile(self, batches) -> dict[str, float]:
        """Trains an epoch; returns the seconds of each TensorFlow operation.

        They are summed over all threads, and so exceed the time that has passed
        where operations run at the same time.
        """
        import tensorflow as tf
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        with tempfile.TemporaryDirectory() as folder:
            with tf.profiler.experimental.Profile(folder):
                self.train(batches)
            [path] = Path(folder).glob("**/*.xplane.pb")
            space = xplane_pb2.XSpace.FromString(path.read_bytes())
        seconds = collections.Counter()
        for plane in space.planes:
            for line in plane.lines:
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    if operation := OPERATION.fullmatch(name):
                        seconds[operation[1]] += event.duration_ps / 1e12
        return dict(seconds.most_common())

    def peak_bytes(self):
        import keras

        if keras.backend.backend() == "jax":
            import jax

            statistics = jax.local_devices()[0].memory_stats()
            if statistics:  # a CPU has none
                return statistics["peak_bytes_in_use"]
        return peak_bytes()


class OursDeterministic(Ours):
    """The same as `keras-transformer train --deterministic` computes it."""

    title = "ours, deterministic"

    def __init__(self, *arguments):
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
        super().__init__(*arguments)


class OursRematerialized(Ours):
    """The same as `keras-transformer train --rematerialize` computes it."""

    title = "ours, rematerialized"

    def make_model(self, case):
        import keras_transformer as kt

        return kt.Transformer(
            case.vocabulary_size, **case.sizes, rematerialize=True
        )


class KerasHub(Ours):
    """keras-hub's layers, with the output tied to the embedding.

    Their dropout always applies to attention weights too.
    """

    title = "keras-hub"
    needs = ("keras-hub",)

    def make_model(self, case):
        import keras
        from keras_hub import layers

        sizes = case.sizes
        hidden_dim = sizes["hidden_dim"]
        dropout = sizes["dropout"]
        stack = {
            "intermediate_dim": sizes["intermediate_dim"],
            "num_heads": sizes["num_heads"],
            "dropout": dropout,
        }
        embedding = layers.ReversibleEmbedding(case.vocabulary_size, hidden_dim)
        positions = layers.SinePositionEncoding()

        def embedded(ids):
            x = embedding(ids) * math.sqrt(hidden_dim)
            return keras.layers.Dropout(dropout)(x + positions(x))

        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("source_ids", "target_ids")
        }
        is_source, is_target = (
            keras.ops.not_equal(ids, PAD_TOKEN_ID) for ids in inputs.values()
        )
        encoded = embedded(inputs["source_ids"])
        for _ in range(sizes["num_layers"]):
            layer = layers.TransformerEncoder(**stack)
            encoded = layer(encoded, padding_mask=is_source)
        x = embedded(inputs["target_ids"])
        for _ in range(sizes["num_layers"]):
            layer = layers.TransformerDecoder(**stack)
            x = layer(
                x,
                encoded,
                decoder_padding_mask=is_target,
                encoder_padding_mask=is_source,
            )
        return keras.Model(inputs, embedding(x, reverse=True))

    def adam(self, *arguments, **options):
        import keras

        return keras.optimizers.Adam(*arguments, **options)


class Torch:
    """`torch.nn.Transformer`, with the output tied to the embedding."""

    title = "torch nn.Transformer"
    needs = ("torch",)
    compiler = "torch.compile"

    def __init__(self, case, dtype, is_compiled):
        import torch

        torch.manual_seed(SEED)
        torch.set_num_threads(num_cores())
        # With TensorFlow, all use the CPU: its PyPI package knows no GPU.
        is_for_gpu = os.environ.get("KERAS_BACKEND") == "jax"
        has_gpu = is_for_gpu and torch.cuda.is_available()
        self.device = "cuda" if has_gpu else "cpu"
        self.dtype = dtype
        self.model = self.make_model(case).to(self.device).train()
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), **ADAM, fused=True
        )
        self.loss = torch.compile(self._loss) if is_compiled else self._loss

    def make_model(self, case):
        from torch import nn

        sizes = case.sizes
        hidden_dim = sizes["hidden_dim"]
        embedding = nn.Embedding(case.vocabulary_size, hidden_dim)
        nn.init.normal_(embedding.weight, std=hidden_dim**-0.5)
        stacks = nn.Transformer(
            hidden_dim,
            sizes["num_heads"],
            sizes["num_layers"],
            sizes["num_layers"],
            sizes["intermediate_dim"],
            sizes["dropout"],
            batch_first=True,
        )
        for layer in (*stacks.encoder.layers, *stacks.decoder.layers):
            # The paper applies no dropout to inner units or attention weights.
            layer.dropout.p = layer.self_attn.dropout = 0.0
        for layer in stacks.decoder.layers:
            layer.multihead_attn.dropout = 0.0
        dropout = nn.Dropout(sizes["dropout"])
        self.positions = _positions(hidden_dim).to(self.device)
        return nn.ModuleDict(
            {"embedding": embedding, "dropout": dropout, "stacks": stacks}
        )

    def logits(self, source_ids, target_ids):
        import torch

        length = target_ids.shape[1]
        ahead = torch.ones(length, length, dtype=bool, device=self.device)
        is_source_padding = source_ids == PAD_TOKEN_ID
        x = self.model["stacks"](
            self._embedded(source_ids),
            self._embedded(target_ids),
            tgt_mask=ahead.triu(1),
            src_key_padding_mask=is_source_padding,
            tgt_key_padding_mask=target_ids == PAD_TOKEN_ID,
            memory_key_padding_mask=is_source_padding,
            tgt_is_causal=True,
        )
        return x @ self.model["embedding"].weight.T

    def repeated(self, batch, times):
        return [batch] * times

    def epoch(self, case):
        # TensorFlow and PyTorch do not always work in one process.
        return read_epoch(case)

    def train(self, batches) -> float:
        """Trains an epoch; returns the seconds from first batch to end."""
        import torch

        start = time.perf_counter()
        for inputs, labels, _ in batches:
            source_ids, target_ids, labels = (
                torch.tensor(ids, dtype=torch.long).to(self.device)
                for ids in (inputs["source_ids"], inputs["target_ids"], labels)
            )
            self.loss(source_ids, target_ids, labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def peak_bytes(self):
        import torch

        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        return peak_bytes()

    def _embedded(self, ids):
        x = self.model["embedding"](ids) * math.sqrt(self.positions.shape[1])
        return self.model["dropout"](x + self.positions[: ids.shape[1]])

    def _loss(self, source_ids, target_ids, labels):
        import torch

        with torch.autocast(
            self.device, torch.bfloat16, enabled=self.dtype == "bfloat16"
        ):
            logits = self.logits(source_ids, target_ids)
        return torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1),
            labels.flatten(),
            ignore_index=PAD_TOKEN_ID,
            label_smoothing=LABEL_SMOOTHING,
        )


class Marian(Torch):
    """Hugging Face's MarianMT on PyTorch, with the loss of the other engines.

    Its own loss has no label smoothing.
    """

    title = "MarianMT (PyTorch)"
    needs = ("torch", "transformers")

    def make_model(self, case):
        from transformers import MarianMTModel

        sizes = case.sizes
        config = marian_config(
            {**sizes, "vocabulary_size": case.vocabulary_size},
            dropout=sizes["dropout"],
        )
        return MarianMTModel(config)

    def logits(self, source_ids, target_ids):
        return self.model(
            source_ids,
            attention_mask=source_ids != PAD_TOKEN_ID,
            decoder_input_ids=target_ids,
            decoder_attention_mask=target_ids != PAD_TOKEN_ID,
            use_cache=False,
        ).logits


class Engine(NamedTuple):
    """A library, in one of the ways to use it.

    Attributes:
        library: The class that trains with it.
        dtype: The dtype it computes in.
        is_compiled: Whether its compiler compiles a step.
        has_one_thread: Whether each operation of TensorFlow has one thread, and
            our steps compute a part of a batch on each core.
    """

    library: type
    dtype: str
    is_compiled: bool = False
    has_one_thread: bool = False

    @property
    def title(self) -> str:
        parts = [self.library.title, self.dtype]
        if self.is_compiled:
            parts.append(self.library.compiler)
        if self.has_one_thread:
            parts.append("one thread")
        return ", ".join(parts)

    @property
    def needs(self) -> tuple[str, ...]:
        return self.library.needs


_CPU = {
    "ours-float32": Engine(Ours, "float32"),
    "ours-float32-thread": Engine(Ours, "float32", has_one_thread=True),
    "ours-float32-deterministic": Engine(OursDeterministic, "float32"),
    "ours-float32-rematerialized": Engine(OursRematerialized, "float32"),
    "ours-float32-xla": Engine(Ours, "float32", is_compiled=True),
    "ours-bfloat16": Engine(Ours, "bfloat16"),
    "ours-bfloat16-thread": Engine(Ours, "bfloat16", has_one_thread=True),
    "ours-bfloat16-xla": Engine(Ours, "bfloat16", is_compiled=True),
    "keras-hub-float32": Engine(KerasHub, "float32"),
    "keras-hub-float32-thread": Engine(
        KerasHub, "float32", has_one_thread=True
    ),
    "keras-hub-float32-xla": Engine(KerasHub, "float32", is_compiled=True),
    "keras-hub-bfloat16": Engine(KerasHub, "bfloat16"),
    "keras-hub-bfloat16-thread": Engine(
        KerasHub, "bfloat16", has_one_thread=True
    ),
    "keras-hub-bfloat16-xla": Engine(KerasHub, "bfloat16", is_compiled=True),
    "torch-float32": Engine(Torch, "float32"),
    "torch-float32-compiled": Engine(Torch, "float32", is_compiled=True),
    "torch-bfloat16": Engine(Torch, "bfloat16"),
    "torch-bfloat16-compiled": Engine(Torch, "bfloat16", is_compiled=True),
    "marian-float32": Engine(Marian, "float32"),
    "marian-bfloat16": Engine(Marian, "bfloat16"),
}
# Engines by the backend of Keras; JAX always compiles.
ENGINES = {
    "tensorflow": _CPU,
    "jax": {
        name: _CPU[name]
        for name in (
            "ours-bfloat16-xla",
            "keras-hub-bfloat16-xla",
            "torch-bfloat16",
            "torch-bfloat16-compiled",
            "marian-bfloat16",
        )
    },
}
# Engines whose steps can be profiled; XLA merges all operations into one.
PROFILED = (
    "ours-float32",
    "ours-float32-thread",
    "ours-bfloat16",
    "ours-bfloat16-thread",
)
BASELINES = {"tensorflow": "torch-float32", "jax": "torch-bfloat16-compiled"}


# What `start` has made in this process, and the batches of a run.
_started = []


def start(engine: Engine, case: TrainingCase) -> float:
    """Makes a trainer in this process, a new one, and warms it up.

    Returns:
        Seconds until the warm-up is done, including loading and compilation.
    """
    begin = time.perf_counter()
    trainer = _made(engine, case)
    if case.text:
        warm_up = batches = trainer.epoch(case)
    else:
        batch = synthetic_batch(case)
        warm_up = trainer.repeated(batch, WARM_UP)
        batches = trainer.repeated(batch, case.steps)
    trainer.train(warm_up)
    _started[:] = trainer, batches
    return time.perf_counter() - begin


def measure() -> dict:
    """Trains what this process has started.

    Returns:
        Seconds of the steps, and the peak memory so far in bytes, that of the
        GPU if there is one.
    """
    trainer, batches = _started
    return {
        "seconds": trainer.train(batches),
        "peak_bytes": trainer.peak_bytes(),
    }


def profile(engine: Engine, case: TrainingCase) -> dict[str, float]:
    """The time of a step by operation, in milliseconds."""
    trainer = _made(engine, case)
    batch = synthetic_batch(case)
    trainer.train(trainer.repeated(batch, WARM_UP))
    seconds = trainer.profile(trainer.repeated(batch, case.steps))
    return {name: 1000 * seconds[name] / case.steps for name in seconds}


def _made(engine, case):
    if engine.has_one_thread:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
    return engine.library(case, engine.dtype, engine.is_compiled)


def _positions(hidden_dim):
    """Sines, then cosines, of shape `(TEXT_LENGTH, D)`, section 3.5."""
    import torch

    rates = 10_000.0 ** -(torch.arange(0, hidden_dim, 2) / hidden_dim)
    angles = torch.arange(TEXT_LENGTH)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)

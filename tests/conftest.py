"""What every test stands on: quiet logs, seeds and full float32 precision."""

import functools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# One thread a process: the models are tiny, and pytest-xdist fills the cores.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
# What tests start on this machine is not behind its proxy.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost"
# TF32 off, where a GPU has it.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")

import hypothesis
import keras
import numpy as np
import pytest

# As in a terminal: a shell, and `nohup`, have what runs in the background
# ignore them, and what ignores a signal goes on doing so.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# The same examples in every run; no deadline, as the first one may compile.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
)
hypothesis.settings.load_profile("tests")

SEED = 20170612

PROGRAMS = pathlib.Path(__file__).parent / "programs"


def pytest_configure(config):
    """Leaves graphs as they are traced in the quick tests.

    They run a few times: to rewrite them takes longer than it saves.
    """
    if (
        config.option.markexpr == "not slow"
        and keras.backend.backend() == "tensorflow"
    ):
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": True}
        )


def pytest_collection_modifyitems(items):
    """Puts the longest test first: it would run alone in the end."""
    longest = "test_snippets_do_what_the_documents_say"
    items.sort(key=lambda item: item.name != longest)


@pytest.fixture(autouse=True, scope="module")
def seed_of_every_library():
    keras.utils.set_random_seed(SEED)


@pytest.fixture(autouse=True)
def seed():
    """Seeds all that Keras draws weights from.

    TensorFlow, given a seed, forgets the functions it has made ready to run:
    each would be made ready again in each test.
    """
    random.seed(SEED)
    np.random.seed(SEED)


@pytest.fixture(autouse=True)
def dtype_policy():
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def untraced(monkeypatch):
    """Has `generate`, `score` and `align` compute at once, not trace a graph.

    With TensorFlow, to trace takes longer than a few steps. Elsewhere they do
    what they always do. Not for a model that tests share: it keeps functions.
    """
    from keras_transformer.tensorflow_only.graphs import graph_for

    def run(function, inputs):
        with graph_for("tensorflow"):
            tensors = keras.tree.map_structure(keras.ops.array, inputs)
            found = function(tensors)
        return keras.tree.map_structure(keras.ops.convert_to_numpy, found)

    monkeypatch.setattr(
        "keras_transformer.compiled.graph",
        lambda function, inputs: functools.partial(run, function),
    )


@pytest.fixture(scope="session")
def run_program():
    """Runs one of `programs` in a process of its own.

    Gives a function of its name, its arguments, what it reads as JSON, whether
    it must end well, and of environment variables, to the ended process.
    """

    def run(name, *arguments, stdin=None, check=True, **environment):
        process = subprocess.run(
            # `-P`: it imports none of its neighbours.
            [
                sys.executable,
                "-P",
                PROGRAMS / f"{name}.py",
                *map(str, arguments),
            ],
            input=None if stdin is None else json.dumps(stdin),
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert not (check and process.returncode), process.stderr[-3000:]
        return process

    return run

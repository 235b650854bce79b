"""Training on several devices, and in several processes on loopback."""

import csv
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.text.dataset import read_corpus
from keras_transformer.training_run import distribution as distribution_module
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.distribution import check_distribution
from keras_transformer.training_run.distribution import distributed

PROGRAMS = pathlib.Path(__file__).parent / "programs"
NOUNS = {"cat": "Katze", "dog": "Hund", "fox": "Fuchs", "owl": "Eule"}
PAIRS = [
    (f"{one} sees {other}", f"{NOUNS[one]} sieht {NOUNS[other]}")
    for one in NOUNS
    for other in NOUNS
] * 5
SMALL = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "dropout": 0.0,
}
# 48 tokens are 6 rows or 4, so that no batch has more on several devices, and
# Keras weighs its loss the same.
COMMAND = [
    *("--epochs", "2", "--tokens-per-batch", "48", "--max-length", "32"),
    *("--learning-rate", "0.01", "--warmup-steps", "10"),
    *("--average-last", "2"),
]
NEW_MODEL = [
    *("--preset", "tiny", "--vocabulary-size", "54", "--model-type", "bpe"),
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    paths = [folder / "text.en", folder / "text.de"]
    for path, lines in zip(paths, zip(*PAIRS, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return [str(path) for path in paths]


def start(
    folder,
    text,
    *options,
    backend,
    event=None,
    model=NEW_MODEL,
    **environment,
):
    """Starts the command in a process of its own.

    What JAX compiles is compared with its like, and runs a few times.
    """
    argv = ["keras-transformer", "train", *text, "--output", str(folder)]
    argv += ["--validation", *text, *COMMAND, *model, *options]
    return subprocess.Popen(
        [
            *(sys.executable, "-P", PROGRAMS / "train_with_event.py"),
            json.dumps([SMALL, event, argv]),
        ],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_processes(
    folder,
    text,
    *options,
    text_of_second=None,
    events=(None, None),
    model=NEW_MODEL,
):
    """Starts two processes that train together."""
    texts = text, text_of_second or text
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        start(
            folder,
            texts[number],
            *("--distribute", "multihost", *options),
            backend="jax",
            event=event,
            model=model,
            KERAS_DISTRIBUTION_JOB_ADDRESSES=f"127.0.0.1:{port}",
            KERAS_DISTRIBUTION_NUM_PROCESSES="2",
            KERAS_DISTRIBUTION_PROCESS_ID=str(number),
        )
        for number, event in enumerate(events)
    ]


def ends(process):
    """Waits; gives the exit code and what was printed."""
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, output, errors


def log(folder):
    with open(folder / "training" / "log.csv") as file:
        return [
            {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def assert_same(folder, other):
    for row, other_row in zip(log(folder), log(other), strict=True):
        assert row == pytest.approx(other_row, abs=1e-3)
    models = [kt.Translator.load(path).model for path in (folder, other)]
    weights, others = (model.get_weights() for model in models)
    for weight, expected in zip(weights, others, strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-3)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, text):
    """A training on one device, with JAX."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    code, _, errors = ends(start(folder, text, backend="jax"))
    assert code == 0, errors
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        [],
        [
            *("--accumulate", "2", "--clip-norm", "0.5"),
            *("--optimizer", "muon", "--rematerialize"),
        ],
    ],
)
def test_two_devices_come_to_the_same_as_one(text, tmp_path, options):
    folders = tmp_path / "one", tmp_path / "two"
    devices = [], ["--distribute", "mirrored"]
    for process in [
        start(folder, text, *options, *option, backend="tensorflow")
        for folder, option in zip(folders, devices, strict=True)
    ]:
        code, _, errors = ends(process)
        assert code == 0, errors
    assert_same(*folders)


@pytest.mark.slow
def test_two_processes_come_to_the_same_as_one(alone, text, tmp_path):
    folder = tmp_path / "run"
    chief, other = map(ends, start_processes(folder, text))
    assert (chief[0], other[0]) == (0, 0), chief[2] + other[2]
    assert_same(folder, alone)
    assert "Epoch 2/2" in chief[1]
    assert "Epoch" not in other[1]
    commands = (folder / "training" / "commands.txt").read_text()
    assert len(commands.splitlines()) == 1
    assert "Training on 2 CPUs of 2 processes." in chief[2]
    assert "Training on" not in other[2]


@pytest.mark.slow
def test_two_processes_start_from_another_translator(alone, text, tmp_path):
    """Of which the first alone reads the folder."""
    folder = tmp_path / "run"
    processes = start_processes(
        folder,
        text,
        *("--learning-rate", "1e-9", "--epochs", "1"),
        model=["--start-from", str(alone)],
    )
    for code, _, errors in map(ends, processes):
        assert code == 0, errors
    models = [kt.Translator.load(path).model for path in (folder, alone)]
    weights, expected = (model.get_weights() for model in models)
    for found, weight in zip(weights, expected, strict=True):
        np.testing.assert_allclose(found, weight, atol=1e-5)


@pytest.mark.slow
def test_training_goes_on_after_a_lost_process_and_a_signal(
    alone, text, tmp_path
):
    folder = tmp_path / "run"
    options = ["--save-every", "2"]

    def train(*event):
        events = (None, event)
        processes = start_processes(folder, text, *options, events=events)
        return [ends(process) for process in processes]

    chief, lost = train(3, signal.SIGKILL)
    assert (chief[0], lost[0]) == (2, -signal.SIGKILL), chief[2]
    assert "This process can no longer work with the others." in chief[2]
    assert "Traceback" not in chief[2]
    # Told twice, one leaves the others at once.
    chief, impatient = train(5, signal.SIGINT, signal.SIGINT)
    assert (chief[0], impatient[0]) == (2, 130), chief[2] + impatient[2]
    assert "This process can no longer work with the others." in chief[2]
    in_chief = "Stopped. What is saved is in the folder of the first process."
    assert in_chief in impatient[2]
    # A signal to one process stops all.
    for (code, _, errors), message in zip(
        train(6, signal.SIGTERM),
        ["Stopped. The translator after epoch", in_chief],
        strict=True,
    ):
        assert code == 128 + signal.SIGTERM, errors
        assert message in errors
    for code, _, errors in train():
        assert code == 0, errors
    assert_same(folder, alone)


@pytest.mark.slow
def test_the_loss_of_the_first_process_is_explained(text, tmp_path):
    events = ((3, signal.SIGKILL), None)
    lost, other = map(
        ends, start_processes(tmp_path / "run", text, events=events)
    )
    assert lost[0] == -signal.SIGKILL
    assert other[0] in (2, -signal.SIGABRT), other[2]
    assert (
        "same command in all processes, without `--overwrite`, to go on from "
        "the last checkpoint." in " ".join(other[2].split())
    )
    assert (tmp_path / "run/training/checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "float64"])
def test_optimizers_clip_and_accumulate_what_all_devices_have(
    run_program, dtype
):
    run_program("mirrored_optimizers", dtype, KERAS_BACKEND="tensorflow")


@pytest.mark.slow
def test_loss_of_two_devices_is_the_mean_of_all_that_counts(run_program):
    run_program("mirrored_loss", KERAS_BACKEND="tensorflow")


@pytest.mark.slow
def test_a_fit_on_two_devices_goes_on(tmp_path, run_program):
    run_program("mirrored_checkpoint", tmp_path, KERAS_BACKEND="tensorflow")


@pytest.mark.slow
def test_no_update_where_the_gradients_of_any_device_overflow(run_program):
    run_program("mirrored_loss_scale", KERAS_BACKEND="tensorflow")


@pytest.mark.slow
def test_each_device_drops_other_entries(run_program):
    run_program("mirrored_dropout", KERAS_BACKEND="tensorflow")


@pytest.mark.slow
def test_a_model_in_parts_comes_to_the_same_as_a_whole_one(run_program):
    run_program(
        "model_parallel",
        KERAS_BACKEND="jax",
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )


def test_layout_along_an_axis_that_is_none():
    mesh = keras.distribution.DeviceMesh((1,), ("batch",), ["cpu:0"])
    message = r"`axis` must be one of `device_mesh`. Received: axis='model'"
    with pytest.raises(ValueError, match=message):
        kt.layout_map(mesh)


def test_what_cannot_be_distributed_says_so():
    message = "needs KERAS_BACKEND=jax in the environment"
    with pytest.raises(ValueError, match=message):
        check_distribution("multihost")


def test_processes_that_are_not_named_are_an_error(monkeypatch):
    import jax

    monkeypatch.setattr(
        keras.distribution, "initialize", lambda: jax.distributed.initialize()
    )
    for name in ("JAX_COORDINATOR_ADDRESS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    message = "Set KERAS_DISTRIBUTION_JOB_ADDRESSES, .* Received: coordinator"
    with (
        pytest.raises(ValueError, match=message),
        distributed("multihost", seed=1),
    ):
        pass


@pytest.mark.parametrize("address", ["host", ":1234", "host:", "host:port"])
def test_the_address_of_the_first_process_has_a_port(monkeypatch, address):
    monkeypatch.setenv("KERAS_DISTRIBUTION_JOB_ADDRESSES", address)
    message = f"address and port of the first .*Received: '{address}'"
    with (
        pytest.raises(ValueError, match=message),
        distributed("multihost", seed=1),
    ):
        pass


def test_the_port_of_the_first_process_is_free(monkeypatch):
    monkeypatch.setenv("KERAS_DISTRIBUTION_PROCESS_ID", "0")
    message = "must be free on the machine of the first .*Received: localhost:"
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        monkeypatch.setenv("KERAS_DISTRIBUTION_JOB_ADDRESSES", address)
        with (
            pytest.raises(ValueError, match=message),
            distributed("multihost", seed=1),
        ):
            pass


def test_who_waits_for_others_says_so(monkeypatch, capsys):
    def initialize():
        time.sleep(0.5)
        raise ValueError("nobody came")

    monkeypatch.setattr(distribution_module, "QUIET_SECONDS", 0)
    monkeypatch.setattr(keras.distribution, "initialize", initialize)
    with (
        pytest.raises(ValueError, match="Received: nobody came"),
        distributed("multihost", seed=1),
    ):
        pass
    assert (
        "Waiting for all processes of the training" in capsys.readouterr().err
    )


def test_a_name_that_leads_nowhere_is_told_from_a_loss():
    reason = "UNKNOWN: Gloo context initialization failed: timed out"
    assert "such as 127.0.1.1: see `getent" in str(
        distribution_module._lost(reason)
    )
    assert "getent" not in str(distribution_module._lost("connection reset"))


@pytest.mark.slow
def test_a_file_that_one_process_lacks_ends_all(text, tmp_path):
    processes = start_processes(
        tmp_path / "run", text, text_of_second=[text[0], str(tmp_path / "none")]
    )
    (code, _, errors), (other_code, _, other_errors) = map(ends, processes)
    assert (code, other_code) == (2, 2), errors + other_errors
    assert "other text in the processes [1] than in the first" in errors
    assert "No such file: " in other_errors


def test_the_parts_of_a_batch_are_the_batch(text):
    tokenizer = kt.Tokenizer.train(
        text, vocabulary_size=54, model_type="bpe", verbose=0
    )
    corpus = read_corpus(
        *text, tokenizer, tokens_per_batch=40, max_length=32, verbose=0
    )
    whole_and_parts = [
        corpus,
        *(
            dataclasses.replace(corpus, num_devices=4, num_parts=2, part=part)
            for part in (0, 1)
        ),
    ]
    for (inputs, labels, weights), *halves in zip(
        *(each.stretch(1, 0, corpus.num_batches()) for each in whole_and_parts),
        strict=True,
    ):
        for (inputs_of_part, labels_of_part, _), part in zip(
            halves, (0, 1), strict=True
        ):
            assert len(labels_of_part) % 2 == 0  # a row for each device
            rows = labels[part::2]
            np.testing.assert_array_equal(labels_of_part[: len(rows)], rows)
            assert not np.any(labels_of_part[len(rows) :])
            np.testing.assert_array_equal(
                inputs_of_part["source_ids"][: len(rows)],
                inputs["source_ids"][part::2],
            )
        total = sum(float(tf.reduce_sum(half[2])) for half in halves)
        assert total == float(tf.reduce_sum(weights))


def test_one_process_is_its_own_chief():
    distribution = Distribution()
    assert distribution.is_chief
    assert distribution.by_chief(lambda: 3) == 3
    assert distribution.agrees_to_stop(True, 1)
    assert not distribution.agrees_to_stop(False, 2)


@pytest.mark.parametrize("cores", [1, 16])
def test_one_device_of_the_processor_is_its_cores(monkeypatch, cores):
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda _: set(range(cores)), raising=False
    )
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: [])
    expected = {1: "the CPU, 1 core", 16: "the CPU, 16 cores"}[cores]
    assert Distribution().devices() == expected
    assert Distribution(num_devices=2).devices() == "2 CPUs"


def test_devices_of_tensorflow_are_counted(monkeypatch):
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: [kind] * 8
    )
    assert Distribution().devices() == "1 GPU"
    assert Distribution(num_devices=8).devices() == "8 GPUs"


def test_devices_of_jax_are_counted(monkeypatch):
    import jax

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    device = types.SimpleNamespace(platform="tpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [device] * 4)
    distribution = Distribution(num_devices=8, num_processes=2)
    assert distribution.devices() == "8 TPUs of 2 processes"


def test_what_the_chief_finds_is_the_outcome_in_all(monkeypatch):
    def fails():
        raise ValueError("There is no text.")

    sent = []
    monkeypatch.setattr(
        distribution_module,
        "_from_chief",
        lambda content: sent.append(content) or content,
    )
    chief = Distribution(num_processes=2)
    assert chief.by_chief(lambda: 3) == 3
    with pytest.raises(ValueError, match="There is no text."):
        chief.by_chief(fails)
    monkeypatch.setattr(
        distribution_module, "_from_chief", lambda content: sent.pop(0)
    )
    other = Distribution(num_processes=2, process=1)
    assert other.by_chief(fails) == 3
    message = "first process has ended. ValueError: There is no text."
    with pytest.raises(RuntimeError, match=message):
        other.by_chief(lambda: 3)


@pytest.mark.parametrize("size", [0, 3, 4, 5, 11])
def test_the_chief_sends_long_outcomes_in_messages(monkeypatch, size):
    from jax.experimental import multihost_utils

    sent = []
    content = bytes(range(size))
    monkeypatch.setattr(distribution_module, "MOST_BYTES", 4)
    monkeypatch.setattr(
        multihost_utils,
        "broadcast_one_to_all",
        lambda message: sent.append(message) or message,
    )
    assert distribution_module._from_chief(content) == content
    assert max(message.nbytes for message in sent[1:]) <= 4

    def receive(message):
        assert message.shape == sent[0].shape
        assert message.dtype == sent[0].dtype
        return sent.pop(0)

    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", receive)
    assert distribution_module._from_chief(b"") == content
    assert not sent


def test_processes_of_other_options_are_found(monkeypatch):
    from jax.experimental import multihost_utils

    sent = []

    def gather(digest):
        sent.append(digest)
        return np.stack([sent[0], digest])

    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    Distribution(num_processes=2).check_same(settings={"epochs": 2})
    with pytest.raises(ValueError, match=r"in the processes \[1\] than"):
        Distribution(num_processes=2).check_same(settings={"epochs": 3})

"""One training on several devices of a machine, or on several machines."""

import contextlib
import dataclasses
import hashlib
import json
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.system.cores import num_cores
from keras_transformer.system.signals import signals_handled
from keras_transformer.tensorflow_only.devices import leave_gpus_to_keras
from keras_transformer.training_run.wording import counted

DISTRIBUTIONS = {"mirrored": "tensorflow", "multihost": "jax"}

# What Keras reads from the environment.
ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
NUM_PROCESSES = "KERAS_DISTRIBUTION_NUM_PROCESSES"
PROCESS_ID = "KERAS_DISTRIBUTION_PROCESS_ID"

# How long processes wait for each other without a word.
QUIET_SECONDS = 3

# Most bytes of a message between processes: sizes travel as int32, the widest
# integers that jax has by default.
MOST_BYTES = 2**30


@dataclasses.dataclass
class Distribution:
    """How the devices and processes of a training share its work.

    All processes do the same at the same time: each has all weights, and
    computes its rows of every batch. Only the first, the chief, reads and
    writes the run's folder. By default there is one process with one device.

    Attributes:
        scope: Function that returns the context in which to make the model.
        num_devices: Devices of all processes, among which a batch is split.
        num_processes: Processes, each of which makes its part of a batch.
        process: Number of this process, from 0.
    """

    scope: Callable = contextlib.nullcontext
    num_devices: int = 1
    num_processes: int = 1
    process: int = 0

    @property
    def is_chief(self) -> bool:
        """Whether this process has the run's folder."""
        return self.process == 0

    def devices(self) -> str:
        """The devices that are trained on, in words."""
        kind = _kind_of_devices()
        if kind == "CPU" and self.num_devices == 1:
            return f"the CPU, {counted(num_cores(), 'core')}"
        devices = counted(self.num_devices, kind)
        if self.num_processes > 1:
            devices += f" of {self.num_processes} processes"
        return devices

    def by_chief(self, function):
        """Calls a function in the chief; returns or raises its outcome in all.

        Args:
            function: Function without arguments, whose result can be pickled.

        Raises:
            RuntimeError: In the other processes, if the function raises.
        """
        if self.num_processes == 1:
            return function()
        outcome, failure = b"", None
        if self.is_chief:
            try:
                outcome = pickle.dumps((function(), None))
            except Exception as error:
                # The other processes wait for the outcome, whatever it is.
                failure = error
                message = f"{type(error).__name__}: {error}"
                outcome = pickle.dumps((None, message))
        result, message = pickle.loads(_from_chief(outcome))
        if failure is not None:
            raise failure
        if message is not None:
            raise RuntimeError(f"The first process has ended. {message}")
        return result

    def arrays_by_chief(self, arrays: dict) -> dict:
        """The chief's large arrays by name, which are sent singly."""
        return {
            name: self.by_chief(lambda name=name: arrays[name])
            for name in self.by_chief(lambda: [*arrays])
        }

    def check_same(self, **values):
        """Raises `ValueError` in all processes unless all have these values.

        Args:
            **values: Values that JSON can hold.
        """
        if self.num_processes == 1:
            return
        from jax.experimental import multihost_utils

        content = json.dumps(values, sort_keys=True).encode()
        digest = np.frombuffer(hashlib.sha256(content).digest(), "uint8")
        digests = multihost_utils.process_allgather(digest)
        different = np.flatnonzero((digests != digests[0]).any(axis=1))
        if different.size:
            raise ValueError(
                "All processes must train with the same options and the same "
                "text. Received: other options or other text in the processes "
                f"{different.tolist()} than in the first."
            )

    def agrees_to_stop(self, requested: bool, step: int) -> bool:
        """Whether all processes stop after this step, as one was asked to.

        Args:
            requested: Whether this process was asked to. Ignored if there are
                several: jax knows from the SIGTERM that one of them got.
            step: Number that grows from call to call; all processes must call
                with the same ones.
        """
        if self.num_processes == 1:
            return requested
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point(step)


def check_distribution(name: str | None):
    """Raises `ValueError` if the backend cannot distribute a training so."""
    if name is None:
        return
    backend = DISTRIBUTIONS[name]
    if keras.backend.backend() != backend:
        raise ValueError(
            f"`distribute={name!r}` needs KERAS_BACKEND={backend} in the "
            f"environment. Received: {keras.backend.backend()}."
        )


@contextlib.contextmanager
def distributed(name: str | None, seed: int):
    """Joins the devices, and the processes that were started for a training.

    Args:
        name: `None` for one device, `"mirrored"` for all devices of this
            process, `"multihost"` for all devices of several processes, which
            find each other as `keras.distribution.initialize` describes.
        seed: The same in all processes.

    Yields:
        A `Distribution`.

    Raises:
        RuntimeError: If another process is lost.
        ValueError: If nothing says which processes there are.
    """
    leave_gpus_to_keras()
    if name is None:
        yield Distribution()
    elif name == "mirrored":
        kind = _kind_of_devices()
        devices = [d.name for d in tf.config.list_logical_devices(kind)]
        strategy = tf.distribute.MirroredStrategy(devices)
        yield Distribution(strategy.scope, num_devices=len(devices))
    else:
        yield from _multihost(seed)


def leave_processes():
    """Ends what connects the processes, once all have come this far.

    For the end of a program, which no signal ends sooner from now on: another
    process would wait for this one, and fail after a training that succeeded.
    """
    import jax

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Whoever is lost now is not missed: everything is saved.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.distributed.shutdown()


def _multihost(seed):
    import jax

    keras.utils.set_random_seed(seed)
    if not jax.distributed.is_initialized():
        _join_processes()
    data_parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
    try:
        with data_parallel.scope():
            yield Distribution(
                num_devices=jax.device_count(),
                num_processes=jax.process_count(),
                process=jax.process_index(),
            )
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1 or "RESOURCE_EXHAUSTED" in str(error):
            raise
        raise _lost(error) from error


def _lost(error):
    """The error to raise for one of jax, for whose work others are missing."""
    advice = ""
    if "Gloo context initialization failed" in str(error):
        advice = (
            "If none has ended, the name of some machine leads to an address "
            "that the others cannot reach, such as 127.0.1.1: see `getent hosts"
            " $(hostname)` on each. "
        )
    return RuntimeError(
        "This process can no longer work with the others. If one of them has "
        "ended, run the same command in all processes, without `--overwrite`, "
        f"to go on from the last checkpoint. {advice}Received: {error}"
    )


def _join_processes():
    """Waits until all processes of the training have found each other."""
    address = os.environ.get(ADDRESSES, "").split(",")[0]
    if address:
        _check_address(address, os.environ.get(PROCESS_ID))
    message = (
        "Waiting for all processes of the training to start, for 5 minutes at "
        "most."
    )
    said = threading.Timer(
        QUIET_SECONDS, print, [message], {"file": sys.stderr}
    )
    said.start()
    try:
        # jax waits in C++, where Python could not handle the signal.
        with signals_handled(signal.SIG_DFL, signal.SIGINT):
            keras.distribution.initialize()
    except ValueError as error:
        raise ValueError(
            "`distribute='multihost'` needs to know its processes. Set "
            f"{ADDRESSES}, {NUM_PROCESSES} and {PROCESS_ID}, or start it where "
            f"jax finds them; see docs/clusters.md. Received: {error}"
        ) from error
    finally:
        said.cancel()


def _check_address(address, process):
    """Raises `ValueError` if the processes cannot meet there.

    Args:
        address: Host and port of the first process.
        process: Number of this process, as the environment has it.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(
            f"{ADDRESSES} must have the address and port of the first process, "
            f"such as 10.0.0.1:1234. Received: {address!r}."
        )
    if process != "0":
        return
    try:  # jax may crash if it cannot listen there
        socket.create_server(("", int(port))).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"The port of {ADDRESSES} must be free on the machine of the first "
            f"process. Received: {address}: {error}"
        ) from error


def _kind_of_devices():
    """The kind of device that Keras computes on: CPU, GPU or TPU."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.local_devices()[0].platform.upper()
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"


def _from_chief(content):
    from jax.experimental import multihost_utils

    broadcast = multihost_utils.broadcast_one_to_all
    sizes = np.array(divmod(len(content), MOST_BYTES), "int32")
    whole, rest = map(int, broadcast(sizes))
    buffer = np.zeros(whole * MOST_BYTES + rest, "uint8")
    buffer[: len(content)] = np.frombuffer(content, "uint8")
    messages = np.split(buffer, range(MOST_BYTES, len(buffer), MOST_BYTES))
    return b"".join(broadcast(message).tobytes() for message in messages)

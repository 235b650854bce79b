"""Checkpoints: one file each, with all that training needs to resume."""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys

import keras
import numpy as np
import safetensors
import safetensors.numpy
from keras import ops

from keras_transformer.checks import check_kind
from keras_transformer.checks import check_not_negative
from keras_transformer.system.atomic import remove
from keras_transformer.system.atomic import write_file
from keras_transformer.system.paths import check_local
from keras_transformer.tensorflow_only.devices import strategy_scope
from keras_transformer.training.loss_scale import unwrapped
from keras_transformer.transformer import Transformer
from keras_transformer.weights import check_arrays
from keras_transformer.weights import check_finite_weights
from keras_transformer.weights import named_variables
from keras_transformer.weights import sync_weights

FORMAT = "1"  # a string, as all that a safetensors file says of itself
KEPT = 2  # so that a damaged one has another before it
NAME = re.compile(r"epoch-(\d{5,})-batch-(\d{8,})\.safetensors")
# What a killed process leaves: a file, and a folder that safetensors needs.
UNFINISHED = re.compile(rf"\.{NAME.pattern}\.\w{{8}}(\.new)?")

# The errors of reading a damaged file.
DAMAGES = (ValueError, TypeError, KeyError, safetensors.SafetensorError)


class OtherFormatError(ValueError):
    """A checkpoint is of a format that this version does not know."""


@dataclasses.dataclass
class Checkpoint:
    """The state of a training, to resume it.

    One file with a checksum, written aside and renamed: a process that is
    killed at any moment leaves an intact one. A `fit` that starts from it goes
    on as if it had not ended, provided that its dataset begins with the epoch
    that follows (`translation_dataset(seed=1, initial_epoch=start.epoch)`);
    `keras-transformer train` does that by itself. On torch Keras
    draws dropout from a state of torch's, which is not in it. Callbacks that
    look for the best epoch start over with each `fit`: keep what they have seen
    in `history`, and call the `on_epoch_end` of `EarlyStopping` with it.

    Attributes:
        epoch: Epochs that have ended.
        batch: Batches of the next epoch that are done.
        history: What each epoch ended with, by name; values that JSON has.
        tensors: Weights, and the states of the optimizer, dropout, metrics
            and averages; none at the start. They take three times the memory
            of the model or more: `clear()` them once they are assigned.
        optimizer: Name of the optimizer's class, `None` at the start.

    Example:
    >>> import keras_transformer as kt
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> x = keras.ops.ones((8, 1))
    >>> averaging = kt.WeightAveraging(last=5)
    >>> start = kt.Checkpoint.newest("checkpoints")
    >>> start.assign(model, averaging)
    >>> def save(epoch, logs):
    ...     now = kt.Checkpoint.of(model, epoch + 1, averaging)
    ...     now.write("checkpoints")
    >>> history = model.fit(
    ...     x, x, initial_epoch=start.epoch, epochs=3, verbose=0, callbacks=[
    ...         averaging, keras.callbacks.LambdaCallback(on_epoch_end=save)
    ...     ]
    ... )
    >>> kt.Checkpoint.newest("checkpoints").epoch
    3
    """

    epoch: int = 0
    batch: int = 0
    history: list = dataclasses.field(default_factory=list)
    tensors: dict = dataclasses.field(default_factory=dict)
    optimizer: str | None = None

    @classmethod
    def of(cls, model, epoch, averaging=None, batch=0, history=()):
        """Takes the state of a compiled model in training.

        If several processes train, all of them must call it, as they put
        weights back together; one writes. A callback that calls it within an
        epoch must be in a list: on JAX, Keras runs a single callback beside
        training.

        Args:
            model: The model.
            epoch: Epochs that have ended.
            averaging: Its `WeightAveraging`, if it has one.
            batch: Batches of the next epoch that are done.
            history: What each epoch ended with, by name.

        Returns:
            A checkpoint, with copies or views that training does not change.

        Raises:
            TypeError: If `epoch` or `batch` is not an integer, or `model` not a
                Keras model.
            ValueError: If one is negative, the model is not built and
                compiled, or two of its weights have the same path.
        """
        check_not_negative(epoch=epoch, batch=batch)
        epoch, batch = int(epoch), int(batch)  # NumPy's are not for JSON
        _prepare(model)
        tensors = {}
        with contextlib.ExitStack() as stack:
            if averaging is not None:
                stack.enter_context(averaging.restored())
                averages = {}
                averaging.save_own_variables(averages)
                for name, array in averages.items():
                    tensors[f"averaging/{name}"] = array
            for group, variables in _variables(model).items():
                for name, variable in variables.items():
                    array = ops.convert_to_numpy(variable)
                    tensors[f"{group}/{name}"] = np.asarray(array, order="C")
        return cls(epoch, batch, list(history), tensors, _optimizer_name(model))

    def assign(self, model, averaging=None):
        """Puts weights and states back, except those of the metrics.

        At the start of a training it builds what the model lacks, and nothing
        more.

        Args:
            model: The model.
            averaging: Its `WeightAveraging`, if it has one.

        Raises:
            TypeError: If `model` is not a Keras model.
            ValueError: If the model is not built and compiled, or the weights
                are not the model's; the message names the first that differs.
                If the optimizer is another, there are averages without
                `averaging`, or none for it, or they are of another kind.
        """
        _prepare(model)
        if not self.tensors:
            return
        averages = self._group("averaging")
        if (averaging is None) == bool(averages):
            raise ValueError(
                "`averaging` must be given if and only if the checkpoint has "
                f"averages. Received: averaging={averaging}, {len(averages)} "
                "arrays of averages."
            )
        variables = _variables(model)
        self._check(variables, "weights")
        found = _optimizer_name(model)
        if self.optimizer != found:
            raise ValueError(
                "The checkpoint must be of the same optimizer. Received: a "
                f"checkpoint of {self.optimizer}, a model with {found}."
            )
        for group in ("optimizer", "random"):
            self._check(variables, group)
        if averaging is not None:
            averaging.load_own_variables(averages)
        for group in ("weights", "optimizer", "random"):
            self._assign(variables, group)

    def check_finite(self):
        """Raises `ValueError` unless all weights are finite numbers."""
        check_finite_weights(self._group("weights").items())

    def assign_metrics(self, model):
        """Puts back the metrics of the epoch so far, which `fit` has reset.

        Args:
            model: The model, whose metrics are made already.

        Raises:
            ValueError: If the metrics are others.
        """
        variables = _variables(model)
        self._check(variables, "metrics")
        self._assign(variables, "metrics")

    def write(self, folder):
        """Writes the checkpoint, then removes those no longer needed.

        Args:
            folder: Where; made if it is missing. The last two stay.

        Raises:
            OSError: If the disk is full, for one.
            ValueError: If there is a later one, of another training.
        """
        name = f"epoch-{self.epoch:05d}-batch-{self.batch:08d}.safetensors"
        later = max(checkpoints_in(folder), default=name, key=_place)
        if _place(later) > _place(name):
            raise ValueError(
                f"There must be no later checkpoint in {folder}. Received: "
                f"{name} to write, and {later}. Start from the newest, or "
                "choose another folder."
            )
        state = json.dumps(
            {
                "epoch": self.epoch,
                "batch": self.batch,
                "history": self.history,
                "optimizer": self.optimizer,
            },
            default=float,  # numbers of NumPy, as logs may have
        )
        metadata = {
            "format": FORMAT,
            "state": state,
            "sha256": _digest(state, self.tensors),
        }
        write_file(
            os.path.join(folder, name),
            lambda path: _save(self.tensors, path, metadata),
        )
        unfinished = filter(UNFINISHED.fullmatch, os.listdir(folder))
        for name in [*checkpoints_in(folder)[:-KEPT], *unfinished]:
            remove(os.path.join(folder, name))

    @classmethod
    def newest(cls, folder) -> "Checkpoint":
        """Reads the newest intact checkpoint; the start of a training if none.

        Damaged ones are renamed if there is an intact one, and a message says
        so.

        Args:
            folder: Where `write` has written, or will write.

        Returns:
            The checkpoint.

        Raises:
            NotADirectoryError: If something else is there.
            ValueError: If there are checkpoints, and all are damaged, or one
                is of another format; or the folder is an address, such as
                `gs://`.
        """
        check_local(folder)
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise NotADirectoryError(
                f"Checkpoints must be in a folder. Received: {folder!r}, "
                "which is not one."
            )
        damaged = {}
        for name in reversed(checkpoints_in(folder)):
            path = os.path.join(folder, name)
            try:
                checkpoint = cls._read(path)
            except OtherFormatError:
                raise  # it need not be damaged, and is newer than the others
            except DAMAGES as error:
                damaged[path] = error
                continue
            for other, error in damaged.items():
                os.replace(other, f"{other}.damaged")
                print(
                    f"The checkpoint {other} is damaged ({error}) and was "
                    "renamed to .damaged; the one before it is used.",
                    file=sys.stderr,
                )
            return checkpoint
        if damaged:
            raise ValueError(
                f"At least one checkpoint must be whole. Received: {folder}, "
                f"where all {len(damaged)} are damaged."
            )
        return cls()

    @classmethod
    def _read(cls, path):
        tensors = {}
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            form = metadata.get("format", "1")  # older files have none
            if form != FORMAT:
                raise OtherFormatError(
                    f"The checkpoint must be of format {FORMAT}. Received: "
                    f"{path} of format {form}. Was it written by a newer "
                    "keras-transformer?"
                )
            for name in file.keys():  # noqa: SIM118
                tensors[name] = file.get_tensor(name)
        if _digest(metadata["state"], tensors) != metadata["sha256"]:
            raise ValueError("its checksum does not match")
        return cls(**json.loads(metadata["state"]), tensors=tensors)

    def _group(self, group):
        return {
            name.removeprefix(f"{group}/"): array
            for name, array in self.tensors.items()
            if name.startswith(f"{group}/")
        }

    def _check(self, variables, group):
        """Raises `ValueError` unless a group has what the model has."""
        kind = group if group == "weights" else f"{group} states"
        subject = f"The {kind} in the checkpoint"
        check_arrays(variables[group], self._group(group), subject)

    def _assign(self, variables, group):
        arrays = self._group(group)
        for name, variable in variables[group].items():
            variable.assign(arrays[name])


def checkpoints_in(folder) -> list[str]:
    """The names of checkpoints in a folder, the newest last."""
    if not os.path.isdir(folder):
        return []
    return sorted(filter(NAME.fullmatch, os.listdir(folder)), key=_place)


def _place(name):
    """The epoch and batch that a checkpoint's name says."""
    return tuple(map(int, NAME.fullmatch(name).groups()))


def _prepare(model):
    """Builds the layers and states that a model still lacks.

    On JAX it also brings back those that `fit` keeps outside of the model.
    """
    check_kind("model", model, keras.Model)
    if not (model.built and model.compiled):
        raise ValueError(
            "`model` must be built and compiled. Received: "
            f"built={model.built}, compiled={model.compiled}. A model builds "
            "when it is called on a batch."
        )
    with strategy_scope(model):
        if isinstance(model, Transformer):
            model.build_all()  # layers that a subclass builds late
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    sync_weights(model)


def _variables(model) -> dict[str, dict]:
    """The variables of a model in training, by group and name."""
    weights = {id(weight) for weight in model.weights}
    # The seeds of dropout, which Keras has beside frozen weights.
    seeds = [
        variable
        for variable in model.non_trainable_variables
        if id(variable) not in weights
    ]
    named = named_variables(model)
    return {
        "weights": named,
        "optimizer": _optimizer_variables(model, named),
        "random": _numbered(seeds),
        "metrics": _numbered(model.metrics_variables),
    }


def _optimizer_variables(model, named):
    """The variables of a model's optimizer, by number and name.

    They are named after the weights they belong to, to tell them from those of
    an optimizer with as many states of the same shapes.

    Args:
        model: The model.
        named: Its `named_variables`.
    """

    def flat(path):
        return f"{path}_".replace("/", "_")

    of_model = flat(model.path)
    renamed = {}  # weights of layers that Keras has numbered
    for name, weight in named.items():
        path = flat(weight.path).removeprefix(of_model)
        if path != flat(name):
            renamed[path] = flat(name)
    variables = {}
    for index, variable in enumerate(model.optimizer.variables):
        # Not the scopes before the name, which depend on what built it.
        name = variable.path.rsplit("/", 1)[-1].removeprefix(of_model)
        for path, other in renamed.items():
            if name.startswith(path):
                name = other + name.removeprefix(path)
                break
        variables[f"{index}-{name}"] = variable
    return variables


def _numbered(variables):
    return {str(index): variable for index, variable in enumerate(variables)}


def _optimizer_name(model):
    """The name of the class that updates the weights."""
    return type(unwrapped(model.optimizer)).__name__


def _save(tensors, path, metadata):
    """Writes tensors one by one, as there may be no memory for a copy."""
    # Safetensors writes another file beside it, of a name that may be taken.
    folder = f"{path}.new"
    os.mkdir(folder)
    try:
        new_path = os.path.join(folder, "new.safetensors")
        safetensors.numpy.save_file(tensors, new_path, metadata)
        os.replace(new_path, path)
    except safetensors.SafetensorError as error:
        # A full disk, for example, has its number.
        match = re.search(r"os error (\d+)", str(error))
        if match is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), path) from error
    finally:
        shutil.rmtree(folder)


def _digest(state, tensors):
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array)
    return digest.hexdigest()

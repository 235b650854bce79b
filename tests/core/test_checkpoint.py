"""Checkpoints of plain `fit`: what goes on from one ends as if it had not."""

import errno
import os
import resource
import stat
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import checkpoint as checkpoint_module

from .compiled import COMPILE

EPOCHS = 4
X = np.random.default_rng(3).normal(size=(6, 3)).astype("float32")


def make_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dropout(0.5),  # has a state of its own
            keras.layers.Dense(2, name="dense"),
        ]
    )
    model.compile("adam", "mse", **COMPILE)
    return model


def fit(folder, averaging, epochs):
    """Goes on with a training in a new model, as a new process does."""
    model = make_model()
    start = kt.Checkpoint.newest(folder)
    start.assign(model, averaging)
    history = start.history

    def save(epoch, logs):
        history.append({"epoch": epoch, **logs})
        now = kt.Checkpoint.of(model, epoch + 1, averaging, history=history)
        now.write(folder)

    model.fit(
        X,
        X[:, :2],
        batch_size=2,
        shuffle=False,
        initial_epoch=start.epoch,
        epochs=epochs,
        callbacks=[
            *([averaging] if averaging else []),
            keras.callbacks.LambdaCallback(on_epoch_end=save),
        ],
        verbose=0,
    )
    return model.get_weights(), history


@pytest.mark.parametrize(
    "options", [None, {"last": 2}, {"decay": 0.5}], ids=str
)
def test_fit_goes_on_as_if_it_had_not_ended(tmp_path, options):
    def averaging():
        return kt.WeightAveraging(**options) if options else None

    expected = fit(tmp_path / "whole", averaging(), EPOCHS)
    for epochs in (1, 3, EPOCHS, EPOCHS):
        weights, history = fit(tmp_path / "parts", averaging(), epochs)
    assert history == expected[1]
    assert [row["epoch"] for row in history] == [*range(EPOCHS)]
    for found, wanted in zip(weights, expected[0], strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_states_that_the_first_step_made_are_those_of_a_new_model():
    def compiled():
        model = make_model()
        optimizer = kt.LossScaleOptimizer(kt.Adam(0.1))
        model.compile(optimizer, "mse", **COMPILE)
        return model

    model = compiled()
    # On TensorFlow, Keras then makes the states in a scope of names.
    model.fit(X, X[:, :2], verbose=0)
    other = compiled()
    kt.Checkpoint.of(model, 1).assign(other)
    for found, expected in zip(
        other.optimizer.variables, model.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_a_checkpoint_has_the_weights_and_not_their_mean(tmp_path):
    averaging = kt.WeightAveraging(last=EPOCHS)
    mean, _ = fit(tmp_path, averaging, EPOCHS)
    found = kt.Checkpoint.newest(tmp_path).tensors["weights/dense/kernel"]
    with averaging.restored():
        kernel, _ = averaging.model.layers[-1].get_weights()
    np.testing.assert_array_equal(found, kernel)
    assert np.abs(kernel - mean[-2]).max() > 1e-5
    after, _ = averaging.model.layers[-1].get_weights()
    np.testing.assert_array_equal(after, mean[-2])


def test_the_start_changes_nothing(tmp_path):
    model = make_model()
    before = model.get_weights()
    start = kt.Checkpoint.newest(tmp_path / "none")
    assert (start.epoch, start.batch, start.history) == (0, 0, [])
    start.assign(model)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_frozen_weights_are_written_once():
    model = make_model()
    model.get_layer("dense").trainable = False
    model.compile("adam", "mse", **COMPILE)
    checkpoint = kt.Checkpoint.of(model, 1)
    arrays = [
        name
        for name in checkpoint.tensors
        if not name.startswith(("optimizer/", "metrics/"))
    ]
    assert sorted(arrays) == [
        "random/0",
        "weights/dense/bias",
        "weights/dense/kernel",
    ]
    other = make_model()
    other.get_layer("dense").trainable = False
    other.compile("adam", "mse", **COMPILE)
    other.set_weights([x + 1.0 for x in other.get_weights()])
    checkpoint.assign(other)
    for found, expected in zip(
        other.get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(
        ValueError, match="optimizer states in the checkpoint must be"
    ):
        checkpoint.assign(make_model())


def test_checkpoint_of_another_optimizer_is_refused():
    model = make_model()
    model.compile("sgd", "mse", **COMPILE)
    model.optimizer.build(model.trainable_variables)
    checkpoint = kt.Checkpoint.of(model, 1)
    model.compile("adam", "mse", **COMPILE)
    message = "Received: a checkpoint of SGD, a model with Adam"
    with pytest.raises(ValueError, match=message):
        checkpoint.assign(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        # As many states of the same shapes, which mean something else.
        ({"use_ema": True}, "dense_kernel_gradient_accumulator, which|average"),
        (
            {"use_ema": True, "amsgrad": True},
            "none for .*, which the model has",
        ),
    ],
)
def test_states_of_another_kind_are_refused_before_any_is_assigned(
    options, message
):
    model, other = make_model(), make_model()
    model.compile(kt.Adam(0.1, gradient_accumulation_steps=2), "mse", **COMPILE)
    model.fit(X, X[:, :2], verbose=0)
    checkpoint = kt.Checkpoint.of(model, 1)
    other.compile(kt.Adam(0.1, **options), "mse", **COMPILE)
    before = other.get_weights()
    with pytest.raises(ValueError, match=message):
        checkpoint.assign(other)
    for found, expected in zip(other.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_states_of_other_shapes_are_refused():
    model = make_model()
    checkpoint = kt.Checkpoint.of(model, 1)
    name = [name for name in checkpoint.tensors if "bias_momentum" in name][0]
    checkpoint.tensors[name] = np.zeros((7,), "float32")
    with pytest.raises(ValueError, match=r"of shape \(7,\), the model has"):
        checkpoint.assign(model)


def test_checkpoints_are_in_a_folder(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(NotADirectoryError, match="must be in a folder"):
        kt.Checkpoint.newest(path)
    with pytest.raises(ValueError, match="must be on this machine's"):
        kt.Checkpoint.newest("gs://bucket/checkpoints")


def test_a_model_must_be_built_and_compiled():
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="built=False, compiled=False. A mod"):
        kt.Checkpoint().assign(model)
    model.build((None, 3))
    with pytest.raises(ValueError, match="built=True, compiled=False"):
        kt.Checkpoint.of(model, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weights/dense/bias": None},
            "none for dense/bias, which the",
        ),
        ({"weights/other": X}, "Received: other, which the model does not"),
    ],
)
def test_checkpoint_of_other_weights_is_refused(change, message):
    model = make_model()
    checkpoint = kt.Checkpoint.of(model, 1)
    tensors = {**checkpoint.tensors, **change}
    checkpoint.tensors = {
        name: array for name, array in tensors.items() if array is not None
    }
    with pytest.raises(ValueError, match=message):
        checkpoint.assign(model)


@pytest.mark.parametrize("saved", [True, False])
def test_averages_go_with_an_averaging(saved):
    model = make_model()
    averaging = kt.WeightAveraging(last=2)
    averaging.set_model(model)
    one, other = (averaging, None) if saved else (None, averaging)
    checkpoint = kt.Checkpoint.of(model, 1, one)
    before = model.get_weights()
    model.layers[-1].kernel.assign(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="if and only if .* has averages"):
        checkpoint.assign(model, other)
    assert not model.get_weights()[-2].any()
    checkpoint.assign(model, one)
    np.testing.assert_array_equal(model.get_weights()[-2], before[-2])


def test_numbers_that_keras_gives_to_layers_do_not_matter():
    """As where a cell of a notebook that makes the model runs once more."""

    def make():
        inputs = keras.Input((3,))
        first, second = keras.layers.Dense(3), keras.layers.Dense(3)
        x = first(inputs)
        model = keras.Model(inputs, [keras.layers.Dense(3)(x), second(x)])
        model.compile("adam", ["mse", "mse"], **COMPILE)
        model.train_on_batch(X, [X, -X])
        return model

    one, other = make(), make()
    assert one.weights[0].path != other.weights[0].path
    checkpoint = kt.Checkpoint.of(one, 1)
    checkpoint.assign(other)
    for model in (one, other):
        model.train_on_batch(X, [X, -X])
    for wanted, found in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(found, wanted)
    states = zip(
        one.optimizer.variables, other.optimizer.variables, strict=True
    )
    for wanted, found in states:
        np.testing.assert_array_equal(found, wanted)


def test_weights_must_have_names_of_their_own():
    def part():
        inputs = keras.Input((3,))
        dense = keras.layers.Dense(3, name="dense")
        return keras.Model(inputs, dense(inputs), name="part")

    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = part(), part()

        def call(self, x):
            return self.second(self.first(x))

    model = Twice()
    model(X)
    model.compile("adam", "mse", **COMPILE)
    with pytest.raises(ValueError, match="names of their own.*kernel twice"):
        kt.Checkpoint.of(model, 1)


def test_a_checkpoint_within_an_epoch_has_the_weights_of_then():
    model = make_model()
    saved = {}

    def save(batch, logs):
        checkpoint = kt.Checkpoint.of(model, 0, batch=batch + 1)
        saved[batch] = checkpoint.tensors["weights/dense/kernel"].copy()

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=save)
    model.fit(
        X,
        X[:, :2],
        batch_size=2,
        shuffle=False,
        verbose=0,
        callbacks=[callback],
    )
    assert np.abs(saved[0] - saved[1]).max() > 1e-5
    np.testing.assert_array_equal(saved[2], model.get_weights()[-2])


def test_another_optimizer_is_refused(tmp_path):
    """Though it has as many states, of the same shapes."""
    model = make_model()
    kt.Checkpoint.of(model, 1).write(tmp_path)
    other = make_model()
    other.compile(keras.optimizers.Adamax(), "mse", **COMPILE)
    before = other.get_weights()
    checkpoint = kt.Checkpoint.newest(tmp_path)
    message = (
        f"same optimizer. Received: a checkpoint of {checkpoint.optimizer}"
    )
    with pytest.raises(ValueError, match=f"{message}, a model with Adamax"):
        checkpoint.assign(other)
    for weight, expected in zip(other.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_checkpoints_are_readable_as_any_file(tmp_path):
    mask = os.umask(0o022)
    try:
        kt.Checkpoint.of(make_model(), 1).write(tmp_path)
    finally:
        os.umask(mask)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_checkpoint_of_another_format_is_not_damaged(tmp_path, monkeypatch):
    model = make_model()
    kt.Checkpoint.of(model, 1).write(tmp_path)
    with monkeypatch.context() as newer:
        newer.setattr(checkpoint_module, "FORMAT", "2")
        kt.Checkpoint.of(model, 2).write(tmp_path)
    before = sorted(os.listdir(tmp_path))
    message = "must be of format 1. .*epoch-00002.* of format 2. Was it writ"
    with pytest.raises(ValueError, match=message):
        kt.Checkpoint.newest(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before


def test_numbers_of_numpy_are_kept(tmp_path):
    history = [{"loss": np.float32(0.5), "epoch": 0}]
    kt.Checkpoint(1, history=history).write(tmp_path)
    assert kt.Checkpoint.newest(tmp_path).history == history


def test_a_later_checkpoint_is_not_passed_over(tmp_path):
    kt.Checkpoint(7).write(tmp_path)
    with pytest.raises(ValueError, match="no later checkpoint.*epoch-00007"):
        kt.Checkpoint(1).write(tmp_path)
    assert kt.Checkpoint.newest(tmp_path).epoch == 7


def test_checkpoints_are_ordered_by_number(tmp_path):
    model = make_model()
    # More digits than before.
    for epoch in (99_999, np.int64(100_000), 100_001):
        kt.Checkpoint.of(model, epoch).write(tmp_path)
    assert kt.Checkpoint.newest(tmp_path).epoch == 100_001
    assert len([*tmp_path.iterdir()]) == 2
    with pytest.raises(ValueError, match="must be no later checkpoint"):
        kt.Checkpoint.of(model, 99_999).write(tmp_path)


def test_a_checkpoint_is_after_a_number_of_epochs():
    with pytest.raises(ValueError, match="`epoch` must not be negative"):
        kt.Checkpoint.of(make_model(), -1)
    with pytest.raises(TypeError, match="`batch` must be an integer"):
        kt.Checkpoint.of(make_model(), 1, batch="2")


def test_only_the_last_two_checkpoints_stay(tmp_path):
    unfinished = ".epoch-00001-batch-00000000.safetensors.abcdefgh"
    (tmp_path / f"{unfinished}.new").mkdir()
    # The last is of another program's.
    for name in (unfinished, f"{unfinished}.new/.tmp", ".tmpAbc123"):
        (tmp_path / name).touch()
    for epoch, batch in ((0, 5), (0, 10), (1, 0)):
        kt.Checkpoint(epoch, batch).write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".tmpAbc123",
        "epoch-00000-batch-00000010.safetensors",
        "epoch-00001-batch-00000000.safetensors",
    ]
    assert kt.Checkpoint.newest(tmp_path).epoch == 1


@pytest.mark.slow
def test_a_checkpoint_is_written_without_a_copy_in_memory(tmp_path):
    code = (
        "import sys, numpy;"
        "from keras_transformer.checkpoint import Checkpoint;"
        "from keras_transformer.serving.run_export import peak_bytes;"
        "tensors = {name: numpy.ones(10**7) for name in 'ab'};"
        "before = peak_bytes();"
        "Checkpoint(tensors=tensors).write(sys.argv[1]);"
        "print(peak_bytes() - before)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size > 160_000_000
    assert int(process.stdout) < 40_000_000


def test_a_checkpoint_that_does_not_fit_leaves_nothing(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoint = kt.Checkpoint(tensors={"a": np.zeros(10_000)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            checkpoint.write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.errno == errno.EFBIG
    assert not any(tmp_path.iterdir())


def test_a_weight_may_be_a_number(tmp_path):
    def make():
        count = keras.layers.Normalization(name="count")
        count.build((None, 3))  # has a `count` without axes
        model = keras.Sequential([keras.Input((3,)), count])
        model.compile("sgd", "mse")
        return model

    model, again = make(), make()
    for number, weight in enumerate(model.weights):
        weight.assign(keras.ops.full(weight.shape, number + 1, weight.dtype))
    assert any(weight.shape == () for weight in model.weights)
    kt.Checkpoint.of(model, 1).write(tmp_path)
    kt.Checkpoint.newest(tmp_path).assign(again)
    for found, expected in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(found, expected)

"""What `fit` sees of a `tf.data.Dataset`; collected with TensorFlow alone."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt

from .compiled import AT_ONCE
from .compiled import COMPILE
from .copying import copy_task
from .layers import D
from .layers import F
from .layers import N
from .layers import S
from .layers import V


def make_model(compiled=COMPILE, **options):
    model = kt.Transformer(
        V,
        num_layers=1,
        num_heads=N,
        hidden_dim=D,
        intermediate_dim=F,
        **options,
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss=kt.LabelSmoothedCrossentropy(),
        **compiled,
    )
    return model


def padded_batches(inputs, labels):
    """Makes batches whose sizes and lengths are not known beforehand."""
    ids = tf.TensorSpec((None, None), tf.int32)
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([(inputs, labels)]),
        output_signature=({"source_ids": ids, "target_ids": ids}, ids),
    )
    return dataset.apply(tf.data.experimental.assert_cardinality(1))


def test_warning_of_labels_names_where_fit_was_called():
    inputs, _ = copy_task(2)
    dataset = tf.data.Dataset.from_tensors((inputs, inputs["target_ids"]))
    with pytest.warns(UserWarning, match="`y` should be the ids") as warned:
        make_model(AT_ONCE).fit(dataset, verbose=0)
    assert warned[0].filename == __file__


@pytest.mark.parametrize("name", ["source_ids", "target_ids", "y"])
def test_a_shape_that_is_not_known_is_named(name):
    """As after `tf.py_function`, with which Python splits text into ids."""
    inputs, labels = copy_task(2)
    spec = {key: tf.TensorSpec((None, None), tf.int32) for key in inputs}
    spec["y"] = tf.TensorSpec((None, None), tf.int32)
    spec[name] = tf.TensorSpec(None, tf.int32)
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([{**inputs, "y": labels}]), output_signature=spec
    ).map(lambda batch: ({key: batch[key] for key in inputs}, batch["y"]))
    message = (
        f"`{'y_true' if name == 'y' else name}` must have shape .*ensure_sh"
    )
    with pytest.raises(ValueError, match=message):
        make_model().fit(dataset, verbose=0)


@pytest.mark.parametrize("name", ["source_ids", "target_ids", "y"])
def test_fit_checks_the_ids_of_the_first_batch(name):
    inputs, labels = copy_task(2)
    batch = {**inputs, "y": labels}
    batch[name] = batch[name] + V
    labels = batch.pop("y")
    message = re.escape(f"`{name}` must be in [0, 13), the ids of the vocab")
    for elements in ((batch, labels), (batch, labels, labels != 0)):
        with pytest.raises(ValueError, match=message):
            make_model().fit(tf.data.Dataset.from_tensors(elements))


@pytest.mark.parametrize("name", ["source_ids", "target_ids", "y"])
def test_tensorflow_finds_the_ids_of_a_later_batch(name):
    inputs, labels = copy_task(2)
    good = {**inputs, "y": labels}
    model = make_model()
    for wrong in (-1, V):
        bad = {**good, name: np.full_like(good[name], wrong)}
        batches = {key: np.stack([good[key], bad[key]]) for key in good}
        dataset = tf.data.Dataset.from_tensor_slices(
            ({key: batches[key] for key in inputs}, batches["y"])
        )
        message = re.escape(f"= {wrong} is not in [0, 13)")
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            model.fit(dataset, verbose=0)


def test_fit_checks_the_lengths_of_the_first_batch():
    model = make_model(positional_encoding="learned", max_length=S - 1)
    with pytest.raises(ValueError, match="must not be longer than `max_len"):
        model.fit(padded_batches(*copy_task(2)), verbose=0)


def test_fit_takes_batches_of_unknown_lengths():
    history = make_model().fit(padded_batches(*copy_task(2)), verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.slow
def test_fit_takes_lists_and_distributed_datasets():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    dataset = tf.data.Dataset.from_tensors(copy_task(2))
    with strategy.scope():
        model = make_model()
    history = model.fit(
        strategy.experimental_distribute_dataset(dataset),
        validation_data=list(copy_task(2)),
        verbose=0,
    )
    assert np.isfinite(history.history["val_loss"]).all()

"""Means of weights: what they are, and where they are when."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt

from .compiled import COMPILE

EPOCHS = 4
BATCHES = 3  # in an epoch

X = np.random.default_rng(5).normal(size=(2 * BATCHES, 3)).astype("float32")


# Those of `make_model`, and what their variables are at first.
models, initial = [], []
turns = itertools.cycle(range(3))  # no test has more of them


def make_model():
    """A new model, or one whose steps are traced, as it was when new."""
    turn = next(turns)
    if turn == len(models):
        models.append(build_model())
    model = models[turn]
    variables = model.variables + model.optimizer.variables
    if not initial:
        initial.extend(map(ops.convert_to_numpy, variables))
    for variable, value in zip(variables, initial, strict=True):
        variable.assign(value)
    return model


def build_model(policy=None, **optimizer):
    model = keras.Sequential(
        [
            keras.Input((3,)),
            # Weights that are not trained, and must not be averaged.
            keras.layers.BatchNormalization(dtype=policy),
            keras.layers.Dense(2, dtype=policy),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, **optimizer), "mse", **COMPILE)
    model.optimizer.build(model.trainable_variables)
    return model


def trainable(model):
    return [
        np.array(ops.convert_to_numpy(variable))
        for variable in model.trainable_variables
    ]


class Watch(keras.callbacks.Callback):
    """Keeps the weights that the model had at each moment."""

    def __init__(self):
        super().__init__()
        self.begun, self.batches, self.validated, self.ended = [], [], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.begun.append(trainable(self.model))

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(trainable(self.model))

    def on_test_begin(self, logs=None):
        self.validated.append(trainable(self.model))

    def on_epoch_end(self, epoch, logs=None):
        self.ended.append(trainable(self.model))


def fit(model, *callbacks, epochs=EPOCHS, **options):
    return model.fit(
        X,
        X[:, :2],
        batch_size=2,
        epochs=epochs,
        validation_data=(X, X[:, :2]),
        callbacks=list(callbacks),
        shuffle=False,
        verbose=0,
        **options,
    ).history


def assert_equal(found, expected, **options):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **options)


def assert_differ(found, expected):
    assert any(
        (np.abs(a - b) > 1e-3).any()
        for a, b in zip(found, expected, strict=True)
    )


def mean_of_last(samples, last):
    return [
        np.mean(arrays, axis=0) for arrays in zip(*samples[-last:], strict=True)
    ]


def decayed_mean(samples, decay):
    shares = np.array([decay**age for age in range(len(samples))][::-1])
    return [
        np.einsum("n,n...->...", shares / shares.sum(), np.stack(arrays))
        for arrays in zip(*samples, strict=True)
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"last": 2}, lambda s: mean_of_last(s[BATCHES - 1 :: BATCHES], 2)),
        ({"last": 3, "every": 2}, lambda s: mean_of_last(s[1::2], 3)),
        ({"decay": 0.6}, lambda s: decayed_mean(s, 0.6)),
        ({"decay": 0.6, "every": 3}, lambda s: decayed_mean(s[2::3], 0.6)),
    ],
    ids=["last", "last of every 2", "decay", "decay of every 3"],
)
def test_validation_and_saving_see_the_mean(arguments, expected):
    watch = Watch()
    model = make_model()
    fit(model, kt.WeightAveraging(**arguments), watch)
    for epoch in range(EPOCHS):
        mean = expected(watch.batches[: (epoch + 1) * BATCHES])
        assert_equal(watch.validated[epoch], mean, rtol=1e-5, atol=1e-6)
        assert_equal(watch.ended[epoch], mean, rtol=1e-5, atol=1e-6)
    assert_equal(trainable(model), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arguments", [{"last": 3}, {"decay": 0.9}])
def test_training_goes_on_from_the_weights(arguments):
    watch, plain = Watch(), Watch()
    keras.utils.set_random_seed(1)
    averaged = make_model()
    history = fit(averaged, kt.WeightAveraging(**arguments), watch)
    keras.utils.set_random_seed(1)
    expected = fit(make_model(), plain)
    assert history["loss"] == pytest.approx(expected["loss"])
    assert history["val_loss"][1:] != pytest.approx(expected["val_loss"][1:])
    for found, weights in zip(watch.batches, plain.batches, strict=True):
        assert_equal(found, weights, rtol=1e-6)
    for found, weights in zip(watch.begun, plain.begun, strict=True):
        assert_equal(found, weights, rtol=1e-6)


def test_weights_that_are_not_trained_stay():
    keras.utils.set_random_seed(1)
    averaged = make_model()
    fit(averaged, kt.WeightAveraging(last=3))
    keras.utils.set_random_seed(1)
    plain = make_model()
    fit(plain)
    assert_equal(
        map(ops.convert_to_numpy, averaged.non_trainable_weights),
        map(ops.convert_to_numpy, plain.non_trainable_weights),
        rtol=1e-6,
    )


def test_updates_are_counted_where_gradients_accumulate():
    watch, averaging = Watch(), kt.WeightAveraging(decay=0.5)
    model = build_model(gradient_accumulation_steps=2)
    fit(model, averaging, watch)
    expected = decayed_mean(watch.batches[1::2], 0.5)
    assert_equal(trainable(model), expected, rtol=1e-5, atol=1e-6)


def test_a_loop_without_compile_is_averaged():
    dense = keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((3,)), dense])
    averaging = kt.WeightAveraging(decay=0.5)
    loop = keras.callbacks.CallbackList([averaging], model=model)
    loop.on_train_begin()
    samples = []
    for batch in range(3):
        loop.on_train_batch_begin(batch)
        dense.kernel.assign_add(ops.ones((3, 2)))
        samples.append(trainable(model))
        loop.on_train_batch_end(batch)
    loop.on_train_end()
    assert_equal(trainable(model), decayed_mean(samples, 0.5), rtol=1e-5)


# Batches that are done after each execution of two, of epochs of three.
DONE = [2, 3, 5, 6, 8, 9, 11, 12]


@pytest.mark.parametrize(
    ("arguments", "sampled"),
    [
        ({"decay": 0.5}, DONE),
        ({"decay": 0.5, "every": 2}, [2, 5, 6, 8, 11, 12]),
        ({"last": 3, "every": 3}, [6, 9, 12]),
        ({"last": 2, "every": 4}, [8, 12]),
    ],
)
def test_batches_are_counted_where_several_are_executed(arguments, sampled):
    watch, averaging = Watch(), kt.WeightAveraging(**arguments)
    model = build_model()
    model.compile("sgd", "mse", steps_per_execution=2, **COMPILE)
    fit(model, averaging, watch)
    samples = [watch.batches[DONE.index(done)] for done in sampled]
    if averaging.last:
        expected = mean_of_last(samples, averaging.last)
    else:
        expected = decayed_mean(samples, averaging.decay)
    assert_equal(trainable(model), expected, rtol=1e-5, atol=1e-6)
    store = {}
    averaging.save_own_variables(store)
    assert store["num_batches"] == EPOCHS * BATCHES


def test_the_model_checkpoint_is_the_mean(tmp_path):
    averaging = kt.WeightAveraging(last=3)
    model = make_model()
    path = tmp_path / "best.weights.h5"
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    fit(model, averaging, save)
    again = make_model()
    again.load_weights(path)
    assert_equal(trainable(again), averaging.averages(), rtol=1e-6)


def test_restore_brings_the_last_weights_back():
    watch, averaging = Watch(), kt.WeightAveraging(last=3)
    model = make_model()
    fit(model, averaging, watch)
    assert_differ(trainable(model), watch.batches[-1])
    averaging.restore()
    assert_equal(trainable(model), watch.batches[-1])
    averaging.apply()
    assert_equal(trainable(model), watch.ended[-1])


@pytest.mark.parametrize("arguments", [{"last": 3}, {"decay": 0.9}])
def test_a_second_fit_goes_on(arguments):
    keras.utils.set_random_seed(1)
    whole = make_model()
    fit(whole, kt.WeightAveraging(**arguments))
    keras.utils.set_random_seed(1)
    halves = make_model()
    averaging = kt.WeightAveraging(**arguments)
    fit(halves, averaging, epochs=2)
    fit(halves, averaging, initial_epoch=2)
    assert_equal(trainable(halves), trainable(whole), rtol=1e-5)


@pytest.mark.parametrize("arguments", [{"last": 3}, {"decay": 0.9}])
def test_a_second_fit_begins_with_the_weights_it_is_given(arguments):
    averaging, watch = kt.WeightAveraging(**arguments), Watch()
    model = make_model()
    fit(model, averaging)
    given = [weight + 1 for weight in trainable(model)]
    for variable, value in zip(model.trainable_variables, given, strict=True):
        variable.assign(value)
    fit(model, averaging, watch)
    assert_equal(watch.begun[0], given)
    expected = {
        "last": mean_of_last(watch.batches[BATCHES - 1 :: BATCHES], 3),
        "decay": decayed_mean(watch.batches, 0.9),
    }
    [kind] = arguments
    assert_equal(trainable(model), expected[kind], rtol=1e-5)


@pytest.mark.parametrize(
    "arguments", [{"last": 2, "every": 2}, {"last": 9}, {"decay": 0.9}]
)
def test_state_survives_a_new_process(arguments):
    keras.utils.set_random_seed(1)
    whole = make_model()
    fit(whole, kt.WeightAveraging(**arguments))
    keras.utils.set_random_seed(1)
    model = make_model()
    averaging = kt.WeightAveraging(**arguments)
    fit(model, averaging, epochs=2)
    averaging.restore()
    store = {}
    averaging.save_own_variables(store)
    assert all(isinstance(array, np.ndarray) for array in store.values())

    again = make_model()
    again.set_weights(model.get_weights())
    averaging = kt.WeightAveraging(**arguments)
    averaging.load_own_variables(store)
    fit(again, averaging, initial_epoch=2)
    assert_equal(trainable(again), trainable(whole), rtol=1e-5)


@pytest.mark.parametrize("arguments", [{"last": 2}, {"decay": 0.9}])
def test_state_before_the_first_sample_is_kept(arguments):
    averaging = kt.WeightAveraging(**arguments, every=100)
    fit(make_model(), averaging, epochs=1)
    assert averaging.averages() == []
    store = {}
    averaging.save_own_variables(store)
    again = kt.WeightAveraging(**arguments, every=100)
    again.load_own_variables(store)
    again_store = {}
    again.save_own_variables(again_store)
    assert again_store == store
    assert store["num_batches"] == BATCHES


def test_state_of_another_kind_is_refused():
    averaging = kt.WeightAveraging(last=4)
    fit(make_model(), averaging)
    store = {}
    averaging.save_own_variables(store)
    for other in (kt.WeightAveraging(last=3), kt.WeightAveraging(decay=0.9)):
        with pytest.raises(ValueError, match="same `last` or `decay`.*4 arr"):
            other.load_own_variables(store)


class Interrupt(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def test_one_sample_of_another_kind_is_refused():
    averaging = kt.WeightAveraging(last=5)
    averaging.set_model(make_model())
    averaging.on_train_begin()
    averaging.on_epoch_end(0)
    store = {}
    averaging.save_own_variables(store)
    for other in ({"decay": 0.9}, {"last": 4}):
        with pytest.raises(ValueError, match="of the same `last` or `decay`"):
            kt.WeightAveraging(**other).load_own_variables(store)
    kt.WeightAveraging(last=5).load_own_variables(store)


def test_averages_of_another_decay_are_refused():
    averaging = kt.WeightAveraging(decay=0.9)
    fit(make_model(), averaging)
    store = {}
    averaging.save_own_variables(store)
    other = kt.WeightAveraging(decay=0.5)
    message = "same `last` or `decay`, here .*decay=0.5.*Received: .*decay=0.9"
    with pytest.raises(ValueError, match=message):
        other.load_own_variables(store)
    kt.WeightAveraging(decay=0.9).load_own_variables(store)


@pytest.mark.skipif(
    keras.backend.backend() == "jax",
    reason="JAX has no float64 unless it is told to",
)
@pytest.mark.parametrize("arguments", [{"last": 2}, {"decay": 0.5}])
def test_averages_of_double_precision_keep_it(arguments):
    value = 1 + 2.0**-40
    dense = keras.layers.Dense(1, dtype="float64")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.set_weights([np.full((1, 1), value), np.full(1, value)])
    averaging = kt.WeightAveraging(**arguments)
    averaging.set_model(model)
    averaging.on_train_begin()
    averaging._sample()
    for mean in averaging.averages():
        np.testing.assert_array_equal(mean, value)


def test_an_interrupted_validation_leaves_no_averages_in_training():
    watch, averaging = Watch(), kt.WeightAveraging(decay=0.9)
    model = make_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, averaging, watch, Interrupt())
    fit(model, averaging, again := Watch(), initial_epoch=1)
    assert_equal(again.begun[0], watch.batches[-1])
    with pytest.raises(KeyboardInterrupt):
        fit(model, averaging, watch, Interrupt())
    averaging.restore()
    assert_equal(trainable(model), watch.batches[-1])


class Evaluates(keras.callbacks.Callback):
    """Looks at the averages before an epoch has ended."""

    def __init__(self, averaging):
        super().__init__()
        self.averaging = averaging

    def on_epoch_begin(self, epoch, logs=None):
        self.model.evaluate(X, X[:, :2], verbose=0, callbacks=[self.averaging])

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            self.on_epoch_begin(batch)


@pytest.mark.parametrize(
    "arguments", [{"last": 2}, {"last": 2, "every": 2}, {"decay": 0.8}], ids=str
)
def test_evaluation_within_an_epoch_changes_nothing(arguments):
    averaging, plain = (kt.WeightAveraging(**arguments) for _ in range(2))
    for callbacks in ((plain,), (averaging, Evaluates(averaging))):
        keras.utils.set_random_seed(3)
        fit(make_model(), *callbacks)
    assert averaging._num_samples == plain._num_samples
    assert averaging._num_batches == plain._num_batches == EPOCHS * BATCHES
    assert_equal(averaging.averages(), plain.averages())


def test_an_epoch_cut_short_is_validated_as_it_is_saved():
    model = make_model()
    watch, averaging = Watch(), kt.WeightAveraging(last=2)

    def stop(batch, logs):
        model.stop_training = batch == 1 and len(watch.batches) > BATCHES

    stops = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    fit(model, averaging, watch, stops)
    assert len(watch.batches) < 2 * BATCHES
    assert len(watch.ended) == 2
    for validated, ended in zip(watch.validated, watch.ended, strict=True):
        assert_equal(validated, ended)


def test_other_weights_in_the_model_are_in_it_again():
    averaging, watch = kt.WeightAveraging(last=3), Watch()
    model = make_model()
    fit(model, averaging, watch)
    others = [weight + 1 for weight in trainable(model)]
    for variable, value in zip(model.trainable_variables, others, strict=True):
        variable.assign(value)
    with averaging.restored():
        assert_equal(trainable(model), watch.batches[-1])
    assert_equal(trainable(model), others)
    averaging.restore()
    assert_equal(trainable(model), watch.batches[-1])


def test_evaluation_and_prediction_alone_see_the_mean_and_undo_it():
    averaging = kt.WeightAveraging(last=3)
    model = make_model()
    fit(model, averaging)
    averaged = trainable(model)
    averaging.restore()
    weights = trainable(model)
    model.evaluate(X, X[:, :2], verbose=0, callbacks=[averaging, w := Watch()])
    assert_equal(w.validated[0], averaged)
    assert_equal(trainable(model), weights)
    with_mean = model.predict(X, verbose=0, callbacks=[averaging])
    assert_equal(trainable(model), weights)
    averaging.apply()
    np.testing.assert_allclose(model.predict(X, verbose=0), with_mean)
    model.evaluate(X, X[:, :2], verbose=0, callbacks=[averaging])
    assert_equal(trainable(model), averaged)


def test_before_the_first_sample_the_model_keeps_its_weights():
    watch = Watch()
    model = make_model()
    fit(model, kt.WeightAveraging(last=2, every=1000), watch)
    assert_equal(watch.validated[-1], watch.batches[-1])
    assert_equal(trainable(model), watch.batches[-1])


def test_another_model_starts_anew():
    averaging = kt.WeightAveraging(last=2)
    fit(make_model(), averaging)
    watch = Watch()
    model = make_model()
    fit(model, averaging, watch, epochs=1)
    assert_equal(trainable(model), watch.batches[-1])


@pytest.mark.parametrize("arguments", [{"last": 2}, {"decay": 0.5}])
def test_other_weights_to_train_start_anew(arguments):
    averaging = kt.WeightAveraging(**arguments)
    layers = [keras.layers.Dense(2), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    kept = [layer.get_weights() for layer in layers]
    for layer in layers:
        for other in model.layers:
            other.trainable = other is layer
        model.compile(keras.optimizers.SGD(0.0), "mse", **COMPILE)
        fit(model, averaging, epochs=1)
    for layer, weights in zip(layers, kept, strict=True):
        assert_equal(layer.get_weights(), weights)


def test_averages_of_half_precision_weights_are_float32():
    averaging = kt.WeightAveraging(decay=0.9)
    fit(build_model("bfloat16"), averaging)
    assert {str(mean.dtype) for mean in averaging.averages()} == {"float32"}
    last = kt.WeightAveraging(last=2)
    fit(build_model("bfloat16"), last)
    assert {str(mean.dtype) for mean in last.averages()} == {"float32"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Exactly one of `last` and `decay`.*last=None, decay=None"),
        ({"last": 2, "decay": 0.9}, "Exactly one.*last=2, decay=0.9"),
        ({"last": 0}, "`last` must be at least 1.*last=0"),
        ({"decay": 1.0}, r"`decay` must be in \[0, 1\).*decay=1.0"),
        ({"decay": 0.9, "every": 0}, "`every` must be at least 1.*every=0"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        kt.WeightAveraging(**arguments)

"""Adam and Muon: they are those of Keras, with fewer operations."""

import keras
import numpy as np
import pytest

import keras_transformer as kt

from .compiled import COMPILE

NUMBERS = np.random.default_rng(1).normal(size=(64, 3)).astype("float32")
IDS = np.arange(64).reshape(16, 4) % 7  # tokens more than once


def train(optimizer, dtype=None, inputs=NUMBERS, embedding=None):
    """The loss of each epoch and what the weights came to."""
    keras.utils.set_random_seed(2)
    if embedding:
        first = embedding(9, 3)
    else:
        first = keras.layers.Dense(5, "relu", dtype=dtype)
    flat = keras.layers.Flatten()
    model = keras.Sequential([first, flat, keras.layers.Dense(1, dtype=dtype)])
    model.compile(optimizer, "mse", **COMPILE)
    outputs = np.linspace(-1, 1, len(inputs))[:, None]
    losses = model.fit(
        inputs, outputs, batch_size=8, epochs=4, shuffle=False, verbose=0
    ).history["loss"]
    return losses, [
        keras.ops.convert_to_numpy(variable)
        for variable in [*model.weights, *model.optimizer.variables]
    ]


def schedule():
    return kt.WarmupSchedule(peak_learning_rate=0.03, warmup_steps=9)


def assert_same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    assert found[0][-1] < found[0][0]
    for weight, expected_weight in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(
            weight.astype("float32"),
            expected_weight.astype("float32"),
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float32", {}),
        ("mixed_bfloat16", {}),
        ("mixed_float16", {}),
        ("bfloat16", {}),
        ("float32", {"amsgrad": True, "clipvalue": 0.01}),
        ("float32", {"beta_1": 0, "beta_2": np.float64(0.98)}),
        (
            "float32",
            {"global_clipnorm": 0.1, "weight_decay": 0.1, "use_ema": True},
        ),
    ],
)
def test_it_is_the_adam_of_keras(dtype, options):
    options = {"beta_2": 0.98, "epsilon": 1e-9, **options}
    assert_same(
        train(kt.Adam(schedule(), **options), dtype),
        train(keras.optimizers.Adam(schedule(), **options), dtype),
    )


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float32", {}),
        ("mixed_bfloat16", {"adam_lr_ratio": 2.0}),
        (
            "float32",
            {
                "exclude_layers": ["dense"],
                "global_clipnorm": 0.1,
                "weight_decay": 0.0,
            },
        ),
        (
            "float32",
            {
                "exclude_layers": None,
                "adam_weight_decay": 0.2,
                "use_ema": True,
            },
        ),
    ],
)
def test_it_is_the_muon_of_keras(dtype, options):
    of_section_5_3 = {
        "weight_decay": 0.1,
        "adam_beta_2": 0.98,
        "adam_weight_decay": None,
        "adam_lr_ratio": 0.5,
        "epsilon": 1e-9,
    }
    assert_same(
        train(kt.Muon(schedule(), **options), dtype),
        train(
            keras.optimizers.Muon(schedule(), **{**of_section_5_3, **options}),
            dtype,
        ),
    )


# JAX makes it float32, and says so.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
@pytest.mark.parametrize("size", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("is_scheduled", [False, True])
def test_muon_updates_whatever_floats_keras_has(floatx, size, is_scheduled):
    floatx(size)
    variable = keras.Variable(np.ones((3, 2)), dtype="float32")
    optimizer = kt.Muon(schedule() if is_scheduled else 0.01)
    optimizer.build([variable])
    gradient = keras.ops.ones((3, 2), "float32")
    optimizer.apply([gradient], [variable])
    assert np.all(keras.ops.convert_to_numpy(variable) < 1)


def test_muon_learns_with_bfloat16_weights():
    losses, _ = train(kt.Muon(schedule()), "bfloat16")
    assert losses[-1] < 0.8 * losses[0]


def test_muon_is_for_the_matrices_of_layers():
    model = kt.Transformer(
        9,
        source_vocabulary_size=8,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        positional_encoding="learned",
        max_length=5,
        tie_output=False,
    )
    ids = np.ones((2, 3), "int32")
    model({"source_ids": ids, "target_ids": ids})
    optimizer = kt.Muon(0.1)
    optimizer.build(model.trainable_variables)
    for variable in model.trainable_variables:
        has_velocity = (
            optimizer.adam_velocities[optimizer._get_variable_index(variable)]
            is not None
        )
        is_in_a_stack = "coder/" in variable.path
        is_matrix = is_in_a_stack and len(variable.shape) == 2
        assert has_velocity != is_matrix, variable.path


each_optimizer = pytest.mark.parametrize("make", [kt.Adam, kt.Muon])


@each_optimizer
def test_a_schedule_counts_updates_not_batches(make):
    rate = schedule()
    weight = keras.Variable(np.ones((1, 1), "float32"))
    optimizer = make(rate, gradient_accumulation_steps=3)
    optimizer.build([weight])
    found = []
    for _ in range(9):
        found.append(float(optimizer.learning_rate))
        optimizer.apply([keras.ops.ones((1, 1))])
    expected = [float(rate(update)) for update in range(3) for _ in range(3)]
    assert found == expected


@each_optimizer
@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_end_of_data_of_unknown_length_is_no_update(make, steps):
    outputs = np.linspace(-1, 1, len(NUMBERS))[:, None]

    def batches():
        for first in range(0, len(NUMBERS), 8):
            batch = slice(first, first + 8)
            yield NUMBERS[batch], outputs[batch]

    def variables(*data, **options):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.layers.Dense(1)])
        optimizer = make(schedule(), gradient_accumulation_steps=steps)
        model.compile(optimizer, "mse", **COMPILE)
        for _ in range(2):  # epochs of 8 batches
            given = data or [batches()]
            model.fit(*given, **options, shuffle=False, verbose=0)
        return [
            keras.ops.convert_to_numpy(variable)
            for variable in [*optimizer.variables, *model.weights]
        ]

    found = variables()
    expected = variables(NUMBERS, outputs, batch_size=8)
    assert found[0] == expected[0] == 16  # iterations
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class OneHotEmbedding(keras.layers.Embedding):
    """An embedding whose gradient is a matrix, not a list of rows."""

    def call(self, inputs):
        rows = keras.ops.cast(inputs, "int32")
        return keras.ops.one_hot(rows, self.input_dim) @ self.embeddings


@each_optimizer
@pytest.mark.parametrize(
    "options", [{}, {"global_clipnorm": 0.1}, {"clipvalue": 0.01}]
)
def test_gradients_of_the_same_token_are_added_up(make, options):
    of_keras = make.__bases__[-1]
    config = make(schedule(), **options).get_config()
    expected = of_keras.from_config(config)
    assert type(expected) is of_keras
    assert_same(
        train(
            make(schedule(), **options),
            inputs=IDS,
            embedding=keras.layers.Embedding,
        ),
        train(expected, inputs=IDS, embedding=OneHotEmbedding),
    )


def test_gradients_of_the_same_token_are_added_up_before_they_are_squared():
    """Also where the update is that of Keras, for `amsgrad`."""
    config = kt.Adam(schedule(), amsgrad=True).get_config()
    assert_same(
        train(
            kt.Adam(schedule(), amsgrad=True),
            inputs=IDS,
            embedding=keras.layers.Embedding,
        ),
        train(
            keras.optimizers.Adam.from_config(config),
            inputs=IDS,
            embedding=OneHotEmbedding,
        ),
    )


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="JAX compiles the operations of Keras into few by itself",
)
def test_tensorflow_updates_a_weight_in_one_operation():
    """What it is for: not the many operations of Keras."""
    import tensorflow as tf

    weights = [keras.Variable(np.ones((2, 3), "float32")) for _ in range(2)]
    optimizer = kt.Adam(0.1)
    optimizer.build(weights)

    @tf.function
    def update(*gradients):
        optimizer.apply(gradients)

    gradients = [keras.ops.ones((2, 3)) for _ in weights]
    graph = update.get_concrete_function(*gradients).graph.as_graph_def()
    kinds = [node.op for node in graph.node]
    assert kinds.count("ResourceApplyAdam") == len(weights)
    assert "Square" not in kinds
    assert kinds.count("Pow") == 2  # of both decays, once for all weights


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("make", [kt.Adam, kt.Muon])
def test_any_model_can_be_trained(make, jit_compile):
    layers = [keras.Input((3,)), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile(make(0.01), "mse", jit_compile=jit_compile)
    x, y = np.ones((4, 3), "float32"), np.zeros((4, 2), "float32")
    losses = [model.train_on_batch(x, y) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert int(model.optimizer.iterations) == 5
    names = {
        variable.path.split("/")[0] for variable in model.optimizer.variables
    }
    assert names == {model.optimizer.name}


def test_defaults_are_those_of_section_5_3_and_are_saved():
    config = kt.Adam(0.1).get_config()
    assert (config["beta_1"], config["beta_2"]) == (0.9, 0.98)
    assert config["epsilon"] == 1e-9
    optimizer = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(kt.Adam(0.1, amsgrad=True))
    )
    assert type(optimizer) is kt.Adam
    assert optimizer.amsgrad
    config = kt.Muon(0.1).get_config()
    assert (config["adam_beta_1"], config["adam_beta_2"]) == (0.9, 0.98)
    assert config["epsilon"] == 1e-9
    optimizer = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(kt.Muon(0.1, weight_decay=0.3))
    )
    assert type(optimizer) is kt.Muon
    assert optimizer.weight_decay == 0.3


@pytest.mark.parametrize("patterns", ["output_projection", 3])
def test_patterns_of_muon_are_a_list(patterns):
    with pytest.raises(TypeError, match="`exclude_layers` must be a sequence"):
        kt.Muon(0.1, exclude_layers=patterns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clipnorm": -1.0}, "`clipnorm` must be greater than 0"),
        ({"clipvalue": "1"}, "`clipvalue` must be a number"),
        ({"weight_decay": -1}, "`weight_decay` must not be negative"),
        ({"weight_decay": np.nan}, "`weight_decay` must be finite"),
        ({"epsilon": -1e-9}, "`epsilon` must not be negative"),
        (
            {"gradient_accumulation_steps": 0},
            "`gradient_accumulation_steps` must be at least 1",
        ),
        ({"learning_rate": np.nan}, "`learning_rate` must be finite"),
    ],
)
@each_optimizer
def test_options_out_of_range_are_named(make, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(**{"learning_rate": 0.1, **options})


def test_shares_out_of_range_are_named():
    with pytest.raises(ValueError, match=r"`beta_1` must be in \[0, 1\)"):
        kt.Adam(0.1, beta_1=2)
    with pytest.raises(ValueError, match=r"`adam_beta_2` must be in \[0, 1\)"):
        kt.Muon(0.1, adam_beta_2=1)
    with pytest.raises(ValueError, match="`adam_lr_ratio` must be greater"):
        kt.Muon(0.1, adam_lr_ratio=0)


def test_scale_of_the_loss_is_positive():
    with pytest.raises(TypeError, match="`inner_optimizer` must be an Optim"):
        kt.LossScaleOptimizer("adam")
    for options in ({"initial_scale": -1}, {"dynamic_growth_steps": 0}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` must"):
            kt.LossScaleOptimizer(kt.Adam(0.1), **options)


def test_scale_of_the_loss_follows_overflows():
    options = {"initial_scale": 8.0, "dynamic_growth_steps": 2}
    optimizer = kt.LossScaleOptimizer(kt.Adam(0.1), **options)
    weight = keras.Variable(np.ones(2))
    optimizer.build([weight])

    def apply(gradient):
        gradients = [keras.ops.full((2,), gradient)]
        if keras.backend.backend() == "jax":  # which cannot change its state
            values = [variable.value for variable in optimizer.variables]
            new, states = optimizer.stateless_apply(
                values, gradients, [weight.value]
            )
            for variable, value in zip(
                [weight, *optimizer.variables], [*new, *states], strict=True
            ):
                variable.assign(value)
        else:
            optimizer.apply(gradients, [weight])
        scale = keras.ops.convert_to_numpy(optimizer.dynamic_scale)
        return float(scale), keras.ops.convert_to_numpy(weight).copy()

    first, once = apply(3.0)
    second, twice = apply(3.0)
    assert (first, second) == (8, 16)
    assert np.all(twice < once) and np.all(once < 1)
    for scale in (8, 4):
        found, same = apply(np.inf)
        assert found == scale
        np.testing.assert_array_equal(same, twice)
    again = kt.LossScaleOptimizer.from_config(optimizer.get_config())
    assert isinstance(again.inner_optimizer, kt.Adam)
    assert again.get_config() == optimizer.get_config()


@each_optimizer
def test_epsilon_must_not_be_0_in_float16(make):
    weight = keras.Variable(np.ones(2), dtype="float16", name="kernel")
    message = r"`epsilon` must not be 0 .* epsilon=1e-09, kernel of float16"
    with pytest.raises(ValueError, match=message):
        make(0.1).build([weight])
    optimizer = make(0.1, epsilon=1e-4)
    optimizer.apply([keras.ops.zeros(2, "float16")], [weight])
    np.testing.assert_array_equal(weight, [1, 1])

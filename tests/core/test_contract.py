"""What every layer promises, one promise a function."""

import inspect

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt

from .compiled import AT_ONCE
from .compiled import COMPILE
from .compiled import traced
from .compiled import xla
from .layers import CASES
from .layers import PUBLIC

SMALL = {"num_layers": 1, "num_heads": 3, "hidden_dim": 33}
LAYERS = {
    name: member
    for name, member in PUBLIC.items()
    if inspect.isclass(member) and issubclass(member, keras.layers.Layer)
}
DROPPING = [
    (case, share)
    for case in CASES
    for share in case.arguments
    if share.endswith("dropout")
]

each_case = pytest.mark.parametrize(
    "case", CASES, ids=lambda case: case.layer.__name__
)


def each_case_where(condition):
    return pytest.mark.parametrize(
        "case",
        [case for case in CASES if condition(case)],
        ids=lambda case: case.layer.__name__,
    )


each_layer = each_case_where(lambda case: case.layer is not kt.Transformer)
each_trainable_case = each_case_where(lambda case: case.num_weights)
each_of_vectors = each_case_where(lambda case: case.dtype == "float32")
each_of_one_input = each_case_where(lambda case: len(case.shapes) == 1)
# A layer with weights of its own has two at most.
each_of_parts = each_case_where(lambda case: case.num_weights > 2)
each_share = pytest.mark.parametrize(
    ("case", "share"),
    DROPPING,
    ids=[f"{case.layer.__name__}-{share}" for case, share in DROPPING],
)


@each_case
def test_symbolic_shape_and_dtype_equal_eager(case):
    layer = case.make()
    inputs = {
        name: keras.Input(batch_shape=shape, dtype=case.dtype)
        for name, shape in case.shapes.items()
    }
    symbolic = case.call(layer, inputs)
    eager = case.call(layer, case.arrays())
    assert tuple(symbolic.shape) == tuple(eager.shape)
    assert symbolic.dtype == keras.backend.standardize_dtype(eager.dtype)


@each_layer
def test_shape_can_be_asked_before_building(case):
    layer = case.make()
    by_place = layer.compute_output_shape(*case.shapes.values())
    by_name = layer.compute_output_shape(
        **{f"{name}_shape": shape for name, shape in case.shapes.items()}
    )
    spec = layer.compute_output_spec(
        **{
            name: keras.KerasTensor(shape, case.dtype)
            for name, shape in case.shapes.items()
        }
    )
    assert not layer.built
    expected = tuple(case.call(layer, case.arrays()).shape)
    assert by_place == by_name == spec.shape == expected


@each_case
def test_eager_traced_and_xla_agree(case):
    layer = case.make()
    inputs = case.arrays()
    eager = case.call(layer, inputs)
    tensors = {name: ops.array(array) for name, array in inputs.items()}
    for compiled in (traced, xla):
        outputs = compiled(lambda tensors: case.call(layer, tensors))(tensors)
        np.testing.assert_allclose(outputs, eager, rtol=1e-4, atol=1e-5)


@each_case
def test_batch_size_and_lengths_may_be_unknown(case):
    layer = case.make()
    model = case.functional(layer)
    larger = {
        name: (batch_size + 1, length + 4, *width)
        for name, (batch_size, length, *width) in case.shapes.items()
    }
    for shapes in (case.shapes, larger):
        inputs = case.arrays(shapes)
        expected = case.call(layer, inputs)
        np.testing.assert_allclose(
            model(inputs), expected, rtol=1e-4, atol=1e-5
        )


@each_of_vectors
def test_integers_are_numbers_too(case):
    layer = case.make()
    arrays = case.arrays()
    rounded = {name: np.round(3 * x) for name, x in arrays.items()}
    integers = {name: x.astype("int32") for name, x in rounded.items()}
    np.testing.assert_allclose(
        case.call(layer, integers), case.call(layer, rounded), rtol=1e-5
    )


@each_case
def test_number_of_weights(case):
    layer = case.make()
    case.call(layer, case.arrays())
    assert len(layer.weights) == case.num_weights


@each_case
def test_list_gives_no_argument_its_default(case):
    parameters = dict(inspect.signature(case.layer).parameters)
    del parameters["kwargs"]
    assert case.arguments.keys() == parameters.keys()
    for name, parameter in parameters.items():
        assert case.arguments[name] != parameter.default, name


@each_case
def test_configuration_holds_every_argument(case):
    config = case.make(name="someone", dtype="mixed_bfloat16").get_config()
    assert config["name"] == "someone"
    for name, value in case.arguments.items():
        assert config[name] == value, name
    again = case.layer.from_config(config)
    assert again.compute_dtype == "bfloat16"
    assert again.get_config() == config


@each_case
def test_default_arguments_survive_a_configuration(case):
    parameters = inspect.signature(case.layer).parameters
    chosen = {
        name: case.arguments[name]
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name != "kwargs"
    }
    if case.layer is kt.Transformer:  # whose defaults are large
        chosen.update(SMALL)
    config = case.layer(**chosen).get_config()
    assert case.layer.from_config(config).get_config() == config


@each_case
def test_keras_file_round_trip(case, tmp_path):
    layer = case.make()
    model = case.functional(layer)
    inputs = case.arrays()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(inputs), model(inputs), rtol=1e-6)
    (loaded,) = (
        candidate
        for candidate in again.layers
        if isinstance(candidate, case.layer)
    )
    assert loaded.get_config() == layer.get_config()


@each_trainable_case
def test_what_is_frozen_stays_so(case, tmp_path):
    layer = case.make()
    model = case.functional(layer)
    assert len(model.trainable_weights) == case.num_weights
    layer.trainable = False
    model.save(tmp_path / "model.keras")
    saved = keras.models.load_model(tmp_path / "model.keras")
    made = case.functional(case.make(trainable=False))
    for frozen in (saved, made):
        assert not frozen.trainable_weights
        assert len(frozen.weights) == case.num_weights
        frozen.layers[-1].trainable = True
        assert len(frozen.trainable_weights) == case.num_weights


@pytest.mark.parametrize("is_whole_frozen", [False, True])
@each_of_parts
def test_a_part_frozen_or_not_before_it_is_built_stays_so(
    case, is_whole_frozen
):
    # Which of its parts has weights:
    built = case.make()
    case.call(built, case.arrays())
    place = next(i for i, part in enumerate(built._layers) if part.weights)
    layer = case.make()
    layer.trainable = not is_whole_frozen
    layer._layers[place].trainable = is_whole_frozen
    again = case.layer.from_config(layer.get_config())
    flags = [part.trainable for part in layer._flatten_layers()]
    built.trainable = not is_whole_frozen
    built._layers[place].trainable = is_whole_frozen
    expected = [weight.trainable for weight in built.weights]
    assert {*expected} == {True, False}
    for found in (layer, again):
        case.call(found, case.arrays())
        assert [part.trainable for part in found._flatten_layers()] == flags
        assert [weight.trainable for weight in found.weights] == expected
        frozen = [x.get_config()["frozen"] for x in (found, built)]
        assert frozen[0] == frozen[1]


def test_what_is_frozen_within_what_is_not_stays_so():
    options = {"num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    encoder = kt.Encoder(2, **options)
    encoder.trainable = False
    encoder.layers[0].trainable = True
    encoder.layers[0].feed_forward.trainable = False
    again = kt.Encoder.from_config(encoder.get_config())
    built = keras.models.clone_model(
        keras.Sequential([keras.Input((3, 8)), encoder])
    ).layers[0]
    again.build((None, 3, 8))
    expected = [weight.trainable for weight in encoder.weights]
    assert {*expected} == {True, False}
    for found in (again, built):
        assert [weight.trainable for weight in found.weights] == expected
    # Who sets it before it is built has the last word.
    again = kt.Encoder.from_config(encoder.get_config())
    for is_trainable in (True, False, True):  # Keras ignores the same again
        again.trainable = is_trainable
    again.build((None, 3, 8))
    assert all(weight.trainable for weight in again.weights)


@keras.saving.register_keras_serializable(package="tests")
class BuildsAPart(kt.EncoderLayer):
    """Makes a part once it knows the shape of its input."""

    def build(self, inputs_shape):
        self.adapter = keras.layers.Dense(inputs_shape[-1])
        self.adapter.build(inputs_shape)
        super().build(inputs_shape)

    def call(self, inputs, *args, **kwargs):
        return self.adapter(super().call(inputs, *args, **kwargs))


@pytest.mark.parametrize("is_whole_frozen", [False, True])
def test_a_part_made_in_build_stays_as_it_was(is_whole_frozen):
    layer = BuildsAPart(num_heads=2, hidden_dim=8, intermediate_dim=8)
    layer.build((None, 3, 8))
    layer.trainable = not is_whole_frozen
    for part in (None, layer.adapter):
        if part is not None:
            part.trainable = is_whole_frozen
        again = BuildsAPart.from_config(layer.get_config())
        again = BuildsAPart.from_config(again.get_config())  # not built yet
        again.build((None, 3, 8))
        flags = [x.trainable for x in again._flatten_layers()]
        assert flags == [x.trainable for x in layer._flatten_layers()]
        expected = [weight.trainable for weight in layer.weights]
        assert [weight.trainable for weight in again.weights] == expected


@pytest.mark.parametrize("is_whole_frozen", [False, True])
@each_of_parts
def test_a_part_that_is_frozen_or_not_stays_so(case, is_whole_frozen, tmp_path):
    layer = case.make()
    model = case.functional(layer)
    part = next(part for part in layer._layers if part.weights)
    if is_whole_frozen:
        layer.trainable = False
    part.trainable = is_whole_frozen
    expected = [weight.trainable for weight in layer.weights]
    assert {*expected} == {True, False}
    model.save(tmp_path / "model.keras")
    saved = keras.models.load_model(tmp_path / "model.keras").layers[-1]
    made = case.layer.from_config(layer.get_config())
    case.call(made, case.arrays())
    for again in (saved, made):
        assert [weight.trainable for weight in again.weights] == expected
    for is_trainable in (is_whole_frozen, not is_whole_frozen, True):
        made.trainable = is_trainable
    assert all(weight.trainable for weight in made.weights)
    assert "frozen" not in made.get_config()


@each_of_one_input
def test_layers_are_distributed_over_time(case):
    layer = case.make()
    [array, *_] = case.arrays().values()
    arrays = [array, array[::-1].copy()]
    outputs = keras.layers.TimeDistributed(layer)(np.stack(arrays, axis=1))
    for step, array in enumerate(arrays):
        np.testing.assert_allclose(
            outputs[:, step], layer(array), rtol=1e-4, atol=1e-5
        )


@each_case
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_near_float32(case, policy):
    # A few roundings to the 8 (11) bits of bfloat16 (float16).
    tolerance = {"mixed_bfloat16": 0.05, "mixed_float16": 0.005}[policy]
    inputs = case.arrays()
    layer = case.make()
    expected = ops.convert_to_numpy(case.call(layer, inputs))
    half = case.make(dtype=policy)
    case.call(half, inputs)
    half.set_weights(layer.get_weights())
    outputs = case.call(half, inputs)
    dtype = keras.backend.standardize_dtype(outputs.dtype)
    assert dtype == policy.removeprefix("mixed_")
    outputs = ops.convert_to_numpy(ops.cast(outputs, "float32"))
    assert np.isfinite(outputs).all()
    error = np.abs(outputs - expected).max() / np.abs(expected).max()
    assert error < tolerance


@each_share
def test_dropout_changes_outputs_in_training_only(case, share):
    shares = {name: 0.0 for name in case.arguments if name.endswith("dropout")}
    layer = case.make(**{**shares, share: 0.5})
    inputs = case.arrays()
    first = case.call(layer, inputs)
    np.testing.assert_array_equal(case.call(layer, inputs), first)
    np.testing.assert_array_equal(
        case.call(layer, inputs, training=False), first
    )
    trained = case.call(layer, inputs, training=True)
    assert np.abs(ops.subtract(trained, first)).max() > 1e-3
    again = case.call(layer, inputs, training=True)
    assert np.abs(ops.subtract(again, trained)).max() > 1e-3


@each_trainable_case
def test_one_step_of_fit_reaches_every_weight(case):
    layer = case.make()
    model = case.functional(layer)
    before = {weight.path: ops.copy(weight) for weight in layer.weights}
    # The model has all others in it: one graph is enough.
    compiled = COMPILE if case.layer is kt.Transformer else AT_ONCE
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", **compiled)
    inputs = case.arrays()
    labels = np.random.default_rng(5).normal(size=model(inputs).shape)
    history = model.fit(inputs, labels, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for weight in layer.weights:
        assert np.isfinite(ops.convert_to_numpy(weight)).all(), weight.path
        if weight.path.endswith("key/bias"):
            continue  # adds the same to all scores of a row: no gradient
        change = np.abs(ops.subtract(weight, before[weight.path])).max()
        assert change > 0, weight.path


@pytest.mark.parametrize("name", LAYERS)
def test_every_public_layer_is_in_the_list(name):
    assert LAYERS[name] in [case.layer for case in CASES]


@pytest.mark.parametrize("name", LAYERS)
def test_every_public_layer_shows_an_example(name):
    assert "\nExample:\n" in inspect.getdoc(LAYERS[name])

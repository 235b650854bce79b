"""Layers that are computed again for their gradients: the same step."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.tensors.rematerialization import rematerialized

from .compiled import COMPILE
from .compiled import gradient
from .compiled import traced
from .layers import CASES
from .layers import V

SIZES = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
}


def make_model(rematerialize, **options):
    keras.utils.set_random_seed(3)
    return kt.Transformer(
        V,
        **{**SIZES, **options},
        dropout=0.3,
        attention_dropout=0.2,
        feed_forward_dropout=0.1,
        rematerialize=rematerialize,
    )


def batch():
    generator = np.random.default_rng(3)
    source_ids = generator.integers(4, V, (6, 7))
    target_ids = generator.integers(4, V, (6, 5))
    source_ids[0, 3:] = target_ids[1, 2:] = 0
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    return inputs, np.where(target_ids, V + 3 - target_ids, 0)


def trained(rematerialize, compiled, freeze=None, **options):
    """Losses, weights and seeds of dropout of a few steps."""
    model = make_model(rematerialize, **options)
    if freeze:
        freeze(model).trainable = False
    model.compile(
        kt.Adam(0.01), loss=kt.LabelSmoothedCrossentropy(0.1), **compiled
    )
    inputs, labels = batch()
    history = model.fit(
        inputs, labels, batch_size=3, epochs=3, shuffle=False, verbose=0
    )
    seeds = [np.array(v) for v in model.non_trainable_variables if v.shape]
    return history.history["loss"], model.get_weights(), seeds


@pytest.mark.parametrize(
    ("dtype", "error"), [("float32", 1e-5), ("mixed_bfloat16", 1e-2)]
)
def test_training_is_that_of_layers_computed_once(dtype, error):
    check_is_that_of_layers_computed_once(error, COMPILE, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "compiled", "options"),
    [
        pytest.param(1e-2, COMPILE, {"dtype": "mixed_float16"}, id="float16"),
        pytest.param(1e-5, {"jit_compile": True}, {}, id="compiled"),
        pytest.param(1e-5, {"run_eagerly": True}, {}, id="eager"),
        pytest.param(
            1e-5,
            COMPILE,
            {"freeze": lambda model: model.encoder.layers[0]},
            id="frozen",
        ),
        pytest.param(
            1e-5,
            COMPILE,
            {"num_layers": 3, "normalize_first": True},
            id="pre-norm",
        ),
    ],
)
def test_any_training_is_that_of_layers_computed_once(error, compiled, options):
    check_is_that_of_layers_computed_once(error, compiled, **options)


def check_is_that_of_layers_computed_once(error, compiled, **options):
    losses, weights, seeds = trained(True, compiled, **options)
    expected_losses, expected, others = trained(False, compiled, **options)
    np.testing.assert_allclose(losses, expected_losses, rtol=error)
    for weight, other in zip(weights, expected, strict=True):
        # An update is 0.01, of either sign where a gradient is all rounding.
        assert np.abs(weight - other).mean() < error
    # A training that goes on drops the same too.
    for seed, other in zip(seeds, others, strict=True):
        np.testing.assert_array_equal(seed, other)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [kt.Encoder, kt.Decoder])
def test_only_training_computes_layers_twice(kind, training):
    [case] = [case for case in CASES if case.layer is kind]
    first, *others = case.arrays().values()

    def products(rematerialize):
        layer = case.make(rematerialize=rematerialize)
        layer(first, *others)

        def total(x):
            return ops.sum(layer(x, *others, training=training))

        return number_of_products(gradient(total), first)

    again, once = products(True), products(False)
    assert again > once if training else again == once


def number_of_products(function, x):
    """Products of matrices in what a backend traces."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function).lower(x).as_text().count("dot_general ")
    import tensorflow as tf

    graph = tf.function(function).get_concrete_function(x).graph
    kinds = ("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")
    return sum(op.type in kinds for op in graph.get_operations())


class Drawing(keras.layers.Layer):
    """Draws twice in a call from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(3)

    def call(self, x):
        one, other = (
            keras.random.uniform(ops.shape(x), seed=self.generator)
            for _ in range(2)
        )
        return x * (one - other)


def test_any_generator_draws_the_same_again():
    layer = Drawing()
    call = rematerialized(layer)
    ones = np.ones((2, 3), "float32")
    state = ops.copy(layer.generator.state)
    drawn = ops.convert_to_numpy(call(ones))
    assert np.abs(drawn).max() > 0.1  # not the same twice
    layer.generator.state.assign(state)
    slope = gradient(lambda x: ops.sum(call(x) ** 2) / 2)(ones)
    np.testing.assert_allclose(slope, drawn**2, rtol=1e-5)
    assert layer.generator.state[1] == state[1] + 1


@pytest.mark.parametrize("wrap", [traced, lambda call: call])
def test_losses_of_layers_are_refused(wrap):
    ones = np.ones((2, 3), "float32")

    def call(**options):
        layer = keras.layers.Dense(3, name="dear", **options)
        layer.build((None, 3))
        return wrap(lambda x: rematerialized(layer)(x))(ones)

    assert call(kernel_regularizer="l2").shape == (2, 3)  # one of the weights
    with pytest.raises(ValueError, match="add losses.* one that does, dear"):
        call(activity_regularizer="l2")


def test_attention_weights_come_with_gradients():
    """The only output that layers have beside their vectors."""
    [case] = [case for case in CASES if case.layer is kt.Decoder]
    arrays = case.arrays()
    found = []
    for rematerialize in (True, False):
        keras.utils.set_random_seed(3)
        layer = case.make(rematerialize=rematerialize)
        layer(**arrays)

        def total(encoded, layer=layer):
            x, scores = layer(
                arrays["inputs"],
                encoded,
                return_attention_scores=True,
                training=True,
            )
            return ops.sum(x * x) + sum(ops.sum(s * s) for s in scores)

        found.append(traced(gradient(total))(arrays["encoded"]))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)

"""Layer normalisation whose gradient is given, against Keras's own."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layer_norm import LayerNormalization
from keras_transformer.layer_norm import normalize

from .compiled import gradient
from .compiled import xla
from .layers import B
from .layers import D
from .layers import T

SHAPE = (B, T, D)


def arrays(seed=3):
    random = np.random.default_rng(seed)
    shapes = {"x": SHAPE, "gamma": (D,), "beta": (D,), "weights": SHAPE}
    return {
        name: random.normal(size=shape).astype("float32")
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("compiled", [lambda function: function, xla])
@pytest.mark.parametrize("name", ["x", "gamma", "beta"])
def test_gradient_equals_automatic_differentiation(name, compiled):
    given = arrays()
    weights = given.pop("weights")

    def ours(value):
        return ops.sum(
            weights * normalize(**{**given, name: value}, epsilon=1e-3)
        )

    def theirs(value):
        x, gamma, beta = {**given, name: value}.values()
        return ops.sum(
            weights * ops.layer_normalization(x, gamma, beta, epsilon=1e-3)
        )

    np.testing.assert_allclose(
        compiled(gradient(ours))(given[name]),
        gradient(theirs)(given[name]),
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "dtype", ["float32", "mixed_bfloat16", "mixed_float16", "bfloat16"]
)
def test_training_and_inference_give_the_same(dtype):
    layer = LayerNormalization(dtype=dtype)
    keras_layer = keras.layers.LayerNormalization(dtype=dtype)
    x = arrays()["x"]
    for made in (layer, keras_layer):
        made.build(SHAPE)
        made.set_weights([arrays()["gamma"], arrays()["beta"]])
    outputs = [layer(x, training=True), layer(x), keras_layer(x)]
    assert {output.dtype for output in outputs} == {outputs[0].dtype}
    atol = 1e-5 if dtype == "float32" else 0.04
    for output in outputs[:2]:
        np.testing.assert_allclose(
            ops.cast(output, "float32"),
            ops.cast(outputs[2], "float32"),
            atol=atol,
        )

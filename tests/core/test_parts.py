"""A batch in parts, which cores compute at the same time."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer import transformer as transformer_module
from keras_transformer.tensorflow_only import graphs
from keras_transformer.tensorflow_only import threads
from keras_transformer.tensors.product import offered_products
from keras_transformer.tensors.product import products_of

from .copying import copy_task
from .layers import D
from .layers import F
from .layers import N
from .layers import V

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="parts are for TensorFlow; on JAX, XLA shares a step among cores",
)

SMALL = {
    "num_layers": 1,
    "num_heads": N,
    "hidden_dim": D,
    "intermediate_dim": F,
    "dropout": 0.0,
}


def compute_in(monkeypatch, count):
    monkeypatch.setattr(transformer_module, "parts_at_once", lambda: count)


def make_model(dtype="float32", **options):
    keras.utils.set_random_seed(3)
    model = kt.Transformer(V, **{**SMALL, **options}, dtype=dtype)
    model.compile(
        keras.optimizers.SGD(0.1),
        loss=kt.LabelSmoothedCrossentropy(0.1),
        weighted_metrics=[kt.Perplexity(), kt.TokenAccuracy()],
        jit_compile=False,
    )
    return model


def step_of(model, inputs, labels, sample_weight=None):
    """Logits, loss, metrics and gradients of a step of training."""
    import tensorflow as tf

    others = np.where(labels, V - 1 - labels, 0)
    metrics = [kt.Perplexity(), kt.TokenAccuracy(), kt.Perplexity()]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = model.compute_loss(inputs, labels, logits, sample_weight)
        for metric, of in zip(metrics, (labels, labels, others), strict=True):
            metric.update_state(of, logits, sample_weight)
        variables = [v.value for v in model.trainable_variables]
        slopes = map(tf.convert_to_tensor, tape.gradient(loss, variables))
        return ops.cast(logits, "float32"), loss, [*slopes]

    logits, loss, slopes = step()
    return [logits, loss, *(m.result() for m in metrics), *slopes]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows, dtype, error, options, weighs",
    [
        (8, "float32", 1e-5, {}, None),
        (1, "float32", 1e-5, {}, "rows"),  # two parts are empty
        (4, "float32", 1e-5, {"tie_output": False}, "tokens"),
        (8, "float32", 1e-5, {"rematerialize": True}, None),
        (8, "mixed_bfloat16", 5e-2, {}, "tokens"),
        (1, "mixed_bfloat16", 5e-2, {"tie_output": False}, None),
        (4, "mixed_float16", 1e-2, {}, "rows"),
    ],
)
def test_parts_come_to_what_the_whole_does(
    rows, dtype, error, options, weighs, monkeypatch
):
    inputs, labels = copy_task(rows)
    weights = None
    if weighs:
        shape = labels.shape if weighs == "tokens" else rows
        weights = np.random.default_rng(5).random(shape, "float32") + 0.1
    model = make_model(dtype, **options)
    whole = step_of(model, inputs, labels, weights)
    compute_in(monkeypatch, 3)
    with graphs.graph_for("tensorflow"):  # as `fit` says
        parts = step_of(model, inputs, labels, weights)
    for x, expected in zip(parts, whole, strict=True):
        difference = np.linalg.norm(ops.convert_to_numpy(x - expected))
        size = np.linalg.norm(ops.convert_to_numpy(expected))
        assert difference <= error * size + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [3, 8])
def test_fit_in_parts_comes_to_the_same(monkeypatch, batch_size):
    inputs, labels = copy_task(8)

    def trained(count):
        compute_in(monkeypatch, count)
        model = make_model()
        history = model.fit(
            inputs, labels, batch_size, epochs=2, shuffle=False, verbose=0
        )
        return [*history.history.values(), *model.get_weights()]

    for x, expected in zip(trained(2), trained(1), strict=True):
        np.testing.assert_allclose(x, expected, rtol=1e-3, atol=1e-4)


def test_each_part_drops_others(monkeypatch):
    inputs, labels = copy_task(1)
    inputs = {name: np.repeat(ids, 2, axis=0) for name, ids in inputs.items()}
    compute_in(monkeypatch, 2)
    model = make_model(dropout=0.5)
    first, second = step_of(model, inputs, np.repeat(labels, 2, axis=0))[0]
    assert np.abs(first - second).max() > 0.1


def products_in_a_graph(model, training=True):
    """How many products the logits of a graph are, 0 for none."""
    import tensorflow as tf

    found = []

    @tf.function
    def run():
        logits = model(copy_task(4)[0], training=training)
        with offered_products(logits):
            found.append(len(products_of(logits) or ()))

    run()
    return found[0]


def test_parts_are_for_steps_of_training_that_nobody_computes_otherwise(
    monkeypatch,
):
    class Other(kt.Transformer):
        pass

    compute_in(monkeypatch, 3)
    model = make_model()
    assert products_in_a_graph(model) == 3
    assert products_in_a_graph(model, training=False) == 0
    assert products_in_a_graph(Other(V, **SMALL)) == 1
    # Keras divides its penalty by the rows of each call.
    model.encoder.activity_regularizer = keras.regularizers.L2(0.01)
    assert products_in_a_graph(model) == 1
    model.encoder.activity_regularizer = None
    assert products_in_a_graph(model) == 3
    model.compile(jit_compile=True)
    assert products_in_a_graph(model) == 1


@pytest.mark.parametrize(
    ("intra", "inter", "num_cores", "expected"),
    [
        (0, 0, 4, 1),
        (2, 0, 4, 1),
        (1, 0, 1, 1),
        (1, 0, 2, 2),
        (1, 0, 64, 4),
        (1, 1, 2, 1),
        (1, 3, 64, 3),
        (1, 8, 2, 2),
    ],
)
def test_as_many_parts_as_operations_at_the_same_time(
    monkeypatch, intra, inter, num_cores, expected
):
    import tensorflow as tf

    counts = {"intra": intra, "inter": inter}
    monkeypatch.setattr(threads, "_threads", counts.get)
    monkeypatch.setattr(threads, "num_cores", lambda: num_cores)
    monkeypatch.setattr(threads, "are_cpus", lambda devices: True)
    assert threads.parts_at_once() == 1  # one operation after another
    found = []

    @tf.function
    def run():
        found.append(threads.parts_at_once())

    run()
    on_a_device = tf.distribute.OneDeviceStrategy("CPU:0").run
    tf.function(lambda: on_a_device(run.python_function))()
    assert found == [expected, 1]

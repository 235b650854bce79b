"""Schedule, loss and metrics, and `fit` with all of them."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.tensorflow_only import graphs
from keras_transformer.tensorflow_only.graphs import graph_for
from keras_transformer.tensorflow_only.graphs import is_plain_graph
from keras_transformer.tensors.product import keep_product
from keras_transformer.tensors.product import log_normalizers_of
from keras_transformer.tensors.product import offered_products
from keras_transformer.tensors.product import products_of
from keras_transformer.tensors.rows import sum_rows
from keras_transformer.training import loss as loss_module
from keras_transformer.training.loss import smoothed_crossentropy

from . import reference
from .compiled import AT_ONCE
from .compiled import COMPILE
from .compiled import gradient
from .compiled import traced
from .compiled import xla
from .copying import copy_task
from .layers import B
from .layers import D
from .layers import F
from .layers import N
from .layers import T
from .layers import V

LABELS = np.array([[4, 5, 3, 0, 0], [6, 7, 8, 9, 3]], "int32")
REAL = LABELS != 0
HALF = {"dtype": "mixed_bfloat16"}
SMALL = {
    "num_layers": 1,
    "num_heads": N,
    "hidden_dim": D,
    "intermediate_dim": F,
}


def random_logits(scale=3.0):
    logits = np.random.default_rng(7).normal(size=(B, T, V))
    return (scale * logits).astype("float32")


def one_hot_loss(label_smoothing, reduction=None):
    """Keras's own loss, which needs the labels one-hot."""
    return keras.losses.CategoricalCrossentropy(
        from_logits=True,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="on JAX, XLA makes one pass of what is computed with the logits",
)
each_smoothing = pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.4])


# Learning rate.


def test_schedule_is_equation_3():
    schedule = kt.WarmupSchedule(hidden_dim=D, warmup_steps=7, scale=2.0)
    for step in range(1, 30):
        expected = 2 * reference.learning_rate(step, D, 7)
        np.testing.assert_allclose(schedule(step), expected, rtol=1e-5)


def test_schedule_peaks_where_told():
    schedule = kt.WarmupSchedule(warmup_steps=7, peak_learning_rate=0.05)
    rates = [float(schedule(step)) for step in range(1, 30)]
    assert np.argmax(rates) + 1 == 7
    np.testing.assert_allclose(max(rates), 0.05, rtol=1e-5)
    np.testing.assert_allclose(rates[0], 0.05 / 7, rtol=1e-5)
    np.testing.assert_allclose(rates[27], 0.05 / 2, rtol=1e-5)


def test_peak_form_is_the_curve_of_the_paper():
    paper = kt.WarmupSchedule(hidden_dim=512, warmup_steps=4000)
    peak = kt.WarmupSchedule(peak_learning_rate=(512 * 4000) ** -0.5)
    for step in (1, 100, 4000, 50_000):
        np.testing.assert_allclose(paper(step), peak(step), rtol=1e-5)


def test_schedule_falls_to_zero_along_a_cosine():
    schedule = kt.WarmupSchedule(
        warmup_steps=4, peak_learning_rate=0.05, scale=2.0, total_steps=12
    )
    rates = [float(schedule(step)) for step in (1, 2, 4, 6, 8, 10, 12, 99)]
    shares = [1 / 4, 1 / 2, 1, (2 + 2**0.5) / 4, 1 / 2, (2 - 2**0.5) / 4, 0, 0]
    np.testing.assert_allclose(rates, np.multiply(0.1, shares), atol=1e-8)
    paper = kt.WarmupSchedule(hidden_dim=D, warmup_steps=4)
    other = kt.WarmupSchedule(hidden_dim=D, warmup_steps=4, total_steps=12)
    for step in (0, 1, 3, 4):
        assert float(other(step)) == float(paper(step))


def test_step_0_counts_as_step_1():
    schedule = kt.WarmupSchedule(hidden_dim=D)
    assert float(schedule(0)) == float(schedule(1)) > 0
    assert float(schedule(ops.array(0))) == float(schedule(1))


@pytest.mark.parametrize(
    "arguments",
    [
        {"hidden_dim": D, "warmup_steps": 7, "scale": 2.0},
        {"peak_learning_rate": 0.05, "warmup_steps": 7, "scale": 2.0},
        {"hidden_dim": D, "warmup_steps": 3, "total_steps": 9},
    ],
    ids=["paper", "peak", "cosine"],
)
def test_schedule_can_be_saved(arguments):
    schedule = kt.WarmupSchedule(**arguments)
    config = schedule.get_config()
    assert {name: config[name] for name in arguments} == arguments
    again = keras.optimizers.schedules.deserialize(
        keras.optimizers.schedules.serialize(schedule)
    )
    assert isinstance(again, kt.WarmupSchedule)
    assert again.get_config() == config
    assert float(again(5)) == float(schedule(5))


def test_optimizer_follows_the_schedule():
    schedule = kt.WarmupSchedule(hidden_dim=D, warmup_steps=7)
    weight = keras.Variable([0.0])
    optimizer = keras.optimizers.SGD(schedule)
    expected = 0.0
    for step in (1, 1, 2):  # Keras counts from 0
        optimizer.apply([ops.array([1.0])], [weight])
        expected -= reference.learning_rate(step, D, 7)
        np.testing.assert_allclose(weight, [expected], rtol=1e-5)


# Loss.


@each_smoothing
def test_loss_equals_that_of_keras_on_one_hot_labels(label_smoothing):
    loss = kt.LabelSmoothedCrossentropy(label_smoothing, reduction=None)
    logits = random_logits()
    expected = one_hot_loss(label_smoothing)(np.eye(V)[LABELS], logits)
    np.testing.assert_allclose(loss(LABELS, logits), expected, atol=1e-5)


@each_smoothing
@pytest.mark.parametrize("compiled", [lambda function: function, xla])
def test_gradient_of_loss_equals_automatic_differentiation(
    label_smoothing, compiled
):
    # Of a weighted sum, so that each token's gradient counts.
    weights = np.random.default_rng(9).random((B, T)).astype("float32")
    ours = kt.LabelSmoothedCrossentropy(label_smoothing, reduction=None)
    theirs = one_hot_loss(label_smoothing)
    one_hot = np.eye(V, dtype="float32")[LABELS]
    logits = random_logits()
    given = compiled(gradient(lambda z: ops.sum(weights * ours(LABELS, z))))(
        logits
    )
    derived = gradient(lambda z: ops.sum(weights * theirs(one_hot, z)))(logits)
    np.testing.assert_allclose(given, derived, atol=1e-5)


@pytest.mark.parametrize("compiled", [lambda function: function, xla])
def test_loss_of_a_label_without_probability_is_exact(compiled):
    logits = np.array([[[0.0, 200.0, 199.0], [0.0, 1.0, 2.0]]], "float32")
    labels = np.array([[0, 1]], "int32")
    loss = compiled(lambda z: smoothed_crossentropy(labels, z))(logits)
    expected = np.logaddexp.reduce(logits[0].astype("float64"), axis=-1)
    expected -= [0.0, 1.0]
    np.testing.assert_allclose(loss[0], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_loss_of_half_precision_logits_is_float32(dtype):
    loss = kt.LabelSmoothedCrossentropy(0.1, reduction=None)
    logits = ops.cast(random_logits(), dtype)
    expected = loss(LABELS, ops.cast(logits, "float32"))
    outputs = loss(LABELS, logits)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    np.testing.assert_allclose(outputs, expected, rtol=1e-6)
    slope = gradient(lambda z: ops.sum(smoothed_crossentropy(LABELS, z)))(
        logits
    )
    assert keras.backend.standardize_dtype(slope.dtype) == dtype


@tensorflow_only
def test_entries_of_logits_are_counted_in_enough_bits():
    """TensorFlow counts in the indices' dtype; there may be more than 2^31.

    Where there are fewer, `vectorized_map` needs 32.
    """
    import tensorflow as tf

    slope = gradient(lambda z: ops.sum(smoothed_crossentropy(LABELS, z)))
    for shape, expected in (((None, None, V), "int64"), ((B, T, V), "int32")):
        spec = tf.TensorSpec(shape)
        graph = traced(slope).get_concrete_function(spec).graph
        types = {
            operation.get_attr("Tindices").name
            for operation in graph.get_operations()
            if operation.type == "TensorScatterUpdate"
        }
        assert types == {expected}


@pytest.mark.parametrize("transform", ["jit", "checkpoint", "scan"])
def test_loss_within_a_transformed_function_has_its_gradient(transform):
    """In a loop of one's own, also where labels are made inside of it."""
    logits = np.random.default_rng(3).normal(size=(B, T, V)).astype("float32")
    loss = kt.LabelSmoothedCrossentropy(0.1, reduction="sum")

    def total(z):
        return loss(ops.where(z[..., 0] > 9, 0, LABELS[: len(z)]), z)

    def of_rows(z):
        labels = ops.convert_to_tensor(LABELS)

        def add(so_far, row):
            return so_far + loss(row[1][None], row[0][None]), None

        return ops.scan(add, ops.zeros(()), (z, labels))[0]

    transformed = {
        "jit": traced(total),
        "checkpoint": keras.remat(total),
        "scan": of_rows,
    }[transform]
    np.testing.assert_allclose(
        gradient(transformed)(logits), gradient(total)(logits), atol=1e-7
    )


def test_loss_of_extreme_logits_is_finite():
    loss = kt.LabelSmoothedCrossentropy(0.1)
    logits = random_logits(scale=1e4)
    assert np.isfinite(loss(LABELS, logits))
    slope = gradient(lambda z: loss(LABELS, z))(logits)
    assert np.isfinite(slope).all()


@pytest.mark.parametrize(
    ("output_bias", "reduction"),
    [
        (False, "sum_over_batch_size"),
        (True, "mean_with_sample_weight"),
        pytest.param(
            True,
            "sum_over_batch_size",
            marks=pytest.mark.xfail(
                keras.backend.backend() == "jax",
                reason="Keras on JAX trains without giving outputs their masks",
                strict=True,
            ),
        ),
    ],
)
def test_losses_of_keras_leave_out_padding(output_bias, reduction):
    inputs, labels = copy_task(B)
    real = labels != 0
    assert not real.all()
    model = kt.Transformer(V, **SMALL, dropout=0.0, output_bias=output_bias)
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=reduction
    )
    compiled = COMPILE if output_bias else AT_ONCE
    model.compile("sgd", loss, **compiled)
    logits = model(inputs)
    each = smoothed_crossentropy(labels, logits)
    expected = np.mean(ops.convert_to_numpy(each)[real])
    found = model.train_on_batch(inputs, labels)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@tensorflow_only
def test_padding_that_is_impossible_takes_no_more_passes(monkeypatch):
    """As in a model of Marian, whose padding has a bias of -100."""
    inputs, labels = copy_task(B)
    model = kt.Transformer(V, **SMALL, dropout=0.0, output_bias=True)
    model.logit_bias.assign(np.where(np.arange(V) == 0, -1e3, 0.0))
    model.compile(loss=kt.LabelSmoothedCrossentropy(), run_eagerly=True)
    logits = model(inputs, training=True)
    expected = model.loss(labels, logits, sample_weight=labels != 0)

    def fail(*arguments, **options):
        raise AssertionError("A pass over all logits.")

    monkeypatch.setattr(ops, "max", fail)
    found = model.compute_loss(inputs, labels, logits)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
@tensorflow_only
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("run", [lambda function: function, traced])
@pytest.mark.parametrize(
    "dtype, reduction, output_bias, is_wide, is_exact, error",
    [
        ("float32", "mean_with_sample_weight", False, False, True, 1e-5),
        ("float32", "sum", True, True, True, 1e-5),
        ("mixed_bfloat16", "mean_with_sample_weight", True, True, True, 5e-2),
        ("mixed_bfloat16", "sum", False, False, False, 5e-2),
    ],
)
def test_gradients_of_a_product_equal_those_through_the_logits(
    label_smoothing,
    run,
    dtype,
    reduction,
    output_bias,
    is_wide,
    is_exact,
    error,
    monkeypatch,
):
    import tensorflow as tf

    inputs, labels = copy_task(B)
    if is_wide:
        monkeypatch.setattr(loss_module, "LEAST_TRANSPOSED", 1)
    monkeypatch.setattr(loss_module, "has_exact_softmax", lambda: is_exact)
    model = kt.Transformer(
        V, **SMALL, dropout=0.0, output_bias=output_bias, dtype=dtype
    )
    if output_bias:
        model.logit_bias.assign(np.linspace(-1.0, 1.0, V))
    loss = kt.LabelSmoothedCrossentropy(label_smoothing, reduction=reduction)
    model.compile(loss=loss, jit_compile=False)
    # Each token counts differently, padding not at all.
    weights = np.random.default_rng(9).random(labels.shape) * (labels != 0)
    weights = weights.astype("float32")

    def gradients(of_product):
        def step():
            with tf.GradientTape() as tape:
                logits = model(inputs, training=True)
                if of_product:
                    value = model.compute_loss(inputs, labels, logits, weights)
                else:
                    value = loss(labels, logits, weights)
            watched = [logits, *(v.value for v in model.trainable_variables)]
            return value, tape.gradient(
                value, watched, unconnected_gradients="zero"
            )

        with graph_for("tensorflow" if of_product else None):
            value, (of_logits, *of_weights) = run(step)()
        # Or both are computed in the same way.
        of_logits = ops.convert_to_numpy(of_logits)
        assert np.any(of_logits) == (not of_product)
        return value, [ops.convert_to_numpy(slope) for slope in of_weights]

    value, given = gradients(of_product=True)
    expected_value, expected = gradients(of_product=False)
    np.testing.assert_allclose(value, expected_value, rtol=error / 10)
    for variable, slope, expected_slope in zip(
        model.trainable_variables, given, expected, strict=True
    ):
        difference = np.linalg.norm(slope - expected_slope)
        size = np.linalg.norm(expected_slope)
        assert difference <= error * size, variable.path


@tensorflow_only
@pytest.mark.parametrize(
    "dtype, error, options, is_frozen, in_place",
    [
        # Two look-ups, and the label's entries of a product taken and added.
        ("float32", 1e-5, {}, False, 4),
        ("float32", 1e-5, {}, True, None),
        ("mixed_bfloat16", 1e-2, {}, False, 4),
        ("mixed_float16", 1e-2, {}, False, 2),
        ("float32", 1e-5, {"source_vocabulary_size": V + 3}, False, 3),
        ("float32", 1e-5, {"source_vocabulary_size": V + 3}, True, None),
        ("float32", 1e-5, {"tie_output": False}, False, 0),
    ],
)
def test_uses_of_an_embedding_share_one_gradient(
    dtype, error, options, is_frozen, in_place
):
    import tensorflow as tf

    model = kt.Transformer(V, **SMALL, dropout=0.0, dtype=dtype, **options)
    model.compile(loss=kt.LabelSmoothedCrossentropy(), jit_compile=False)
    model.target_embedding.trainable = not is_frozen
    inputs, labels = copy_task(B)  # with tokens that are in it many times

    def gradients():
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = model.compute_loss(inputs, labels, logits)
        variables = [v.value for v in model.trainable_variables]
        return [*map(tf.convert_to_tensor, tape.gradient(loss, variables))]

    found, counts = [], []
    for runtime in ("tensorflow", None):
        with graph_for(runtime):
            graph = tf.function(gradients).get_concrete_function()
        found.append(graph())
        kinds = [op.type for op in graph.graph.get_operations()]
        counts.append(kinds.count("ScatterNdNonAliasingAdd"))
    for x, y in zip(*found, strict=True):
        assert np.linalg.norm(x - y) <= error * np.linalg.norm(y)
    assert counts[1] == 0
    assert is_frozen or counts[0] == in_place


@tensorflow_only
def test_gradient_of_a_product_in_half_precision_is_not_biased():
    import tensorflow as tf

    # A label as probable as smoothing wants it: both terms nearly cancel out.
    embeddings = tf.eye(8, dtype="bfloat16")
    weight = tf.eye(8)
    vectors = tf.one_hot([[3]], 8) * float(np.log(0.9 / 0.1 * 7))
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        half = tf.cast(vectors, "bfloat16")
        logits = tf.matmul(half, embeddings, transpose_b=True)
        keep_product(logits, half, embeddings, weight)
        with offered_products(logits):
            loss = smoothed_crossentropy([[3]], logits, 0.1)
    slope = tape.gradient(loss, vectors)[0, 0, 3] + 0.1 / 8
    shares = tf.nn.softmax(tf.cast(logits, "float32"))
    rounded = tf.cast(tf.cast(shares, "bfloat16"), "float32")
    assert abs(float(slope - (rounded[0, 0, 3] - 0.9))) < 1e-4


@tensorflow_only
def test_a_subclass_may_look_up_in_a_branch():
    class Branching(kt.Transformer):
        def encode(self, source_ids, training=None):
            return ops.cond(
                ops.any(ops.equal(source_ids, 5)),
                lambda: super(Branching, self).encode(source_ids, training),
                lambda: super(Branching, self).encode(source_ids, training),
            )

    model = Branching(V, **SMALL)
    model.compile("sgd", kt.LabelSmoothedCrossentropy(), jit_compile=False)
    history = model.fit(*copy_task(4), verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.parametrize(
    "options",
    [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}],
    ids=str,
)
def test_a_step_is_a_plain_graph_unless_it_is_compiled(options):
    inputs, labels = copy_task(4)
    seen = []

    class Watching(kt.Transformer):
        def call(self, inputs, training=None):
            seen.append(is_plain_graph())
            return super().call(inputs, training)

    model = Watching(V, **SMALL)
    loss = kt.LabelSmoothedCrossentropy()
    model.compile("sgd", loss, **options)
    model.fit(inputs, labels, verbose=0)
    is_tensorflow = keras.backend.backend() == "tensorflow"
    assert seen[-1] == (is_tensorflow and options == {"jit_compile": False})
    assert not is_plain_graph()


@tensorflow_only
@pytest.mark.parametrize("are_cpus", [True, False])
def test_sums_are_products_on_processors_alone(monkeypatch, are_cpus):
    """GPUs round what they multiply."""
    import tensorflow as tf

    monkeypatch.setattr(graphs, "are_cpus", lambda devices: are_cpus)
    x = np.random.default_rng(1).normal(size=(6, 5)).astype("float32")

    @tf.function(autograph=False)
    def total(x):
        with graph_for("tensorflow"):
            return sum_rows(x)

    graph = total.get_concrete_function(tf.TensorSpec((6, 5), "float32")).graph
    operations = {operation.type for operation in graph.get_operations()}
    assert ("MatMul" in operations) == are_cpus
    assert ("Sum" in operations) != are_cpus
    np.testing.assert_allclose(total(x), x.sum(axis=0), rtol=1e-5)


@tensorflow_only
@pytest.mark.parametrize("run", [lambda function: function, traced])
@pytest.mark.parametrize("options", [{}, HALF], ids=str)
def test_metrics_beside_a_product_see_logits_not_their_gradient(run, options):
    model = kt.Transformer(V, **SMALL, **options)
    model.compile(loss=kt.LabelSmoothedCrossentropy(), jit_compile=False)
    inputs, labels = copy_task(B)
    others = np.where(labels, V - 1 - labels, 0)
    metrics = [kt.Perplexity(), kt.TokenAccuracy(), kt.Perplexity()]

    def step():
        logits = model(inputs, training=True)
        model.compute_loss(inputs, labels, logits)
        assert log_normalizers_of(logits) is not None
        for metric, of in zip(metrics, (labels, labels, others), strict=True):
            metric.update_state(of, logits)
        return logits

    logits = ops.convert_to_numpy(ops.cast(run(step)(), "float32"))
    # Half precision rounds the probability that the normaliser comes from.
    error = 2e-3 if options else 1e-5
    for metric, of in zip(metrics, (labels, labels, others), strict=True):
        alone = type(metric)()
        alone.update_state(of, logits)
        np.testing.assert_allclose(metric.result(), alone.result(), rtol=error)


@tensorflow_only
@pytest.mark.parametrize("width", [8, 256])
def test_gradient_of_logits_is_not_held_for_both_of_its_products(width):
    """The one for the embeddings, which are large, waits for the other."""
    import tensorflow as tf

    layer = kt.TokenEmbedding(V, width)
    layer.build()
    loss = kt.LabelSmoothedCrossentropy()

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            logits = layer(x, reverse=True, training=True)
            with offered_products(logits):
                value = loss([[4, 5]], logits)
        return tape.gradient(value, [x, layer.embeddings.value])

    spec = tf.TensorSpec((1, 2, width), "float32")
    graph = step.get_concrete_function(spec).graph

    def inputs(op):
        return {x.op for x in op.inputs}

    def all_before(op):
        found, to_visit = set(), [op]
        while to_visit:
            op = to_visit.pop()
            new = inputs(op).union(op.control_inputs) - found
            found |= new
            to_visit += new
        return found

    of_vectors, of_embeddings = (
        op
        for op in graph.get_operations()
        if "MatMul" in op.type
        and "TensorScatterAdd"
        in {x.type for made in inputs(op) for x in {made, *inputs(made)}}
    )
    assert of_vectors in all_before(of_embeddings)
    assert of_embeddings not in all_before(of_vectors)


@pytest.mark.slow
@tensorflow_only
@pytest.mark.parametrize("has_onednn", ["1", "0"])
def test_logits_are_held_in_float32_only_where_softmax_needs_it(
    run_program, has_onednn
):
    process = run_program("loss_in_bfloat16", TF_ENABLE_ONEDNN_OPTS=has_onednn)
    is_exact, peak = process.stdout.split()
    logits = 2 * 4096 * 16_000  # bytes; there are as many probabilities
    most = 2 if is_exact == "True" else 6  # in float32 each takes two more
    assert logits < int(peak) < most * logits + 100e6


@pytest.mark.slow
@tensorflow_only
def test_knows_where_a_softmax_of_half_precision_is_not_exact():
    program = (
        "from keras_transformer.tensorflow_only import products\n"
        "print(products.has_exact_softmax())"
    )
    on_a_cpu = {"TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **on_a_cpu},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout == "False\n"


@tensorflow_only
@pytest.mark.parametrize("options", [{}, HALF], ids=str)
def test_product_is_offered_to_the_loss_of_a_training_step_alone(options):
    model = kt.Transformer(V, **SMALL, **options)
    offers = []

    class Noting(kt.LabelSmoothedCrossentropy):
        def call(self, y_true, y_pred):
            offers.append(products_of(y_pred) is not None)
            return super().call(y_true, y_pred)

    loss = Noting()
    inputs, labels = copy_task(B)
    for training in (True, False):
        model.compile(loss=loss, jit_compile=False)
        logits = model(inputs, training=training)
        model.compute_loss(inputs, labels, logits, training=training)
        assert products_of(logits) is None
    model.compile(loss=loss, jit_compile=True)
    model.compute_loss(inputs, labels, model(inputs, training=True))
    assert offers == [True, False, False]


@tensorflow_only
@pytest.mark.parametrize(
    "options", [{"tie_output": False}, {"dtype": "mixed_float16"}], ids=str
)
def test_other_logits_offer_nothing(options):
    model = kt.Transformer(V, **SMALL, **options)
    logits = model(copy_task(B)[0], training=True)
    with offered_products(logits):
        assert products_of(logits) is None


@tensorflow_only
def test_logits_that_a_model_changes_offer_nothing():
    class Cooler(kt.Transformer):
        def project(self, x):
            return super().project(x) / 2.0

    logits = Cooler(V, **SMALL)(copy_task(B)[0], training=True)
    with offered_products(logits):
        assert products_of(logits) is None


def test_loss_is_the_mean_over_real_tokens():
    logits, weights = random_logits(), REAL.astype("float32")
    each = kt.LabelSmoothedCrossentropy(0.1, reduction=None)(LABELS, logits)
    mean = kt.LabelSmoothedCrossentropy(0.1)(LABELS, logits, weights)
    expected = ops.convert_to_numpy(each)[REAL].mean()
    np.testing.assert_allclose(mean, expected, rtol=1e-5)


def test_loss_of_padding_alone_is_zero():
    loss = kt.LabelSmoothedCrossentropy(0.1)
    assert float(loss(LABELS, random_logits(), np.zeros((B, T)))) == 0


def test_loss_can_be_saved():
    loss = kt.LabelSmoothedCrossentropy(0.3, reduction="sum", name="nats")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert isinstance(again, kt.LabelSmoothedCrossentropy)
    assert again.get_config() == loss.get_config()
    assert (again.label_smoothing, again.reduction) == (0.3, "sum")
    assert again.name == "nats"


# Metrics.


@pytest.mark.parametrize(
    "weights",
    [None, REAL.astype("float32"), np.ones((B, T)), np.ones(B)],
    ids=["none", "real", "ones", "sentences"],
)
def test_metrics_ignore_padding(weights):
    logits = random_logits()
    logits[0, 0, LABELS[0, 0]] += 50.0  # right
    logits[0, 3:, 0] += 50.0  # padding foreseen, which is no merit
    accuracy, perplexity = kt.TokenAccuracy(), kt.Perplexity()
    for metric in (accuracy, perplexity):
        metric.update_state(LABELS, logits, weights)
    hits = logits.argmax(axis=-1) == LABELS
    np.testing.assert_allclose(accuracy.result(), hits[REAL].mean())
    nats = one_hot_loss(0.0)(np.eye(V)[LABELS], logits)
    expected = np.exp(ops.convert_to_numpy(nats)[REAL].mean())
    np.testing.assert_allclose(perplexity.result(), expected, rtol=1e-5)


def test_metrics_weigh_sentences():
    logits = random_logits()
    accuracy, alone = kt.TokenAccuracy(), kt.TokenAccuracy()
    accuracy.update_state(LABELS, logits, np.array([0.0, 2.0]))
    alone.update_state(LABELS[1:], logits[1:])
    np.testing.assert_allclose(accuracy.result(), alone.result())


def test_metrics_count_on_in_float32(floatx):
    floatx("bfloat16")
    accuracy = kt.TokenAccuracy()
    labels = np.ones((1, 1000), "int32")
    right = np.eye(3, dtype="float32")[labels]
    for logits in (right, right[..., [1, 0, 2]]):
        for _ in range(20):
            accuracy.update_state(labels, logits)
    assert float(accuracy.result()) == 0.5


@pytest.mark.parametrize("kind", [kt.TokenAccuracy, kt.Perplexity])
def test_metrics_average_over_tokens_not_batches(kind):
    logits = random_logits()
    logits[0, 0, LABELS[0, 0]] += 50.0  # right, in the shorter sentence
    together, apart = kind(), kind()
    together.update_state(LABELS, logits)
    for row in range(B):
        width = int(REAL[row].sum())  # batches as wide as what is in them
        apart.update_state(LABELS[[row], :width], logits[[row], :width])
    np.testing.assert_allclose(apart.result(), together.result(), rtol=1e-5)
    apart.reset_state()
    apart.update_state(LABELS[1:], logits[1:])
    assert abs(float(apart.result()) - float(together.result())) > 1e-3


@pytest.mark.parametrize("kind", [kt.TokenAccuracy, kt.Perplexity])
def test_metrics_can_be_saved(kind):
    metric = kind(name="someone", dtype="float32")
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert isinstance(again, kind)
    assert again.get_config() == metric.get_config()
    assert again.name == "someone"


@pytest.mark.parametrize(
    ("name", "is_better"),
    [("perplexity", np.less), ("token_accuracy", np.greater)],
)
def test_callbacks_know_which_values_are_better(name, is_better):
    model = keras.Sequential(
        [keras.Input((None,)), keras.layers.Embedding(V, V)]
    )
    model.compile(
        loss=kt.LabelSmoothedCrossentropy(),
        weighted_metrics=[kt.Perplexity(), kt.TokenAccuracy()],
        **AT_ONCE,
    )
    stop = keras.callbacks.EarlyStopping(name, patience=1)
    model.fit(LABELS, LABELS, verbose=0, callbacks=[stop])
    one, other = np.array([1.0, 1.0]), np.array([1.0, 2.0])
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(stop.monitor_op(other, one)),
        is_better(other, one),
    )


# All together.


def test_loss_falls_to_its_floor(training):
    _, history = training
    assert history["loss"][0] > 2
    shares = np.full(V, 0.1 / V)
    shares[0] += 0.9
    floor = -np.sum(shares * np.log(shares))
    assert floor < history["loss"][-1] < floor + 0.1
    assert history["token_accuracy"][-1] > 0.95
    assert history["perplexity"][-1] < 1.3


def test_mask_of_the_model_equals_weights(copying_model):
    inputs, labels = copy_task(64)
    options = {"verbose": 0, "return_dict": True, "batch_size": 64}
    expected = copying_model.evaluate(
        inputs,
        labels,
        sample_weight=(labels != 0).astype("float32"),
        **options,
    )
    masked = copying_model.evaluate(inputs, labels, **options)
    for name, value in expected.items():
        np.testing.assert_allclose(masked[name], value, rtol=1e-5)
    logits = copying_model(inputs)
    each = kt.LabelSmoothedCrossentropy(0.1, reduction=None)(
        labels, ops.convert_to_numpy(logits)
    )
    mean = ops.convert_to_numpy(each)[labels != 0].mean()
    np.testing.assert_allclose(masked["loss"], mean, rtol=1e-4)


def test_label_of_padding_weighs_nothing_where_its_input_is_a_token(
    copying_model,
):
    """As where inputs and labels are slices of one array: end, padding."""
    inputs, labels = copy_task(64)
    targets = np.concatenate(
        [inputs["target_ids"][:, :1], labels], axis=1
    )  # start, tokens, end, padding
    inputs = {**inputs, "target_ids": targets[:, :-1]}
    assert ((labels == 0) & (inputs["target_ids"] != 0)).any()
    options = {"verbose": 0, "return_dict": True, "batch_size": 64}
    weights = (labels != 0).astype("float32")
    expected = copying_model.evaluate(
        inputs, labels, sample_weight=weights, **options
    )
    for as_given in (labels, labels.astype("int64")):
        found = copying_model.evaluate(inputs, as_given, **options)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5)
    sentences = np.arange(64) % 3
    expected = copying_model.evaluate(
        inputs, labels, sample_weight=weights * sentences[:, None], **options
    )
    found = copying_model.evaluate(
        inputs, labels, sample_weight=sentences.astype("float32"), **options
    )
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


def test_weights_of_sentences_are_those_of_their_tokens():
    labels = np.array([[3, 1], [2, 4]], "int32")  # as many as tokens
    logits = np.random.default_rng(3).normal(size=(2, 2, 5)).astype("float32")
    loss = kt.LabelSmoothedCrossentropy(0.1)
    found = loss(labels, logits, sample_weight=np.array([1.0, 0.0]))
    expected = loss(labels[:1], logits[:1])
    np.testing.assert_allclose(float(found), float(expected), rtol=1e-6)
    found = loss(labels.tolist(), logits, sample_weight=[[1.0, 1.0], [0, 0]])
    np.testing.assert_allclose(float(found), float(expected), rtol=1e-6)
    # One weight for all is that of the mean.
    found, expected = (
        loss(labels, logits, sample_weight=2.0),
        loss(labels, logits),
    )
    np.testing.assert_allclose(float(found), float(expected), rtol=1e-6)


@pytest.mark.parametrize("rows", [2, 3])
def test_metrics_of_keras_weigh_sentences(rows):
    """Also as many sentences as tokens, which Keras would mistake for these."""
    ids = np.full((rows, 3), 5, "int32")
    ids[0, 2] = 0
    inputs = {"source_ids": ids, "target_ids": ids}
    model = kt.Transformer(V, **{**SMALL, "dropout": 0.0})
    labels = ops.convert_to_numpy(ops.argmax(model(inputs), axis=-1))
    labels = labels.astype("int32")
    labels[0, :2] = (labels[0, :2] + 1) % V  # wrong in the first alone
    labels[0, 2] = 1  # where the input is padding
    assert labels.all()  # none is padding
    model.compile(
        keras.optimizers.SGD(0.0),  # so that nothing is learned
        kt.LabelSmoothedCrossentropy(),
        weighted_metrics=["sparse_categorical_accuracy"],
        **COMPILE,
    )
    weights = np.ones(rows, "float32")
    weights[0] = 3.0
    name = "sparse_categorical_accuracy"
    right = 3 * (rows - 1)
    for given, expected in (
        (weights, right / (right + 3 * 2)),
        (np.repeat(weights[:, None], 3, axis=1), right / (right + 3 * 2)),
        (None, right / (right + 2)),
    ):
        found = model.evaluate(
            inputs, labels, sample_weight=given, return_dict=True, verbose=0
        )
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)
    labels[0, 2] = 0  # of padding
    history = model.fit(
        inputs, labels, sample_weight=weights, shuffle=False, verbose=0
    ).history
    np.testing.assert_allclose(
        history[name], [right / (right + 3 * 2)], rtol=1e-6
    )


def test_each_sentence_may_have_a_gradient_of_its_own():
    """By vectorisation, as for differential privacy."""
    loss = kt.LabelSmoothedCrossentropy(0.1)
    logits = random_logits()

    def of_one(logits, labels):
        return loss(labels[None], logits[None])

    if keras.backend.backend() == "tensorflow":
        tf = pytest.importorskip("tensorflow")

        def gradient_of_one(example):
            with tf.GradientTape() as tape:
                tape.watch(example[0])
                value = of_one(*example)
            return tape.gradient(value, example[0])

        found = tf.vectorized_map(
            gradient_of_one,
            (tf.constant(logits), tf.constant(LABELS)),
            fallback_to_while_loop=False,
        )
    else:
        jax = pytest.importorskip("jax")
        found = jax.vmap(jax.grad(of_one))(logits, LABELS)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = (shares - 0.9 * np.eye(V)[LABELS] - 0.1 / V) / LABELS.shape[1]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_attention_to_one_token_has_gradients():
    """They are 0, and Keras warns of those that do not exist."""
    model = kt.Transformer(V, 1, num_heads=2, hidden_dim=8, intermediate_dim=8)
    model.compile("sgd", kt.LabelSmoothedCrossentropy(), **COMPILE)
    ids = {
        "source_ids": np.array([[4]]),
        "target_ids": np.array([[2, 5]]),
    }
    history = model.fit(ids, np.array([[5, 3]]), verbose=0).history
    assert np.isfinite(history["loss"][0])


def test_state_of_the_optimizer_is_made_before_a_step_is_traced():
    """Traced with it, its initial values would stay in memory."""
    model = kt.Transformer(V, **SMALL)
    model.compile(kt.Adam(0.1), kt.LabelSmoothedCrossentropy(0.1))
    assert not model.optimizer.built
    model.make_train_function()
    moments = len(model.optimizer.variables) - 2  # but updates and rate
    assert moments == 2 * len(model.trainable_variables)


def test_compiled_model_can_be_saved(copying_model, tmp_path):
    copying_model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == copying_model.optimizer.get_config()
    rate = again.optimizer.get_config()["learning_rate"]
    assert rate["class_name"] == "WarmupSchedule"
    assert rate["config"]["peak_learning_rate"] == 0.01
    assert int(again.optimizer.iterations) > 0
    assert again.loss.get_config() == copying_model.loss.get_config()
    inputs, labels = copy_task(16)
    options = {"verbose": 0, "return_dict": True}
    expected = copying_model.evaluate(inputs, labels, **options)
    evaluated = again.evaluate(inputs, labels, **options)
    assert evaluated.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(evaluated[name], value, rtol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_trains(policy):
    model = kt.Transformer(V, **SMALL, dtype=policy)
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss=kt.LabelSmoothedCrossentropy(0.1),
        **COMPILE,
    )
    inputs, labels = copy_task(8)
    before = model.get_weights()
    history = model.fit(inputs, labels, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    changes = [
        np.abs(after - weight).max()
        for after, weight in zip(model.get_weights(), before, strict=True)
    ]
    assert np.isfinite(changes).all()
    assert min(changes) > 0

"""Each layer against the equations of the paper in plain numpy."""

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies
from keras import ops

import keras_transformer as kt
from keras_transformer.positional_encoding import sinusoids

from . import reference
from .layers import KEY_DIM
from .layers import VALUE_DIM
from .layers import B
from .layers import D
from .layers import F
from .layers import N
from .layers import S
from .layers import T
from .layers import V

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
LAYER = {
    "num_heads": N,
    "hidden_dim": D,
    "intermediate_dim": F,
    "key_dim": KEY_DIM,
    "value_dim": VALUE_DIM,
}

each_norm_order = pytest.mark.parametrize(
    "normalize_first", [False, True], ids=["post_norm", "pre_norm"]
)
each_layout = pytest.mark.parametrize("layout", ["interleaved", "concatenated"])


def normal(*shape, seed=7):
    values = np.random.default_rng(seed).normal(size=shape)
    return values.astype("float32")


def randomize(layer):
    """Gives biases and norms values that show, too."""
    layer.set_weights(
        [
            weight + normal(*weight.shape, seed=seed) / 4
            for seed, weight in enumerate(layer.get_weights())
        ]
    )


def affine(dense, names):
    kernel = np.float64(dense.kernel)
    bias = np.zeros(kernel.shape[1])
    if dense.use_bias:
        bias = np.float64(dense.bias)
    return dict(zip(names, (kernel, bias), strict=True))


def attention_matrices(layer):
    heads = []
    for head in range(layer.num_heads):
        matrices = {}
        for letter, dense, size in (
            ("Q", layer.query_projection, layer.key_dim),
            ("K", layer.key_projection, layer.key_dim),
            ("V", layer.value_projection, layer.value_dim),
        ):
            columns = slice(head * size, (head + 1) * size)
            for name, matrix in affine(dense, "Wb").items():
                matrices[f"{name}_{letter}"] = matrix[..., columns]
        heads.append(matrices)
    return {"heads": heads, **affine(layer.output_projection, ("W_O", "b_O"))}


def feed_forward_matrices(layer):
    return {
        **affine(layer.inner, ("W_1", "b_1")),
        **affine(layer.outer, ("W_2", "b_2")),
    }


def norm_vectors(layer):
    return {"gain": np.float64(layer.gamma), "bias": np.float64(layer.beta)}


def layer_matrices(layer):
    """Reads an encoder or decoder layer, by the names of its sublayers."""
    matrices = {"feed_forward": feed_forward_matrices(layer.feed_forward)}
    for name in ("self_attention", "cross_attention", "feed_forward"):
        if hasattr(layer, name):
            norm = getattr(layer, f"{name}_add_norm").norm
            matrices[f"{name}_norm"] = norm_vectors(norm)
            if name != "feed_forward":
                matrices[name] = attention_matrices(getattr(layer, name))
    return matrices


def transformer_matrices(model):
    matrices = {"embeddings": np.float64(model.target_embedding.embeddings)}
    matrices["output_bias"] = np.zeros(model.vocabulary_size)
    if model.output_bias:
        matrices["output_bias"] = np.float64(model.logit_bias)
    for name in ("encoder", "decoder"):
        stack = getattr(model, name)
        matrices[name] = [layer_matrices(layer) for layer in stack.layers]
        if model.normalize_first:
            matrices[f"{name}_norm"] = norm_vectors(stack.final_norm)
    return matrices


@pytest.mark.parametrize("use_bias", [False, True])
def test_multi_head_attention(use_bias):
    layer = kt.MultiHeadAttention(
        num_heads=N,
        hidden_dim=D,
        key_dim=KEY_DIM,
        value_dim=VALUE_DIM,
        use_bias=use_bias,
    )
    query, value = normal(B, T, D), normal(B, S, D + 4)
    layer(query=query, value=value)
    randomize(layer)
    outputs, weights = layer(
        query=query, value=value, return_attention_scores=True
    )
    assert tuple(weights.shape) == (B, N, T, S)
    for row in range(B):
        expected = reference.multi_head(
            query[row], value[row], attention_matrices(layer)
        )
        np.testing.assert_allclose(outputs[row], expected[0], **TOLERANCE)
        np.testing.assert_allclose(weights[row], expected[1], **TOLERANCE)


def test_multi_head_attention_with_a_mask():
    layer = kt.MultiHeadAttention(num_heads=N, hidden_dim=D)
    query, value = normal(B, T, D), normal(B, S, D)
    allowed = np.random.default_rng(5).random((B, T, S)) < 0.5
    allowed[:, :, 2] = True
    outputs = layer(query=query, value=value, attention_mask=allowed)
    for row in range(B):
        expected, _ = reference.multi_head(
            query[row], value[row], attention_matrices(layer), allowed[row]
        )
        np.testing.assert_allclose(outputs[row], expected, **TOLERANCE)


@pytest.mark.skipif(
    keras.backend.backend() == "jax",
    reason="JAX has no float64 unless it is told to",
)
def test_multi_head_attention_in_double_precision():
    layer = kt.MultiHeadAttention(num_heads=N, hidden_dim=D, dtype="float64")
    query, value = (x.astype("float64") for x in (normal(B, T, D),) * 2)
    allowed = np.tril(np.ones((T, T), bool))
    outputs, weights = layer(
        query=query,
        value=value,
        use_causal_mask=True,
        return_attention_scores=True,
    )
    for row in range(B):
        expected = reference.multi_head(
            query[row], value[row], attention_matrices(layer), allowed
        )
        for found, wanted in zip((outputs, weights), expected, strict=True):
            np.testing.assert_allclose(found[row], wanted, rtol=0, atol=1e-13)


def test_multi_head_attention_with_keys_of_their_own():
    layer = kt.MultiHeadAttention(num_heads=1, hidden_dim=D, use_bias=False)
    query, value, key = normal(B, T, D), normal(B, S, D), normal(B, S, F)
    outputs = layer(query=query, value=value, key=key)
    for row in range(B):
        heads, _ = reference.attention(
            query[row] @ np.float64(layer.query_projection.kernel),
            key[row] @ np.float64(layer.key_projection.kernel),
            value[row] @ np.float64(layer.value_projection.kernel),
            np.ones((T, S), bool),
        )
        expected = heads @ np.float64(layer.output_projection.kernel)
        np.testing.assert_allclose(outputs[row], expected, **TOLERANCE)


def test_feed_forward():
    layer = kt.FeedForward(hidden_dim=D, intermediate_dim=F)
    inputs = normal(B, T, D)
    layer(inputs)
    randomize(layer)
    expected = reference.feed_forward(inputs, feed_forward_matrices(layer))
    np.testing.assert_allclose(layer(inputs), expected, **TOLERANCE)


@each_layout
@pytest.mark.parametrize("start_position", [0, 7])
@pytest.mark.parametrize("d_model", [D, D + 1])
def test_sinusoidal_positional_encoding(layout, start_position, d_model):
    layer = kt.SinusoidalPositionalEncoding(layout=layout)
    inputs = normal(B, T, d_model)
    outputs = layer(inputs, start_position=start_position)
    expected = inputs + reference.sinusoids(
        range(start_position, start_position + T), d_model, layout
    )
    np.testing.assert_allclose(outputs, expected, **TOLERANCE)


@hypothesis.given(
    position=strategies.integers(0, 10_000),
    d_model=strategies.integers(1, 64),
    layout=strategies.sampled_from(["interleaved", "concatenated"]),
)
def test_sinusoids_at_any_position(position, d_model, layout):
    outputs = sinusoids(ops.array([float(position)]), d_model, layout)
    expected = reference.sinusoids([position], d_model, layout)
    # An angle of up to 10,000 is off by up to 1e-3 in float32.
    np.testing.assert_allclose(outputs, expected, atol=5e-3)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_sinusoids_are_exact_in_half_precision(policy):
    layer = kt.SinusoidalPositionalEncoding(dtype=policy)
    outputs = layer(np.zeros((1, 1000, 8), "float32"))
    expected = reference.sinusoids(range(1000), 8)
    outputs = ops.convert_to_numpy(ops.cast(outputs, "float32"))[0]
    np.testing.assert_allclose(outputs, expected, atol=2**-8)


def test_learned_positional_encoding():
    layer = kt.LearnedPositionalEncoding(max_length=S, hidden_dim=D)
    inputs = normal(B, T, D)
    layer(inputs)
    vectors = ops.convert_to_numpy(layer.position_embeddings)
    np.testing.assert_allclose(layer(inputs), inputs + vectors[:T])
    np.testing.assert_allclose(
        layer(inputs, start_position=S - T), inputs + vectors[S - T :]
    )
    past_the_end = layer(inputs, start_position=ops.array(S - T + 1))
    np.testing.assert_allclose(past_the_end[:, -1], inputs[:, -1] + vectors[-1])


def test_learned_positions_are_rounded_once_with_what_they_are_added_to():
    policy = "mixed_bfloat16"
    layer = kt.LearnedPositionalEncoding(S, D, dtype=policy)
    inputs = ops.cast(normal(B, S, D), "bfloat16")
    outputs = layer(inputs)
    vectors = ops.convert_to_tensor(layer.position_embeddings)
    expected = ops.cast(ops.cast(inputs, "float32") + vectors, "bfloat16")
    assert bool(ops.all(ops.equal(outputs, expected)))


@pytest.mark.parametrize(
    "layer",
    [
        kt.TokenEmbedding(vocabulary_size=500, hidden_dim=100),
        kt.LearnedPositionalEncoding(max_length=500, hidden_dim=100),
    ],
)
def test_vectors_begin_with_a_length_of_one(layer):
    layer.build((None, None, 100))
    (vectors,) = layer.get_weights()
    np.testing.assert_allclose(vectors.mean(), 0, atol=0.003)
    np.testing.assert_allclose(vectors.std(), 0.1, rtol=0.02)


def test_token_embedding_and_its_reverse():
    layer = kt.TokenEmbedding(vocabulary_size=V, hidden_dim=D)
    ids = np.random.default_rng(5).integers(0, V, (B, T))
    vectors = layer(ids)
    matrix = ops.convert_to_numpy(layer.embeddings)
    np.testing.assert_allclose(vectors, matrix[ids] * D**0.5, rtol=1e-6)
    logits = layer(normal(B, T, D), reverse=True)
    np.testing.assert_allclose(logits, normal(B, T, D) @ matrix.T, **TOLERANCE)


@each_norm_order
def test_encoder_layer(normalize_first):
    layer = kt.EncoderLayer(**LAYER, normalize_first=normalize_first)
    inputs = normal(B, S, D)
    layer(inputs)
    randomize(layer)
    outputs = layer(inputs)
    for row in range(B):
        expected = reference.encoder_layer(
            inputs[row], layer_matrices(layer), normalize_first
        )
        np.testing.assert_allclose(outputs[row], expected, **TOLERANCE)


@each_norm_order
def test_decoder_layer(normalize_first):
    layer = kt.DecoderLayer(**LAYER, normalize_first=normalize_first)
    inputs, encoded = normal(B, T, D), normal(B, S, D)
    layer(inputs, encoded)
    randomize(layer)
    outputs = layer(inputs, encoded)
    for row in range(B):
        expected = reference.decoder_layer(
            inputs[row], encoded[row], layer_matrices(layer), normalize_first
        )
        np.testing.assert_allclose(outputs[row], expected, **TOLERANCE)


@each_norm_order
@pytest.mark.parametrize("has_biases", [False, True])
def test_transformer_logits(normalize_first, has_biases):
    model = kt.Transformer(
        V,
        num_layers=2,
        normalize_first=normalize_first,
        attention_bias=has_biases,
        output_bias=has_biases,
        **LAYER,
    )
    model.set_weights(
        [
            weight + normal(*weight.shape, seed=seed) / 16
            for seed, weight in enumerate(model.get_weights())
        ]
    )
    generator = np.random.default_rng(5)
    ids = {
        "source_ids": generator.integers(1, V, (B, S)),
        "target_ids": generator.integers(1, V, (B, T)),
    }
    ids["source_ids"][0, -2:] = 0
    ids["target_ids"][1, -1:] = 0
    logits = model(ids)
    for row in range(B):
        source_ids, target_ids = (
            [token_id for token_id in ids[name][row] if token_id]
            for name in ("source_ids", "target_ids")
        )
        expected = reference.transformer(
            source_ids, target_ids, transformer_matrices(model), normalize_first
        )
        np.testing.assert_allclose(
            logits[row, : len(target_ids)], expected, **TOLERANCE
        )


def test_cross_attention_weights_of_the_transformer():
    model = kt.Transformer(V, num_layers=1, **LAYER)
    (weights,) = model.cross_attention(
        {
            "source_ids": np.array([[4, 5, 3]], "int32"),
            "target_ids": np.array([[2, 6]], "int32"),
        }
    )
    matrices = transformer_matrices(model)
    encoded = reference.encoder_layer(
        reference.embed([4, 5, 3], matrices["embeddings"]),
        matrices["encoder"][0],
    )
    decoder = matrices["decoder"][0]
    x = reference.embed([2, 6], matrices["embeddings"])
    x = reference.add_and_norm(
        x,
        lambda y: reference.multi_head(
            y, y, decoder["self_attention"], np.tri(2, dtype=bool)
        )[0],
        decoder["self_attention_norm"],
        normalize_first=False,
    )
    _, expected = reference.multi_head(x, encoded, decoder["cross_attention"])
    np.testing.assert_allclose(weights[0], expected, **TOLERANCE)


def test_learning_rate():
    schedule = kt.WarmupSchedule(hidden_dim=512, warmup_steps=4000)
    for step in (1, 2, 100, 3999, 4000, 4001, 100_000):
        expected = reference.learning_rate(step, 512, 4000)
        np.testing.assert_allclose(schedule(step), expected, rtol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_label_smoothed_crossentropy(epsilon):
    logits = 3 * normal(B, T, V)
    labels = np.random.default_rng(5).integers(0, V, (B, T))
    loss = kt.LabelSmoothedCrossentropy(epsilon, reduction="none")
    expected = [
        [
            reference.label_smoothed_crossentropy(row, label, epsilon)
            for row, label in zip(rows, row_labels, strict=True)
        ]
        for rows, row_labels in zip(logits, labels, strict=True)
    ]
    np.testing.assert_allclose(loss(labels, logits), expected, **TOLERANCE)

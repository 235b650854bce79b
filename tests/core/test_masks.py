"""What may look at what: causality, padding, and every way to say so."""

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies
from keras import ops

import keras_transformer as kt
from keras_transformer.masking import causal_mask
from keras_transformer.masking import combine_masks
from keras_transformer.masking import padding_mask

from .layers import B
from .layers import D
from .layers import F
from .layers import N
from .layers import S
from .layers import T
from .layers import V

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
LAYER = {"num_heads": N, "hidden_dim": D, "intermediate_dim": F}
SOURCE_IDS = np.array([[4, 5, 6, 7, 8, 9, 3], [4, 5, 3, 0, 0, 0, 0]], "int32")
TARGET_IDS = np.array([[2, 6, 7, 0, 0], [2, 6, 7, 8, 9]], "int32")

EMBEDDINGS = {
    "keras": lambda: keras.layers.Embedding(V, D, mask_zero=True),
    "ours": lambda: kt.TokenEmbedding(V, D),
}
ENCODERS = {
    "layer": lambda **options: kt.EncoderLayer(**LAYER, **options),
    "stack": lambda **options: kt.Encoder(num_layers=2, **LAYER, **options),
}
DECODERS = {
    "layer": lambda **options: kt.DecoderLayer(**LAYER, **options),
    "stack": lambda **options: kt.Decoder(num_layers=2, **LAYER, **options),
}

each_embedding = pytest.mark.parametrize("embedding", EMBEDDINGS)
each_encoder = pytest.mark.parametrize("encoder", ENCODERS)
each_decoder = pytest.mark.parametrize("decoder", DECODERS)
each_norm_order = pytest.mark.parametrize(
    "normalize_first", [False, True], ids=["post_norm", "pre_norm"]
)


def normal(*shape):
    return np.random.default_rng(7).normal(size=shape).astype("float32")


def tiny_model(**options):
    options = {"num_layers": 2, **LAYER, **options}
    return kt.Transformer(V, **options)


def without_mask(tensor):
    return ops.convert_to_numpy(tensor)


# What a position may not see.


@each_norm_order
@each_decoder
def test_later_targets_change_no_earlier_output(decoder, normalize_first):
    layer = DECODERS[decoder](normalize_first=normalize_first)
    inputs, encoded = normal(B, T, D), normal(B, S, D)
    expected = ops.convert_to_numpy(layer(inputs, encoded))
    for position in range(T):
        changed = inputs.copy()
        changed[:, position] = -changed[:, position]
        outputs = ops.convert_to_numpy(layer(changed, encoded))
        np.testing.assert_allclose(
            outputs[:, :position], expected[:, :position], **TOLERANCE
        )
        difference = np.abs(outputs - expected).max(axis=-1)
        assert (difference[:, position:] > 1e-4).all()


def test_later_target_tokens_change_no_earlier_logits():
    model = tiny_model()
    ids = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    expected = model(ids)
    for position in range(T):
        changed = TARGET_IDS.copy()
        changed[:, position] = 11
        logits = model({**ids, "target_ids": changed})
        np.testing.assert_allclose(
            logits[:, :position], expected[:, :position], **TOLERANCE
        )
        difference = np.abs(ops.convert_to_numpy(logits - expected))
        assert (difference[:, position:].max(axis=-1) > 1e-4).all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_first": True},
        {"positional_encoding": "learned", "max_length": 19},
    ],
    ids=["sinusoids", "pre_norm", "learned"],
)
def test_padding_changes_no_real_logits(options):
    model = tiny_model(**options)
    ids = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    expected = ops.convert_to_numpy(model(ids))
    padded = {
        name: np.pad(array, ((0, 0), (0, 4))) for name, array in ids.items()
    }
    logits = ops.convert_to_numpy(model(padded))[:, :T]
    real = TARGET_IDS != 0
    np.testing.assert_allclose(logits[real], expected[real], **TOLERANCE)


@each_encoder
def test_what_stands_in_padding_changes_no_real_output(encoder):
    layer = ENCODERS[encoder]()
    inputs, real = normal(B, S, D), SOURCE_IDS != 0
    changed = np.where(real[:, :, None], inputs, 7.0)
    expected = without_mask(layer(inputs, padding_mask=real))
    outputs = without_mask(layer(changed, padding_mask=real))
    np.testing.assert_allclose(outputs[real], expected[real], **TOLERANCE)


@each_decoder
def test_what_stands_in_encoded_padding_changes_nothing(decoder):
    layer = DECODERS[decoder]()
    inputs, encoded, real = normal(B, T, D), normal(B, S, D), SOURCE_IDS != 0
    changed = np.where(real[:, :, None], encoded, 7.0)
    np.testing.assert_allclose(
        layer(inputs, changed, encoded_mask=real),
        layer(inputs, encoded, encoded_mask=real),
        **TOLERANCE,
    )


@each_decoder
def test_padding_between_targets_is_not_attended(decoder):
    layer = DECODERS[decoder]()
    inputs, encoded = normal(B, T, D), normal(B, S, D)
    real = np.ones((B, T), bool)
    real[:, 1] = False
    changed = inputs.copy()
    changed[:, 1] = 7.0
    expected = without_mask(layer(inputs, encoded, padding_mask=real))
    outputs = without_mask(layer(changed, encoded, padding_mask=real))
    np.testing.assert_allclose(outputs[real], expected[real], **TOLERANCE)


@each_norm_order
def test_encoder_layer_knows_no_order(normalize_first):
    layer = kt.EncoderLayer(**LAYER, normalize_first=normalize_first)
    inputs = normal(B, S, D)
    order = np.random.default_rng(5).permutation(S)
    np.testing.assert_allclose(
        layer(inputs[:, order]),
        ops.convert_to_numpy(layer(inputs))[:, order],
        **TOLERANCE,
    )


# Masks that Keras hands from layer to layer.


@each_embedding
@each_encoder
def test_encoder_honours_keras_masks(encoder, embedding):
    embed, layer = EMBEDDINGS[embedding](), ENCODERS[encoder]()
    ids = keras.Input((None,), dtype="int32")
    implicit = keras.Model(ids, layer(embed(ids)))
    vectors = without_mask(embed(SOURCE_IDS))
    explicit = layer(vectors, padding_mask=SOURCE_IDS != 0)
    np.testing.assert_allclose(implicit(SOURCE_IDS), explicit, **TOLERANCE)
    assert np.abs(ops.subtract(explicit, layer(vectors))).max() > 1e-3


@each_embedding
@each_encoder
def test_encoder_joins_keras_and_attention_masks(encoder, embedding):
    embed, layer = EMBEDDINGS[embedding](), ENCODERS[encoder]()
    near = np.abs(np.subtract.outer(np.arange(S), np.arange(S))) < 3
    ids = keras.Input((S,), dtype="int32")
    masks = keras.Input((S, S), dtype="bool")
    implicit = keras.Model(
        [ids, masks], layer(embed(ids), attention_mask=masks)
    )
    batch_of_masks = np.broadcast_to(near, (B, S, S))
    vectors = without_mask(embed(SOURCE_IDS))
    explicit = layer(vectors, padding_mask=SOURCE_IDS != 0, attention_mask=near)
    outputs = implicit([SOURCE_IDS, batch_of_masks])
    np.testing.assert_allclose(outputs, explicit, **TOLERANCE)
    for one_less in (
        layer(vectors, padding_mask=SOURCE_IDS != 0),
        layer(vectors, attention_mask=near),
    ):
        assert np.abs(ops.subtract(explicit, one_less)).max() > 1e-3


@each_embedding
@each_decoder
def test_decoder_honours_keras_masks(decoder, embedding):
    embed, layer = EMBEDDINGS[embedding](), DECODERS[decoder]()
    target_ids = TARGET_IDS.copy()
    target_ids[:, 1] = 0  # seen by later positions, were it not masked
    source = keras.Input((None,), dtype="int32")
    target = keras.Input((None,), dtype="int32")
    implicit = keras.Model(
        [target, source], layer(embed(target), embed(source))
    )
    vectors = without_mask(embed(target_ids))
    encoded = without_mask(embed(SOURCE_IDS))
    masks = {
        "padding_mask": target_ids != 0,
        "encoded_mask": SOURCE_IDS != 0,
    }
    explicit = layer(vectors, encoded, **masks)
    outputs = implicit([target_ids, SOURCE_IDS])
    np.testing.assert_allclose(outputs, explicit, **TOLERANCE)
    for name in masks:
        one_less = layer(vectors, encoded, **{**masks, name: None})
        assert np.abs(ops.subtract(explicit, one_less)).max() > 1e-3


@each_embedding
def test_attention_honours_the_keras_mask_of_value(embedding):
    embed = EMBEDDINGS[embedding]()
    layer = kt.MultiHeadAttention(num_heads=N, hidden_dim=D)
    source = keras.Input((None,), dtype="int32")
    query = keras.Input((None, D))
    implicit = keras.Model(
        [query, source], layer(query=query, value=embed(source))
    )
    queries = normal(B, T, D)
    values = without_mask(embed(SOURCE_IDS))
    explicit = layer(query=queries, value=values, value_mask=SOURCE_IDS != 0)
    np.testing.assert_allclose(
        implicit([queries, SOURCE_IDS]), explicit, **TOLERANCE
    )
    plain = layer(query=queries, value=values)
    assert np.abs(ops.subtract(explicit, plain)).max() > 1e-3


def test_attention_joins_the_masks_of_key_and_value():
    layer = kt.MultiHeadAttention(num_heads=N, hidden_dim=D)
    query, value, key = normal(B, T, D), normal(B, S, D), 1 - normal(B, S, D)
    real, known = SOURCE_IDS != 0, SOURCE_IDS != 5
    tensors = {"query": query, "value": value, "key": key}
    np.testing.assert_allclose(
        layer(**tensors, value_mask=real, key_mask=known),
        layer(**tensors, value_mask=real & known),
        **TOLERANCE,
    )


@pytest.mark.parametrize("encoder", ENCODERS)
def test_padding_mask_stands_in_for_the_keras_mask(encoder):
    embed, layer = kt.TokenEmbedding(V, D), ENCODERS[encoder]()
    everything = np.ones(SOURCE_IDS.shape, bool)
    np.testing.assert_allclose(
        layer(embed(SOURCE_IDS), padding_mask=everything),
        layer(without_mask(embed(SOURCE_IDS))),
        **TOLERANCE,
    )


@pytest.mark.parametrize("encoder", ENCODERS)
def test_mask_by_the_name_of_keras_stands_in_too(encoder):
    """As in a layer around it, which narrows the mask that it is given."""
    embed, layer = kt.TokenEmbedding(V, D), ENCODERS[encoder]()
    inputs = embed(SOURCE_IDS)
    narrow = (SOURCE_IDS != 0) & (np.arange(S) < 2)
    expected = layer(without_mask(inputs), padding_mask=narrow)
    for masked in (inputs, without_mask(inputs)):
        outputs = layer(masked, mask=narrow)
        np.testing.assert_allclose(outputs, expected, **TOLERANCE)
    assert np.abs(ops.subtract(layer(inputs), expected)).max() > 1e-3


@pytest.mark.parametrize("decoder", DECODERS)
def test_decoder_masks_stand_in_for_the_keras_masks(decoder):
    embed, layer = kt.TokenEmbedding(V, D), DECODERS[decoder]()
    target_ids = TARGET_IDS.copy()
    target_ids[:, 1] = 0
    np.testing.assert_allclose(
        layer(
            embed(target_ids),
            embed(SOURCE_IDS),
            padding_mask=np.ones(target_ids.shape, bool),
            encoded_mask=np.ones(SOURCE_IDS.shape, bool),
        ),
        layer(without_mask(embed(target_ids)), without_mask(embed(SOURCE_IDS))),
        **TOLERANCE,
    )


@pytest.mark.parametrize(
    "make",
    [
        kt.SinusoidalPositionalEncoding,
        lambda: kt.LearnedPositionalEncoding(max_length=S, hidden_dim=D),
        lambda: kt.FeedForward(hidden_dim=D, intermediate_dim=F),
        ENCODERS["layer"],
        ENCODERS["stack"],
    ],
    ids=["sinusoids", "learned", "feed_forward", "layer", "stack"],
)
def test_keras_mask_passes_through(make):
    layer = make()
    ids = keras.Input((None,), dtype="int32")
    vectors = layer(kt.TokenEmbedding(V, D)(ids))
    mean = keras.layers.GlobalAveragePooling1D()(vectors)
    outputs, means = keras.Model(ids, [vectors, mean])(SOURCE_IDS)
    real = (SOURCE_IDS != 0)[:, :, None]
    outputs = ops.convert_to_numpy(outputs)
    expected = (outputs * real).sum(axis=1) / real.sum(axis=1)
    np.testing.assert_allclose(means, expected, **TOLERANCE)


def test_logits_carry_the_mask_of_the_targets():
    model = tiny_model()
    ids = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("source_ids", "target_ids")
    }
    logits = model(ids)
    mean = keras.layers.GlobalAveragePooling1D()(logits)
    outputs, means = keras.Model(ids, [logits, mean])(
        {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    )
    real = (TARGET_IDS != 0)[:, :, None]
    outputs = ops.convert_to_numpy(outputs)
    expected = (outputs * real).sum(axis=1) / real.sum(axis=1)
    np.testing.assert_allclose(means, expected, **TOLERANCE)


def test_ids_that_keras_made_floats_carry_a_mask():
    """As where an `Input`, or a `Sequential`, has no dtype."""
    embedding = kt.TokenEmbedding(V, D)
    encoder = kt.EncoderLayer(**LAYER)
    ids = keras.Input((None,))
    functional = keras.Model(ids, encoder(embedding(ids)))
    expected = without_mask(encoder(embedding(SOURCE_IDS)))
    for model in (functional, keras.Sequential([embedding, encoder])):
        found = without_mask(model(SOURCE_IDS))
        np.testing.assert_allclose(found, expected, **TOLERANCE)
    unmasked = encoder(without_mask(embedding(SOURCE_IDS)))
    assert np.abs(without_mask(unmasked) - expected).max() > 1e-2


def test_embedding_without_mask_zero_carries_no_mask():
    layer = kt.EncoderLayer(**LAYER)
    embed = kt.TokenEmbedding(V, D, mask_zero=False)
    np.testing.assert_allclose(
        layer(embed(SOURCE_IDS)),
        layer(without_mask(embed(SOURCE_IDS))),
        **TOLERANCE,
    )


# Inputs that nothing has normalised, whose scores are large.


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e12])
def test_large_inputs_do_not_get_past_a_mask(scale):
    layer = kt.MultiHeadAttention(num_heads=N, hidden_dim=D)
    x = normal(1, S, D) * scale
    changed = x.copy()
    changed[:, 3:] *= 3
    outputs, others, shorter = (
        ops.convert_to_numpy(layer(query=x, value=x, use_causal_mask=True))
        for x in (x, changed, x[:, :3])
    )
    np.testing.assert_array_equal(outputs[:, :3], others[:, :3])
    np.testing.assert_allclose(
        outputs[:, :3], shorter, rtol=1e-4, atol=1e-4 * scale
    )
    assert np.any(outputs[:, 3:] != others[:, 3:])
    # In a step of decoding, of the last of three positions.
    mask = np.arange(S)[None, None] < 3
    steps = [
        ops.convert_to_numpy(
            layer.attend_in_step(
                x[:, 2], [(*layer.keys_and_values(x), mask)], length=1
            )
        )
        for x in (x, changed)
    ]
    np.testing.assert_array_equal(*steps)
    np.testing.assert_allclose(
        steps[0], outputs[:, 2], rtol=1e-4, atol=1e-4 * scale
    )


@each_encoder
def test_what_stands_in_padding_may_be_large(encoder):
    layer = ENCODERS[encoder]()
    x = normal(B, S, D)
    real = SOURCE_IDS != 0
    expected = ops.convert_to_numpy(layer(x, padding_mask=real))
    x[~real] = 1e12  # such as features that were not filled in
    outputs = ops.convert_to_numpy(layer(x, padding_mask=real))
    np.testing.assert_array_equal(outputs[real], expected[real])


# Masks that leave nothing, and masks together.


@pytest.mark.parametrize(
    "policy", ["float32", "mixed_bfloat16", "mixed_float16"]
)
def test_nothing_to_attend_is_finite(policy):
    keras.config.set_dtype_policy(policy)
    nothing = np.zeros((B, S), bool)
    encoded = kt.Encoder(num_layers=2, **LAYER)(
        normal(B, S, D), padding_mask=nothing
    )
    decoded = kt.Decoder(num_layers=2, **LAYER)(
        normal(B, T, D),
        encoded,
        padding_mask=np.zeros((B, T), bool),
        encoded_mask=nothing,
    )
    logits = tiny_model()(
        {
            "source_ids": np.zeros((B, S), "int32"),
            "target_ids": np.zeros((B, T), "int32"),
        }
    )
    for outputs in (encoded, decoded, logits):
        outputs = ops.convert_to_numpy(ops.cast(outputs, "float32"))
        assert np.isfinite(outputs).all()


def test_nothing_to_attend_is_the_average():
    layer = kt.MultiHeadAttention(num_heads=N, hidden_dim=D)
    value = normal(B, S, D)
    _, weights = layer(
        query=normal(B, T, D),
        value=value,
        value_mask=np.zeros((B, S), bool),
        return_attention_scores=True,
    )
    np.testing.assert_allclose(weights, np.full((B, N, T, S), 1 / S), rtol=1e-6)


def test_attention_joins_all_masks():
    layer = kt.MultiHeadAttention(num_heads=N, hidden_dim=D)
    real = SOURCE_IDS != 0
    allowed = np.random.default_rng(5).random((B, T, S)) < 0.7
    allowed[:, :, 0] = True
    _, weights = layer(
        query=normal(B, T, D),
        value=normal(B, S, D),
        value_mask=real,
        attention_mask=allowed,
        return_attention_scores=True,
    )
    expected = allowed & real[:, None, :]
    seen = ops.convert_to_numpy(weights) > 0
    np.testing.assert_array_equal(seen, np.stack([expected] * N, axis=1))


def test_attention_joins_all_masks_with_the_causal_one():
    layer = kt.MultiHeadAttention(num_heads=N, hidden_dim=D)
    real = SOURCE_IDS != 0
    allowed = np.random.default_rng(5).random((B, S, S)) < 0.7
    allowed[:, :, 0] = True
    x = normal(B, S, D)
    _, weights = layer(
        query=x,
        value=x,
        value_mask=real,
        attention_mask=allowed,
        use_causal_mask=True,
        return_attention_scores=True,
    )
    expected = allowed & real[:, None, :] & np.tri(S, dtype=bool)
    seen = ops.convert_to_numpy(weights) > 0
    np.testing.assert_array_equal(seen, np.stack([expected] * N, axis=1))


def test_an_encoder_returns_what_it_attends_to():
    encoder = kt.Encoder(2, N, D, F, normalize_first=True)
    x, real = normal(B, S, D), SOURCE_IDS != 0
    masks = {"padding_mask": real, "use_causal_mask": True}
    outputs, scores = encoder(x, return_attention_scores=True, **masks)
    np.testing.assert_allclose(outputs, encoder(x, **masks), rtol=1e-5)
    assert [tuple(weights.shape) for weights in scores] == [(B, N, S, S)] * 2
    allowed = real[:, None, None, :] & np.tri(S, dtype=bool)
    for weights, layer in zip(scores, encoder.layers, strict=True):
        x, of_layer = layer(x, return_attention_scores=True, **masks)
        np.testing.assert_allclose(weights, of_layer, rtol=1e-5)
        weights = ops.convert_to_numpy(weights)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
        np.testing.assert_array_equal(weights > 0, allowed.repeat(N, axis=1))
    first = encoder.layers[0]
    x = first.self_attention_add_norm.before(normal(B, S, D))
    _, expected = first.self_attention(
        query=x,
        value=x,
        value_mask=real,
        use_causal_mask=True,
        return_attention_scores=True,
    )
    np.testing.assert_allclose(scores[0], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_attention_of_an_encoder_may_be_an_output(dtype):
    encoder = kt.Encoder(2, N, D, F, rematerialize=True, dtype=dtype)
    ids = keras.Input((None,), dtype="int32")
    x, scores = encoder(
        kt.TokenEmbedding(V, D, dtype=dtype)(ids),
        return_attention_scores=True,
        training=True,
    )
    assert getattr(x, "_keras_mask", None) is not None
    model = keras.Model(ids, scores)
    expected = np.broadcast_to((SOURCE_IDS != 0)[:, None, None], (B, N, S, S))
    for weights in model(SOURCE_IDS):
        assert keras.backend.standardize_dtype(weights.dtype) == "float32"
        seen = ops.convert_to_numpy(weights) > 0
        np.testing.assert_array_equal(seen, expected)


@each_encoder
def test_encoder_may_be_causal(encoder):
    layer = ENCODERS[encoder]()
    ids = keras.Input((None,), dtype="int32")
    x = kt.TokenEmbedding(V, D)(ids)
    model = keras.Model(ids, layer(x, use_causal_mask=True))
    found = ops.convert_to_numpy(model(SOURCE_IDS))
    x = without_mask(model.layers[1](SOURCE_IDS))
    for length in range(1, 4):  # both rows have three tokens
        expected = layer(x[:, :length], use_causal_mask=True)
        np.testing.assert_allclose(found[:, :length], expected, **TOLERANCE)
    allowed = np.tri(S, dtype=bool)
    expected = layer(x, padding_mask=SOURCE_IDS != 0, attention_mask=allowed)
    np.testing.assert_allclose(found, expected, **TOLERANCE)


@hypothesis.given(
    batch_size=strategies.integers(1, 3),
    length=strategies.integers(1, 6),
    use_padding=strategies.booleans(),
    attention_axes=strategies.sampled_from([None, 2, 3]),
    use_causal=strategies.booleans(),
    seed=strategies.integers(0, 1000),
)
def test_combined_mask_allows_what_every_mask_allows(
    batch_size, length, use_padding, attention_axes, use_causal, seed
):
    random = np.random.default_rng(seed).random
    expected = np.ones((batch_size, length, length), bool)
    masks = {}
    if use_padding:
        masks["padding_mask"] = random((batch_size, length)) < 0.6
        expected &= masks["padding_mask"][:, None, :]
    if attention_axes:
        shape = (batch_size, length, length)[-attention_axes:]
        masks["attention_mask"] = random(shape) < 0.6
        expected &= masks["attention_mask"]
    if use_causal:
        masks["causal"] = causal_mask(length, length)
        expected &= np.tri(length, dtype=bool)
    combined = combine_masks((batch_size, length, length), **masks)
    if not masks:
        assert combined is None
        return
    combined = np.broadcast_to(ops.convert_to_numpy(combined), expected.shape)
    np.testing.assert_array_equal(combined, expected)


def test_masks_of_other_dtypes_are_masks_too():
    layer = kt.EncoderLayer(**LAYER)
    inputs, real = normal(B, S, D), SOURCE_IDS != 0
    expected = layer(inputs, padding_mask=real)
    for dtype in ("int32", "float32"):
        outputs = layer(inputs, padding_mask=real.astype(dtype))
        np.testing.assert_allclose(outputs, expected, **TOLERANCE)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_stacks_look_at_the_numbers_of_a_mask_once(dtype):
    received = []

    class MyEncoderLayer(kt.EncoderLayer):
        def call(
            self,
            inputs,
            padding_mask=None,
            attention_mask=None,
            use_causal_mask=False,
            training=None,
        ):
            received.extend([padding_mask, attention_mask])
            return inputs

    class MyDecoderLayer(kt.DecoderLayer):
        def call(
            self,
            inputs,
            encoded,
            padding_mask=None,
            encoded_mask=None,
            training=None,
        ):
            received.extend([padding_mask, encoded_mask])
            return inputs

        step = kt.DecoderLayer.step

    class MyEncoder(kt.Encoder):
        layer_class = MyEncoderLayer

    class MyDecoder(kt.Decoder):
        layer_class = MyDecoderLayer

    real = (SOURCE_IDS != 0).astype(dtype)
    allowed = np.tri(S, dtype=dtype)
    targets = normal(B, T, D)
    target_mask = (TARGET_IDS != 0).astype(dtype)
    encoder = MyEncoder(num_layers=2, **LAYER)
    decoder = MyDecoder(num_layers=2, **LAYER)
    encoded = encoder(
        normal(B, S, D), padding_mask=real, attention_mask=allowed
    )
    decoder(targets, encoded, padding_mask=target_mask, encoded_mask=real)
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in received]
    assert dtypes == ["bool"] * 8  # two for each of four layers


def test_padding_mask_marks_the_ids_that_are_not_0():
    np.testing.assert_array_equal(padding_mask(SOURCE_IDS), SOURCE_IDS > 0)


def test_causal_mask_is_a_lower_triangle():
    np.testing.assert_array_equal(
        causal_mask(T, S)[0], np.tri(T, S, dtype=bool)
    )

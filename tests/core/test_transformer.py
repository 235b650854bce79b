"""The whole model: sizes, sharing, variations of Table 3, and files."""

import gc
import inspect
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.add_norm import AddNorm
from keras_transformer.transformer import PRESETS
from keras_transformer.weights import assign_named_weights
from keras_transformer.weights import named_weights

from .compiled import AT_ONCE
from .compiled import COMPILE
from .copying import copy_task
from .layers import MODEL
from .layers import B
from .layers import D
from .layers import F
from .layers import N
from .layers import S
from .layers import T
from .layers import V

SIZES = {
    "num_layers": 1,
    "num_heads": N,
    "hidden_dim": D,
    "intermediate_dim": F,
}

# Rows of Table 3: what differs from base, and the parameters the paper gives
# where they are not base's 65 million.
TABLE_3 = {
    "A 1 head": ({"num_heads": 1, "key_dim": 512}, 65),
    "A 4 heads": ({"num_heads": 4, "key_dim": 128}, 65),
    "A 16 heads": ({"num_heads": 16, "key_dim": 32}, 65),
    "A 32 heads": ({"num_heads": 32, "key_dim": 16}, 65),
    "B d_k 16": ({"key_dim": 16, "value_dim": 64}, 58),
    "B d_k 32": ({"key_dim": 32, "value_dim": 64}, 60),
    "C N 2": ({"num_layers": 2}, 36),
    "C N 4": ({"num_layers": 4}, 50),
    "C N 8": ({"num_layers": 8}, 80),
    "C d_model 256": ({"hidden_dim": 256, "key_dim": 32}, 28),
    "C d_model 1024": ({"hidden_dim": 1024, "key_dim": 128}, 168),
    "C d_ff 1024": ({"intermediate_dim": 1024}, 53),
    "C d_ff 4096": ({"intermediate_dim": 4096}, 90),
    "D P_drop 0": ({"dropout": 0.0}, 65),
    "D P_drop 0.2": ({"dropout": 0.2}, 65),
    "E learned positions": (
        {"positional_encoding": "learned", "max_length": 1024},
        65,
    ),
}
QUICK_ROWS = ("A 1 head", "B d_k 16", "C N 2", "E learned positions")


def small_model(**options):
    return kt.Transformer(V, **{**SIZES, **options})


def test_presets_have_the_dropout_of_their_sources():
    shares = {name: preset["dropout"] for name, preset in PRESETS.items()}
    assert shares == {"tiny": 0.3, "base": 0.1, "big": 0.3}


def test_without_a_preset_it_is_base():
    parameters = inspect.signature(kt.Transformer.__init__).parameters
    defaults = {name: parameters[name].default for name in PRESETS["base"]}
    assert defaults == PRESETS["base"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint16"])
def test_ids_are_not_rounded_to_half_precision(dtype):
    model = kt.Transformer(400, **SIZES, dtype="mixed_bfloat16")
    ids = np.full((2, 3), 301)  # between two numbers of bfloat16
    expected = model({"source_ids": ids, "target_ids": ids})
    ids = ids.astype(dtype)
    found = model({"source_ids": ids, "target_ids": ids})
    np.testing.assert_array_equal(
        *(keras.ops.convert_to_numpy(x) for x in (found, expected))
    )


def test_inputs_of_a_subclass_stay_as_they_are():
    class Sharing(kt.Transformer):
        def call(self, inputs, training=None):
            return super().call(inputs, training) * inputs["share"]

    model = Sharing(V, **SIZES)
    ids = np.full((2, 3), 4)
    inputs = {"source_ids": ids, "target_ids": ids, "share": np.float32(0.5)}
    whole = model({**inputs, "share": np.float32(1)})
    np.testing.assert_allclose(model(inputs), whole / 2, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_quantised_model_is_used_but_not_saved(tmp_path, monkeypatch):
    # Keras collects garbage for each layer it quantises.
    monkeypatch.setattr(gc, "collect", lambda: 0)
    model = small_model()
    ids = 4 + np.arange(2 * S).reshape(2, S) % (V - 4)
    inputs = {"source_ids": ids, "target_ids": model.decoder_inputs(ids)}
    before, _ = model.score(ids, ids)
    model.quantize("int8")
    found, _ = model.score(ids, ids)
    assert not np.array_equal(found, before)  # not the function of before
    expected = keras.ops.log_softmax(model(inputs), axis=-1)
    expected = np.take_along_axis(
        keras.ops.convert_to_numpy(expected), ids[:, :, None], axis=-1
    )
    np.testing.assert_allclose(found, expected[:, :, 0], rtol=1e-4)
    with pytest.raises(
        ValueError, match="quantised layer cannot be saved.* int8"
    ):
        model.save(tmp_path / "model.keras")


def test_a_quantised_layer_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(gc, "collect", lambda: 0)
    model = small_model()
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("source_ids", "target_ids")
    }
    around = keras.Model(inputs, model(inputs))
    model.decoder.layers[0].feed_forward.inner.quantize("int8")
    for saved in (model, around):
        with pytest.raises(
            ValueError, match="decoder.*/inner of transformer.* in int8"
        ):
            saved.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="compute in.*int8_from_float32"):
        small_model(dtype="int8_from_float32")


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_a_quantised_layer_alone_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(gc, "collect", lambda: 0)
    inputs = keras.Input((None, 8))
    encoder = kt.Encoder(1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    model = keras.Model(inputs, encoder(inputs))
    model.quantize("int8")
    with pytest.raises(ValueError, match="query of encoder.* in int8"):
        model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="compute in.*int8_from_float32"):
        kt.FeedForward(8, 16, dtype="int8_from_float32")


class WithDomains(kt.Transformer):
    """A subclass whose `call` takes more than the ids."""

    def __init__(self, *args, builds, **kwargs):
        super().__init__(*args, **kwargs)
        self.domain = keras.layers.Embedding(2, self.vocabulary_size)
        if builds:
            self.domain.build((None,))

    def call(self, inputs, training=None):
        logits = super().call(inputs, training=training)
        return logits + self.domain(inputs["domain_ids"])[:, None]


@pytest.mark.parametrize("builds", [True, False])
def test_layers_of_further_inputs_are_trained(builds):
    ids = np.full((2, 3), 4)
    x = {"source_ids": ids, "target_ids": ids, "domain_ids": np.array([0, 1])}
    model = WithDomains(V, **SIZES, builds=builds)
    if not builds:
        with pytest.raises(
            ValueError, match=r"'embedding.*'\] not built.*domain_ids"
        ):
            model.build_all()
    # A layer that is not built is built where a step is traced.
    compiled = AT_ONCE if builds else {}
    model.compile(kt.Adam(0.1), kt.LabelSmoothedCrossentropy(), **compiled)
    model.fit(x, ids + 1, verbose=0)
    before = keras.ops.convert_to_numpy(model.domain.embeddings).copy()
    model.fit(x, ids + 1, verbose=0)
    assert np.all(keras.ops.convert_to_numpy(model.domain.embeddings) != before)


@keras.saving.register_keras_serializable(package="tests")
class Language(keras.Model):
    """Of the layers alone; Keras builds it, when loaded, by a call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = kt.TokenEmbedding(V, D)
        self.encoder = kt.Encoder(1, N, D, F)
        self.logits = keras.layers.Dense(V)

    def call(self, ids):
        return self.logits(self.encoder(self.embedding(ids)))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_subclass_of_keras_made_of_layers_comes_back(tmp_path, dtype):
    model = Language(dtype=dtype)
    ids = np.array([[4, 5, 6, 7]])
    expected = model(ids)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert all(layer.built for layer in loaded.layers)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(loaded(ids)),
        keras.ops.convert_to_numpy(expected),
    )


@keras.saving.register_keras_serializable(package="tests")
class WithAdapter(kt.Transformer):
    """A subclass that adds a layer, as to any other model."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.adapter = keras.layers.Dense(self.vocabulary_size)
        self.adapter.build((None, None, self.vocabulary_size))

    def call(self, inputs, training=None):
        return self.adapter(super().call(inputs, training=training))


def test_a_subclass_may_add_layers(tmp_path):
    config = small_model().get_config()
    config.pop("name")
    model = WithAdapter.from_config(config)
    ids = 4 + np.arange(2 * S).reshape(2, S) % (V - 4)
    inputs = {"source_ids": ids, "target_ids": model.decoder_inputs(ids)}
    expected = model(inputs)
    assert any(weight is model.adapter.kernel for weight in model.weights)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(inputs), expected, rtol=1e-5)
    model.adapter.trainable = False
    again = WithAdapter.from_config(model.get_config())
    assert not again.adapter.trainable and again.encoder.trainable


class WithAdapters(kt.Transformer):
    """Adds layers that Keras names by what was made before."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.adapters = [keras.layers.Dense(self.hidden_dim) for _ in range(2)]
        self.extra = kt.FeedForward(self.hidden_dim, 4)
        self.head = keras.Sequential(
            [keras.layers.Dense(self.hidden_dim) for _ in range(2)]
        )
        for layer in (*self.adapters, self.extra, self.head):
            layer.build((None, None, self.hidden_dim))
        # By other names, which theirs go before.
        self.first = [self.encoder.layers[0], self.decoder.layers[0]]


def test_layers_without_names_are_numbered_in_their_model():
    config = small_model().get_config()
    config.pop("name")
    model, other = (WithAdapters.from_config(config) for _ in range(2))
    weights = named_weights(model)
    assign_named_weights(other, weights, "the other")
    for name, weight in named_weights(other).items():
        np.testing.assert_array_equal(weight, weights[name])
    own = named_weights(small_model())
    added = {name.rsplit("/", 1)[0] for name in weights if name not in own}
    assert added == {
        *("dense", "dense_1", "sequential/dense", "sequential/dense_1"),
        *("feed_forward/inner", "feed_forward/outer"),
    }
    for each in (model, other):
        each.compile("adam", kt.LabelSmoothedCrossentropy(), **COMPILE)
    checkpoint = kt.Checkpoint.of(model, 1)
    states = [name for name in checkpoint.tensors if "momentum" in name]
    assert sum("-dense_1_kernel_" in name for name in states) == 1
    checkpoint.assign(other)
    model.adapters[1].trainable = False
    assert model.get_config()["frozen"] == ["dense_1"]
    again = WithAdapters.from_config(model.get_config())
    assert [x.trainable for x in again.adapters] == [True, False]


class GatedEncoderLayer(kt.EncoderLayer):
    """Adds as much as a weight says, at first nothing."""

    def build(self, inputs_shape):
        self.gate = self.add_weight(shape=(), initializer="zeros", name="gate")
        super().build(inputs_shape)

    def call(
        self,
        inputs,
        padding_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        training=None,
    ):
        outputs = super().call(
            inputs, padding_mask, attention_mask, use_causal_mask, training
        )
        return inputs + self.gate * (outputs - inputs)


class HalvingDecoderLayer(kt.DecoderLayer):
    def call(
        self,
        inputs,
        encoded,
        padding_mask=None,
        encoded_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        x, weights = super().call(
            inputs, encoded, padding_mask, encoded_mask, True, training
        )
        return (x / 2, weights) if return_attention_scores else x / 2

    def step(self, inputs, *arguments):
        x, cache = super().step(inputs, *arguments)
        return x / 2, cache


class GatedEncoder(kt.Encoder):
    layer_class = GatedEncoderLayer


class HalvingDecoder(kt.Decoder):
    layer_class = HalvingDecoderLayer


@keras.saving.register_keras_serializable(package="tests")
class WithOwnLayers(kt.Transformer):
    encoder_class = GatedEncoder
    decoder_class = HalvingDecoder


@pytest.mark.parametrize("rematerialize", [False, True])
def test_a_subclass_may_have_layers_of_its_own(
    untraced, tmp_path, rematerialize
):
    plain = small_model(num_layers=2, rematerialize=rematerialize, dropout=0.5)
    config = plain.get_config()
    config.pop("name")
    model = WithOwnLayers.from_config(config)
    assert {type(x) for x in model.encoder.layers} == {GatedEncoderLayer}
    assert {type(x) for x in model.decoder.layers} == {HalvingDecoderLayer}
    ids = 4 + np.arange(2 * S).reshape(2, S) % (V - 4)
    ids[1, 3:] = 0
    inputs = {"source_ids": ids, "target_ids": model.decoder_inputs(ids)}
    embedded = model.source_positions(model.source_embedding(ids))
    np.testing.assert_allclose(model.encode(ids), embedded, rtol=1e-5)
    compiled = COMPILE if rematerialize else AT_ONCE
    model.compile("sgd", kt.LabelSmoothedCrossentropy(), **compiled)
    model.fit(inputs, ids, verbose=0)
    gates = [layer.gate for layer in model.encoder.layers]
    assert len(gates) == 2 and np.all(gates)
    expected = model(inputs)
    assert len(model.weights) == len(plain.weights) + 2
    vectors = ops.ones((1, T, D))
    for layer, arguments in (
        (model.encoder.layers[0], [vectors]),
        (model.decoder.layers[0], [vectors, vectors]),
    ):
        still, dropped = (
            ops.convert_to_numpy(layer(*arguments, training=training))
            for training in (False, True)
        )
        assert np.any(still != dropped)
    # Step by step as all at once.
    targets, scores = model.generate(ids, max_length=T, jit_compile=False)
    _, expected_scores = model.score(ids, targets, jit_compile=False)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-4)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(inputs), expected, rtol=1e-5, atol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class GatedFeedForward(kt.FeedForward):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gate = keras.layers.Dense(
            self.intermediate_dim, name="gate", dtype=self.dtype_policy
        )

    def build(self, inputs_shape):
        self.gate.build(inputs_shape)
        super().build(inputs_shape)

    def call(self, inputs, training=None):
        x = self.inner(inputs) * self.gate(inputs)
        return self.outer(self.inner_dropout(x, training=training))


def with_sublayers(**classes):
    """A `Transformer` both stacks of which have layers with these classes."""

    def stack(kind, layer):
        own = type("Own" + layer.__name__, (layer,), classes)
        return type("Own" + kind.__name__, (kind,), {"layer_class": own})

    stacks = {
        "encoder_class": stack(kt.Encoder, kt.EncoderLayer),
        "decoder_class": stack(kt.Decoder, kt.DecoderLayer),
    }
    return type("WithSublayers", (kt.Transformer,), stacks)


def test_a_subclass_may_have_a_feed_forward_network_of_its_own(tmp_path):
    Gated = with_sublayers(feed_forward_class=GatedFeedForward)
    keras.saving.register_keras_serializable(package="tests")(Gated)
    plain = small_model()
    model = Gated.from_config(plain.get_config())
    assert len(model.weights) == len(plain.weights) + 2 * 2 * len(
        plain.encoder.layers
    )
    ids = 4 + np.arange(2 * S).reshape(2, S) % (V - 4)
    # Step by step as all at once.
    targets, scores = model.generate(ids, max_length=T, jit_compile=False)
    _, expected = model.score(ids, targets, jit_compile=False)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    layer = model.encoder.layers[0].feed_forward
    without = kt.FeedForward.from_config(layer.get_config())
    without.build((None, D))
    for mine, its in (
        (without.inner, layer.inner),
        (without.outer, layer.outer),
    ):
        mine.set_weights(its.get_weights())
    layer.gate.set_weights([np.zeros((D, F)), np.ones(F)])  # open
    x = np.random.default_rng(3).normal(size=(2, D))
    np.testing.assert_allclose(layer(x), without(x), rtol=1e-5, atol=1e-6)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    inputs = {"source_ids": ids, "target_ids": model.decoder_inputs(ids)}
    np.testing.assert_allclose(again(inputs), model(inputs), atol=1e-6)


def test_a_layer_that_would_never_train_is_refused():
    class Unnamed(kt.EncoderLayer):
        def call(self, inputs, **options):
            return super().call(inputs, **options)

    class Stack(kt.Encoder):
        layer_class = Unnamed

    with pytest.raises(TypeError, match="must name .*`training`.*of Unnamed"):
        Stack(1, N, D, F)


def test_sublayers_that_would_never_train_are_refused():
    class Unnamed(kt.FeedForward):
        def call(self, inputs):
            return super().call(inputs)

    class EncoderLayer(kt.EncoderLayer):
        feed_forward_class = Unnamed

    class DecoderLayer(kt.DecoderLayer):
        feed_forward_class = Unnamed

    for kind in (EncoderLayer, DecoderLayer):
        with pytest.raises(TypeError, match="must name .*`training`.*Unnamed"):
            kind(N, D, F)

    class Attention(kt.MultiHeadAttention):
        def call(self, query, value):
            return super().call(query, value)

        attend_in_step = kt.MultiHeadAttention.attend_in_step

    EncoderLayer.feed_forward_class = kt.FeedForward
    DecoderLayer.feed_forward_class = kt.FeedForward
    for kind in (EncoderLayer, DecoderLayer):
        kind.attention_class = Attention
        with pytest.raises(TypeError, match="`training`.*that of Attention"):
            kind(N, D, F)


class Sharper(kt.MultiHeadAttention):
    """Attends to twice the scores."""

    def attend(self, query, *arguments):
        return super().attend(2 * query, *arguments)

    def attend_in_step(self, query, *arguments):
        return super().attend_in_step(2 * query, *arguments)


def test_a_subclass_may_have_an_attention_of_its_own():
    Sharp = with_sublayers(attention_class=Sharper)
    plain = small_model(tie_source=False)
    model = Sharp.from_config(plain.get_config())
    model.set_weights(plain.get_weights())
    ids = 4 + np.arange(2 * S).reshape(2, S) % (V - 4)
    targets, scores = model.generate(ids, max_length=T, jit_compile=False)
    _, expected = model.score(ids, targets, jit_compile=False)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    assert not model.decoder.takes_past and plain.decoder.takes_past
    for stack in (plain.encoder, plain.decoder):
        for layer in stack.layers:
            attentions = [layer.self_attention]
            if stack is plain.decoder:
                attentions.append(layer.cross_attention)
            for attention in attentions:
                kernel = attention.query_projection.kernel
                kernel.assign(2 * kernel)
    _, doubled = plain.score(ids, targets, jit_compile=False)
    np.testing.assert_allclose(doubled, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["call", "attend"])
def test_an_attention_must_decode_as_it_is_trained(name):
    Half = type(
        "Half",
        (kt.MultiHeadAttention,),
        {name: getattr(kt.MultiHeadAttention, name)},
    )

    class DecoderLayer(kt.DecoderLayer):
        attention_class = Half

    message = (
        f"overrides `{name}` must override `attend_in_step` too.*: Half, which "
        "does not.*`attend_in_step = MultiHeadAttention.attend_in_step`"
    )
    with pytest.raises(TypeError, match=message):
        DecoderLayer(N, D, F)


def test_targets_may_be_embedded_in_another_way():
    class Counting(kt.Transformer):
        def embed_targets(self, target_ids, start_position=0):
            places = ops.arange(ops.shape(target_ids)[1], dtype="int32")
            steps = ops.cast(start_position + places + target_ids, "float32")
            x = super().embed_targets(target_ids, start_position)
            return x + ops.expand_dims(steps, -1) * ops.arange(float(D))

    plain = small_model()
    model = Counting.from_config(plain.get_config())
    model.set_weights(plain.get_weights())
    ids = 4 + np.arange(2 * S).reshape(2, S) % (V - 4)
    for search in (None, kt.BeamSearch(3, length_penalty=0.0)):
        targets, scores = model.generate(
            ids, search, max_length=T, jit_compile=False
        )
        _, expected = model.score(ids, targets, jit_compile=False)
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    _, others = plain.score(ids, targets, jit_compile=False)
    assert np.all(np.abs(others - scores) > 1e-2)


def test_layers_of_a_decoder_need_not_return_attention():
    class Plain(kt.DecoderLayer):
        def call(
            self,
            inputs,
            encoded,
            padding_mask=None,
            encoded_mask=None,
            training=None,
        ):
            return super().call(
                inputs, encoded, padding_mask, encoded_mask, training=training
            )

        step = kt.DecoderLayer.step

    class Stack(kt.Decoder):
        layer_class = Plain

    x = np.random.default_rng(3).normal(size=(1, T, D))
    assert Stack(1, N, D, F)(x, x).shape == (1, T, D)


def test_what_is_trained_must_be_what_is_decoded_with():
    class Half(kt.DecoderLayer):
        def call(self, inputs, encoded, training=None):
            return super().call(inputs, encoded, training=training) / 2

    class HalfDecoder(kt.Decoder):
        layer_class = Half

    class Doubled(kt.Decoder):
        def call(self, inputs, encoded, training=None):
            return 2 * super().call(inputs, encoded, training=training)

    class Mixed:
        def call(self, inputs, encoded, training=None):
            return super().call(inputs, encoded, training=training) / 2

    class MixedLayer(Mixed, kt.DecoderLayer):
        pass

    class MixedDecoder(kt.Decoder):
        layer_class = MixedLayer

    for kind, name in (
        (HalfDecoder, "Half"),
        (MixedDecoder, "Mixed"),
        (Doubled, "Doubled"),
    ):
        message = f"override `step` too.* Received: {name}, which .*`step = "
        with pytest.raises(TypeError, match=message):
            kind(1, N, D, F)

    class Same(Half):
        step = kt.DecoderLayer.step

    HalfDecoder.layer_class = Same
    HalfDecoder(1, N, D, F)

    class Other(keras.layers.Layer):
        def __init__(self, name, dtype, **sizes):
            super().__init__(name=name, dtype=dtype)

        def call(self, inputs, encoded, training=None):
            return inputs

    HalfDecoder.layer_class = Other
    with pytest.raises(TypeError, match="method `step`, .*: Other, which "):
        HalfDecoder(1, N, D, F)


@pytest.mark.parametrize("kind", [dict, list])
def test_a_subclass_may_have_several_outputs(kind):
    class Twice(kt.Transformer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.classifier = keras.layers.Dense(2)
            self.classifier.build((None, self.hidden_dim))

        def call(self, inputs, training=None):
            logits = super().call(inputs, training=training)
            encoded = self.encode(inputs["source_ids"], training=training)
            return outputs(self.classifier(encoded[:, 0]), logits)

        def compute_mask(self, inputs, previous_mask=None):
            mask = super().compute_mask(inputs, previous_mask)
            return outputs(None, mask)

    def outputs(of_sentences, of_tokens):
        if kind is list:
            return [of_sentences, of_tokens]
        return {"sentences": of_sentences, "tokens": of_tokens}

    model = Twice(V, 1, N, D, F, dropout=0.0)
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=outputs(crossentropy, crossentropy))
    inputs, tokens = copy_task(4)
    inputs["target_ids"][0, -2:] = tokens[0, -2:] = 0
    sentences = np.array([0, 1, 0, 1])
    labels = outputs(sentences, tokens)
    real = inputs["target_ids"] != 0
    of_sentences, of_tokens = (
        -np.take_along_axis(
            ops.convert_to_numpy(ops.log_softmax(logits)), of[..., None], -1
        )[..., 0]
        for logits, of in zip(
            keras.tree.flatten(model(inputs)), (sentences, tokens), strict=True
        )
    )
    expected = of_sentences.mean() + of_tokens[real].mean()
    loss, *_ = model.evaluate(inputs, labels, verbose=0)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    before = model.classifier.get_weights()
    history = model.fit(inputs, labels, verbose=0).history
    np.testing.assert_allclose(history["loss"], [expected], rtol=1e-4)
    assert not np.array_equal(before[0], model.classifier.get_weights()[0])
    if kind is dict:  # trained on one of them
        model.compile("sgd", loss={"tokens": crossentropy})
        loss = model.evaluate(inputs, {"tokens": tokens}, verbose=0)
        assert np.isfinite(loss)
    inputs["source_ids"][0, 0] = V  # ids are checked all the same
    with pytest.raises(ValueError, match="`source_ids` must be in"):
        model.fit(inputs, labels, verbose=0)


def test_a_subclass_may_make_one_side_itself():
    class Autoencoder(kt.Transformer):
        def call(self, inputs, training=None):
            ids = inputs["source_ids"]
            both = {"source_ids": ids, "target_ids": self.decoder_inputs(ids)}
            return super().call(both, training=training)

    model = Autoencoder.from_config(small_model().get_config())
    ids = np.full((2, S), 5)
    expected = model.call(
        {"source_ids": ops.array(ids), "target_ids": model.decoder_inputs(ids)}
    )
    np.testing.assert_allclose(model({"source_ids": ids}), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"source_vocabulary_size": 5, "tie_output": False},
        {"attention_bias": True, "output_bias": True, "normalize_first": True},
        {"positional_encoding": "learned", "max_length": 9},
    ],
)
def test_weights_are_named_by_their_paths(options):
    model = kt.Transformer(
        V,
        num_layers=2,
        num_heads=N,
        hidden_dim=D,
        intermediate_dim=F,
        **options,
    )
    model.build_all()
    paths = [x.path.removeprefix(f"{model.path}/") for x in model.weights]
    assert [*named_weights(model)] == paths


class BuildsLate(kt.Transformer):
    """Adds a layer that is built when it is called first."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.adapter = keras.layers.Dense(self.hidden_dim)

    def project(self, x):
        return super().project(self.adapter(x))


def test_an_added_layer_that_builds_late_is_trained():
    config = small_model().get_config()
    model = BuildsLate.from_config(config)
    assert model.adapter.built
    config.pop("name")
    model = BuildsLate(**config)
    assert not model.adapter.built
    model.compile("sgd", kt.LabelSmoothedCrossentropy(), **COMPILE)
    ids = np.full((2, S), 5)
    kt.Checkpoint().assign(model)  # which builds the optimizer
    model.fit({"source_ids": ids, "target_ids": ids}, ids + 1, verbose=0)
    assert np.any(model.adapter.bias)


@pytest.mark.skipif(
    keras.backend.backend() == "jax",
    reason="Keras on JAX hands the optimizer's state to every step",
)
def test_own_training_step_needs_no_optimizer():
    class Own(kt.Transformer):
        def train_step(self, *arguments):
            return {"loss": keras.ops.zeros(())}

    model = Own.from_config(small_model().get_config())
    model.compile(optimizer=None, run_eagerly=True)
    ids = np.full((2, S), 5)
    inputs = {"source_ids": ids, "target_ids": ids}
    assert model.fit(inputs, ids + 1, verbose=0).history == {"loss": [0.0]}


def test_model_may_be_built_again():
    model = small_model()
    weights = model.get_weights()
    model.build(None)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    for weight, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(weight, expected)


@pytest.fixture
def zero_weights(monkeypatch):
    """Makes large models quickly, where their values do not matter."""
    zeros = keras.initializers.Zeros()
    for kind in ("GlorotUniform", "RandomNormal"):
        monkeypatch.setattr(
            getattr(keras.initializers, kind),
            "__call__",
            lambda self, shape, dtype=None: zeros(shape, dtype=dtype),
        )


def random_ids(batch_size=B, source_length=S, target_length=T):
    generator = np.random.default_rng(5)
    return {
        "source_ids": generator.integers(1, V, (batch_size, source_length)),
        "target_ids": generator.integers(1, V, (batch_size, target_length)),
    }


@pytest.mark.parametrize(
    ("preset", "vocabulary_size", "count", "millions"),
    [
        ("tiny", 9712, 2_562_048, None),
        ("base", 37_000, 63_045_632, 65),
        ("big", 37_000, 214_171_648, 213),
    ],
)
def test_presets_have_the_parameters_of_the_paper(
    zero_weights, preset, vocabulary_size, count, millions
):
    model = kt.Transformer.from_preset(
        preset,
        vocabulary_size,
        dtype="float16",  # half the memory
    )
    assert model.count_params() == count
    if millions:
        # The paper names no exact vocabulary: "about 37000 tokens".
        assert count == pytest.approx(millions * 1e6, rel=0.04)


def test_preset_arguments_can_be_overridden(zero_weights):
    model = kt.Transformer.from_preset("tiny", V, dropout=0.4, num_layers=1)
    assert (model.dropout, model.num_layers) == (0.4, 1)
    assert (model.hidden_dim, model.num_heads) == (128, 4)


@pytest.mark.parametrize(
    "row",
    [
        # All in the end, some at once.
        pytest.param(row, marks=() if row in QUICK_ROWS else pytest.mark.slow)
        for row in TABLE_3
    ],
)
def test_rows_of_table_3_can_be_made(zero_weights, row):
    overrides, millions = TABLE_3[row]
    model = kt.Transformer.from_preset(
        "base", 37_000, dtype="float16", **overrides
    )
    # Two roundings, and a vocabulary that the paper gives as "about 37000".
    assert model.count_params() == pytest.approx(millions * 1e6, abs=4.5e6)
    config = model.get_config()
    for name, value in overrides.items():
        assert config[name] == value
    # Exactly, by layer: both stacks' heads and inner vectors, and what is
    # normalised and added.
    wide, inner, keys, values, layers = (
        model.hidden_dim,
        model.intermediate_dim,
        model.num_heads * model.encoder.layers[0].self_attention.key_dim,
        model.num_heads * model.encoder.layers[0].self_attention.value_dim,
        model.num_layers,
    )
    attention = 2 * wide * (keys + values)
    feed_forward = 2 * wide * inner + inner + wide
    counts = layers * (3 * attention + 2 * feed_forward + 5 * 2 * wide)
    counts += 37_000 * wide
    if "positional_encoding" in overrides:
        counts += 2 * 1024 * wide
    assert model.count_params() == counts


def test_rows_of_table_3_run():
    for overrides in (
        {"num_heads": 1, "key_dim": 8},
        {"key_dim": 2, "value_dim": 8},
        {"positional_encoding": "learned", "max_length": S},
    ):
        model = kt.Transformer(V, **{**SIZES, **overrides})
        assert tuple(model(random_ids()).shape) == (B, T, V)


def test_one_matrix_serves_all_three_by_default():
    model = kt.Transformer(V, **SIZES)
    assert model.source_embedding is model.target_embedding
    assert model.output_projection is None
    paths = [weight.path for weight in model.weights]
    assert sum("embedding" in path for path in paths) == 1


@pytest.mark.parametrize(
    ("options", "matrices"),
    [
        ({"tie_source": False}, 2 * V),
        ({"tie_output": False}, 2 * V),
        ({"tie_source": False, "tie_output": False}, 3 * V),
        ({"source_vocabulary_size": 19}, V + 19),
        ({"source_vocabulary_size": 19, "tie_output": False}, 2 * V + 19),
        ({"source_vocabulary_size": V}, 2 * V),
        ({"source_vocabulary_size": V, "tie_source": True}, V),
    ],
)
def test_weights_are_shared_only_where_asked(options, matrices):
    tied = kt.Transformer(V, **SIZES)
    model = kt.Transformer(V, **SIZES, **options)
    added = model.count_params() - tied.count_params()
    assert added == (matrices - V) * D


def test_each_side_has_its_own_vocabulary(untraced):
    model = kt.Transformer(V, source_vocabulary_size=V + 6, **SIZES)
    ids = random_ids()
    ids["source_ids"][0, 0] = V + 5
    assert tuple(model(ids).shape) == (B, T, V)
    target_ids, _ = model.generate(ids["source_ids"], max_length=T)
    assert target_ids.max() < V


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_layout_of_sinusoids_reaches_both_sides(layout):
    model = kt.Transformer(V, positional_encoding=layout, **SIZES)
    assert model.source_positions.layout == layout
    assert model.target_positions.layout == layout


def test_embedded_tokens_are_dropped_on_both_sides(monkeypatch):
    model = kt.Transformer(V, **SIZES, dropout=0.5)
    for stack in (model.encoder, model.decoder):
        for sublayer in vars(stack.layers[0]).values():
            if isinstance(sublayer, AddNorm):
                sublayer.sublayer_dropout.rate = 0.0
    ids = random_ids()
    encoded = model.encode(ids["source_ids"])
    dropped = model.encode(ids["source_ids"], training=True)
    assert np.abs(keras.ops.subtract(dropped, encoded)).max() > 0.1
    monkeypatch.setattr(model, "encode", lambda ids, training=None: encoded)
    logits, dropped = model(ids), model(ids, training=True)
    assert np.abs(keras.ops.subtract(dropped, logits)).max() > 0.1


@pytest.mark.parametrize(
    "part",
    [
        "decoder",
        ".*query.*",
        pytest.param(".*/feed_forward/.*", marks=pytest.mark.slow),
        pytest.param(".*norm.*", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("policy", "of_part"),
    [("float32", "mixed_bfloat16"), ("mixed_bfloat16", "float32")],
)
def test_parts_may_have_other_dtypes(part, policy, of_part):
    policies = keras.dtype_policies.DTypePolicyMap(default_policy=policy)
    pattern = f"transformer/{part}"
    policies[pattern] = keras.dtype_policies.get(of_part)
    arguments = {"vocabulary_size": V, **SIZES, "name": "transformer"}
    mixed = kt.Transformer(**arguments, dtype=policies)
    plain = kt.Transformer(**arguments)
    found = {
        layer.path: layer.compute_dtype
        for layer in mixed._flatten_layers(include_self=False)
        if layer.path  # what computes nothing is not built
    }
    for path, dtype in found.items():
        name = of_part if re.fullmatch(pattern, path) else policy
        assert dtype == keras.dtype_policies.get(name).compute_dtype, path
    assert len(set(found.values())) == 2
    again = kt.Transformer.from_config(mixed.get_config())
    for layer in again._flatten_layers(include_self=False):
        assert not layer.path or found[layer.path] == layer.compute_dtype
    plain.set_weights(mixed.get_weights())
    ids = random_ids()
    expected = ops.convert_to_numpy(plain(ids))
    logits = ops.convert_to_numpy(ops.cast(mixed(ids), "float32"))
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    assert 0 < error < 0.05
    target_ids, scores = mixed.generate(ids["source_ids"], max_length=T)
    token_scores, _ = mixed.score(ids["source_ids"], target_ids)
    np.testing.assert_allclose(scores, token_scores.sum(axis=1), rtol=0.05)


def test_dtypes_of_parts_come_back_without_a_default():
    policies = keras.dtype_policies.DTypePolicyMap()
    policies[".*decoder.*"] = keras.dtype_policies.get("mixed_bfloat16")
    model = kt.Transformer(V, **SIZES, dtype=policies)
    again = kt.Transformer.from_config(model.get_config())
    for made in (model, again):
        assert made.encoder.layers[0].compute_dtype == "float32"
        assert made.decoder.layers[0].compute_dtype == "bfloat16"


@pytest.mark.parametrize(("source", "target"), [(0, T), (S, 0), (0, 0)])
def test_sides_may_be_of_no_tokens(source, target):
    inputs = {
        "source_ids": np.ones((2, source), "int32"),
        "target_ids": np.ones((2, target), "int32"),
    }
    logits = keras.ops.convert_to_numpy(small_model()(inputs))
    assert logits.shape == (2, target, V)
    assert np.isfinite(logits).all()


def test_one_token_on_each_side_is_enough():
    model = kt.Transformer(V, **SIZES)
    assert tuple(model(random_ids(1, 1, 1)).shape) == (1, 1, V)


def test_ids_of_any_dtype_give_the_same_logits():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = kt.Transformer(400, **SIZES)  # bfloat16 has no 301
    ids = {name: ids + 289 for name, ids in random_ids().items()}
    expected = keras.ops.convert_to_numpy(model(ids))
    for dtype in ("int32", "uint16"):
        same = {name: array.astype(dtype) for name, array in ids.items()}
        np.testing.assert_array_equal(model(same), expected)


def test_shape_of_the_logits_can_be_asked():
    model = small_model()
    shapes = {"source_ids": (B, S), "target_ids": (B, T)}
    ids = {name: ops.ones(shape, "int32") for name, shape in shapes.items()}
    assert model.compute_output_shape(shapes) == model(ids).shape == (B, T, V)


def test_model_is_built_when_made():
    model = kt.Transformer(V, **SIZES)
    lines = []
    model.summary(print_fn=lines.append)
    summary = "\n".join(lines)
    for name in (
        "token_embedding",
        "source_positions",
        "target_positions",
        "encoder",
        "decoder",
    ):
        assert name in summary
    assert f"{model.count_params():,}" in summary


def test_weights_alone_round_trip(tmp_path):
    model, other = (kt.Transformer(**MODEL) for _ in range(2))
    expected = keras.ops.convert_to_numpy(model(random_ids()))
    assert np.abs(other(random_ids()) - expected).max() > 0.1
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(other(random_ids()), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [{"vocabulary_size": V, **SIZES}, MODEL],
    ids=["tied", "untied"],
)
def test_keras_file_translates_as_before(untraced, tmp_path, arguments):
    model = kt.Transformer(**arguments)
    source_ids = random_ids()["source_ids"]
    target_ids, scores = model.generate(source_ids, max_length=T)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.get_config() == model.get_config()
    assert again.count_params() == model.count_params()
    same_ids, same_scores = again.generate(source_ids, max_length=T)
    np.testing.assert_array_equal(same_ids, target_ids)
    np.testing.assert_allclose(same_scores, scores, rtol=1e-5)


def test_generating_adds_no_weights():
    model = kt.Transformer(V, **SIZES)
    weights, layers = len(model.weights), len(model.layers)
    model.generate(random_ids()["source_ids"], max_length=2)
    assert (len(model.weights), len(model.layers)) == (weights, layers)


class AddsLayer(kt.Transformer):
    """One whose layer a call builds."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.more = keras.layers.Dense(self.vocabulary_size, use_bias=False)

    def project(self, x):
        return super().project(x) + self.more(x)


def test_generating_first_builds_the_layers_of_a_subclass():
    model = AddsLayer(V, **SIZES)
    ids = random_ids()
    found = [model.generate(ids["source_ids"], max_length=4) for _ in range(2)]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert np.isfinite(ops.convert_to_numpy(model(ids))).all()


class ReadsMore(kt.Transformer):
    """One whose layer a call builds, from an input that searches have not."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.of_domain = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return super().call(inputs, training) + self.of_domain(inputs["domain"])


def test_layers_of_further_inputs_are_not_needed_to_generate():
    model = ReadsMore(V, **SIZES)
    found, _ = model.generate(random_ids()["source_ids"], max_length=4)
    assert found.shape == (B, 4)
    assert not model.of_domain.built


class MayReadMore(ReadsMore):
    def call(self, inputs, training=None):
        if "domain" in inputs:
            return super().call(inputs, training)
        return kt.Transformer.call(self, inputs, training)


def test_what_loading_would_not_build_is_told():
    model = MayReadMore(V, **SIZES)
    ids = random_ids()
    model({**ids, "domain": np.ones((B, 1, 1), "float32")})
    message = r"built by a call .* Received: \['dense.*'\], which the call "
    with pytest.raises(ValueError, match=message):
        MayReadMore.from_config(model.get_config())
    model.set_weights(model.get_weights())  # as Keras's callbacks do


class Noise(keras.layers.Layer):
    def call(self, x):
        return x + keras.random.normal(ops.shape(x))


class Noisy(kt.Transformer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.noise = Noise()

    def encode(self, source_ids, training=None):
        x = super().encode(source_ids, training=training)
        return self.noise(x) if training else x


def test_layers_without_weights_need_not_be_built():
    model = Noisy.from_config(Noisy(V, **SIZES).get_config())
    assert not model.noise.built


def test_weights_of_layers_that_build_late_are_loaded(tmp_path):
    config = {**small_model().get_config(), "name": "late"}
    model = BuildsLate.from_config(config)
    model.adapter.set_weights([np.eye(D), np.ones(D)])
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    for give in (
        lambda new: new.load_weights(path),
        lambda new: new.set_weights(model.get_weights()),
    ):
        new = BuildsLate(**config)
        assert not new.adapter.built
        give(new)
        np.testing.assert_array_equal(new.adapter.bias, np.ones(D))


def test_model_can_be_cloned():
    model = kt.Transformer(**MODEL)
    clone = keras.models.clone_model(model)
    assert clone.get_config() == model.get_config()
    ids = np.array([[4, 5, 6], [7, 8, 0]])
    inputs = {"source_ids": ids, "target_ids": ids}
    expected = ops.convert_to_numpy(model(inputs))
    for weight in clone.weights:  # its own
        weight.assign(np.zeros(weight.shape))
    np.testing.assert_array_equal(model(inputs), expected)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone(inputs), expected, rtol=1e-5, atol=1e-6)


def test_methods_have_the_signatures_of_keras():
    for name in ("fit", "evaluate", "predict"):
        ours, theirs = (
            inspect.signature(getattr(kind, name))
            for kind in (kt.Transformer, keras.Model)
        )
        assert ours == theirs

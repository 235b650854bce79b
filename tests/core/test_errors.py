"""Every wrong call fails early, with the fix in its message."""

import contextlib
import functools
import os
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.add_norm import AddNorm
from keras_transformer.input_checks import check_not_of_rows
from keras_transformer.layer_norm import LayerNormalization
from keras_transformer.system.paths import check_file

from .compiled import AT_ONCE
from .compiled import of_any_size
from .compiled import traced
from .layers import B
from .layers import D
from .layers import F
from .layers import N
from .layers import S
from .layers import T
from .layers import V

LAYER = {"num_heads": N, "hidden_dim": D, "intermediate_dim": F}
STACK = {**LAYER, "num_layers": 1}
IDS = {
    "source_ids": np.full((B, S), 4, "int32"),
    "target_ids": np.full((B, T), 5, "int32"),
}
LABELS = np.full((B, T), 6, "int32")

# Constructors and the arguments they need.
LAYERS = {
    kt.MultiHeadAttention: {"num_heads": N, "hidden_dim": D},
    kt.FeedForward: {"hidden_dim": D, "intermediate_dim": F},
    kt.EncoderLayer: LAYER,
    kt.DecoderLayer: LAYER,
    kt.Encoder: STACK,
    kt.Decoder: STACK,
    kt.TokenEmbedding: {"vocabulary_size": V, "hidden_dim": D},
    kt.LearnedPositionalEncoding: {"max_length": S, "hidden_dim": D},
    kt.Transformer: {**STACK, "vocabulary_size": V},
}
SIZES = [(layer, name) for layer, sizes in LAYERS.items() for name in sizes]
HEADED = [layer for layer, sizes in LAYERS.items() if "num_heads" in sizes]
DROPPING = [
    (layer, name)
    for layer in (kt.FeedForward, *HEADED)
    for name in ("dropout", "attention_dropout", "feed_forward_dropout")
    if name in layer.__init__.__annotations__
]
FLAGS = [
    (layer, name)
    for layer in LAYERS
    for name, kind in layer.__init__.__annotations__.items()
    if kind in (bool, bool | None)
]


def name_of(value):
    return getattr(value, "__name__", str(value))


def make_model(**options):
    return kt.Transformer(V, **STACK, **options)


def zeros(*shape):
    return np.zeros(shape, "float32")


def raises(kind, message):
    return pytest.raises(kind, match=re.escape(message))


# Arguments of the layers.


@pytest.mark.parametrize(("layer", "name"), SIZES, ids=name_of)
def test_sizes_must_be_positive(layer, name):
    with raises(ValueError, f"`{name}` must be at least 1. Received: {name}=0"):
        layer(**{**LAYERS[layer], name: 0})


@pytest.mark.parametrize(("layer", "name"), SIZES, ids=name_of)
def test_sizes_must_be_integers(layer, name):
    for value in (2.5, "8", True, None):
        message = f"`{name}` must be an integer. Received: {name}={value!r} of "
        with raises(TypeError, f"{message}type {type(value).__name__}."):
            layer(**{**LAYERS[layer], name: value})


@pytest.mark.parametrize("layer", HEADED, ids=name_of)
@pytest.mark.parametrize("name", ["key_dim", "value_dim"])
def test_sizes_of_heads_must_be_positive(layer, name):
    with raises(ValueError, f"`{name}` must be at least 1. Received: {name}=0"):
        layer(**LAYERS[layer], **{name: 0})


@pytest.mark.parametrize("layer", HEADED, ids=name_of)
def test_heads_must_divide_the_width(layer):
    message = (
        "`hidden_dim` must be a multiple of `num_heads`. Received: "
        "hidden_dim=34, num_heads=3. In Python, pass `key_dim` for heads of "
    )
    with raises(ValueError, message):
        layer(**{**LAYERS[layer], "hidden_dim": 34})
    layer(**{**LAYERS[layer], "hidden_dim": 34}, key_dim=7)


@pytest.mark.parametrize(("layer", "name"), FLAGS, ids=name_of)
def test_flags_must_be_bools(layer, name):
    for value in ("no", 1, 0.0):
        message = f"`{name}` must be True or False. Received: {name}={value!r} "
        with raises(TypeError, message):
            layer(**LAYERS[layer], **{name: value})


@pytest.mark.parametrize(
    ("layer", "arguments", "name"),
    [
        (kt.MultiHeadAttention, 2, "use_causal_mask"),
        (kt.MultiHeadAttention, 2, "return_attention_scores"),
        (kt.EncoderLayer, 1, "use_causal_mask"),
        (kt.EncoderLayer, 1, "return_attention_scores"),
        (kt.Encoder, 1, "use_causal_mask"),
        (kt.Encoder, 1, "return_attention_scores"),
        (kt.DecoderLayer, 2, "return_attention_scores"),
        (kt.Decoder, 2, "return_attention_scores"),
        (kt.TokenEmbedding, 1, "reverse"),
    ],
    ids=name_of,
)
def test_flags_of_calls_must_be_bools(layer, arguments, name):
    layer = layer(**LAYERS[layer])
    with raises(
        TypeError, f"`{name}` must be True or False. Received: {name}="
    ):
        layer(*[zeros(B, T, D)] * arguments, **{name: "no"})


@pytest.mark.parametrize(
    "layer",
    [kt.FeedForward, kt.EncoderLayer, kt.Encoder, kt.DecoderLayer, kt.Decoder],
    ids=name_of,
)
def test_the_width_is_checked_once_a_layer_is_built_too(layer):
    arguments = 1 + (layer in (kt.DecoderLayer, kt.Decoder))
    layer = layer(**LAYERS[layer])
    layer(*[zeros(B, T, D)] * arguments)
    message = "`inputs` must be `hidden_dim` wide. Received: inputs.shape="
    with raises(ValueError, message):
        layer(zeros(B, T, D + 1), *[zeros(B, T, D)] * (arguments - 1))


@pytest.mark.parametrize("layer", [kt.DecoderLayer, kt.Decoder], ids=name_of)
def test_a_decoder_without_a_source_names_what_there_is(layer):
    with raises(ValueError, "is an `Encoder` with use_causal_mask=True."):
        layer(**LAYERS[layer])(zeros(B, T, D))


@pytest.mark.parametrize(("layer", "name"), DROPPING, ids=name_of)
def test_shares_must_be_in_range(layer, name):
    for value in (-0.1, 1, 1.0, 30, float("nan")):
        message = f"`{name}` must be in [0, 1). Received: {name}={value}."
        with raises(ValueError, message):
            layer(**LAYERS[layer], **{name: value})


@pytest.mark.parametrize(("layer", "name"), DROPPING, ids=name_of)
def test_shares_must_be_numbers(layer, name):
    for value in ("0.1", None, True):
        message = f"`{name}` must be a number. Received: {name}={value!r} of "
        with raises(TypeError, f"{message}type {type(value).__name__}."):
            layer(**LAYERS[layer], **{name: value})


def test_layout_must_be_known():
    message = (
        "`layout` must be one of 'interleaved', 'concatenated'. Received: "
        "layout='learned'."
    )
    with raises(ValueError, message):
        kt.SinusoidalPositionalEncoding("learned")


# Inputs of the layers.


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (kt.FeedForward, [zeros(B, T, 7)]),
        (kt.EncoderLayer, [zeros(B, S, 7)]),
        (kt.DecoderLayer, [zeros(B, T, 7), zeros(B, S, D)]),
        (kt.Encoder, [zeros(B, S, 7)]),
        (kt.Decoder, [zeros(B, T, 7), zeros(B, S, D)]),
        (kt.LearnedPositionalEncoding, [zeros(B, T, 7)]),
    ],
    ids=name_of,
)
def test_inputs_must_have_the_width_of_the_layer(layer, inputs):
    message = r"`inputs` must be `hidden_dim` wide. Received: inputs.shape=\("
    with pytest.raises(ValueError, match=message + ".* 7.*, hidden_dim=33"):
        layer(**LAYERS[layer])(*inputs)


def test_one_unit_does_not_become_the_width_of_a_built_layer():
    positions = kt.LearnedPositionalEncoding(max_length=S, hidden_dim=D)
    for layer in (positions, LayerNormalization()):
        layer(zeros(B, S, D))
        with raises(ValueError, "expected axis -1 of input shape to have valu"):
            layer(zeros(B, S, 1))
    message = f"`sublayer_output` must have shape {(B, S, D)}. Received: sub"
    with raises(ValueError, message):
        AddNorm(0.0, True)(zeros(B, S, D), zeros(B, S, 1))


def test_vectors_must_have_the_width_of_the_embedding():
    message = (
        "`inputs` must be `hidden_dim` wide. Received: inputs.shape=(2, 5, 7), "
        "hidden_dim=33."
    )
    with raises(ValueError, message):
        kt.TokenEmbedding(V, D)(zeros(B, T, 7), reverse=True)


@pytest.mark.parametrize("start_position", [0, 4])
def test_inputs_must_fit_the_learned_positions(start_position):
    layer = kt.LearnedPositionalEncoding(max_length=S, hidden_dim=D)
    message = (
        "The last position of `inputs` must be less than `max_length`. "
        f"Received: start_position={start_position}, "
        f"length={8 - start_position}, max_length=7."
    )
    with raises(ValueError, message):
        layer(zeros(B, 8 - start_position, D), start_position=start_position)


def test_learned_positions_begin_at_0():
    layer = kt.LearnedPositionalEncoding(max_length=S, hidden_dim=D)
    with raises(ValueError, "`start_position` must not be negative. Received"):
        layer(zeros(B, 1, D), start_position=-1)


def test_graphs_of_any_length_keep_to_the_learned_positions():
    layer = kt.LearnedPositionalEncoding(max_length=S, hidden_dim=D)
    layer(zeros(B, S, D))
    traced = of_any_size(layer, 3, "float32")
    assert tuple(traced(zeros(B, S, D)).shape) == (B, S, D)
    # JAX knows every length, and the layer's own check sees it.
    with pytest.raises(Exception, match="max_length=7|not in .0, 7"):
        traced(zeros(B, S + 1, D))


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (kt.EncoderLayer, "padding_mask"),
        (kt.EncoderLayer, "attention_mask"),
        (kt.Encoder, "padding_mask"),
        (kt.Encoder, "attention_mask"),
        (kt.DecoderLayer, "padding_mask"),
        (kt.DecoderLayer, "encoded_mask"),
        (kt.Decoder, "padding_mask"),
        (kt.Decoder, "encoded_mask"),
        (kt.MultiHeadAttention, "value_mask"),
        (kt.MultiHeadAttention, "key_mask"),
        (kt.MultiHeadAttention, "attention_mask"),
    ],
    ids=name_of,
)
def test_masks_must_have_their_axes(layer, name):
    others = {
        kt.DecoderLayer: ["encoded"],
        kt.Decoder: ["encoded"],
        kt.MultiHeadAttention: ["value"],
    }
    arguments = {other: zeros(B, S, D) for other in others.get(layer, [])}
    arguments[name] = np.ones((B, 1, T, S), bool)
    expected = "(B, T, S) or (T, S)" if name == "attention_mask" else "(B, S)"
    message = (
        f"`{name}` must have shape {expected}. Received: "
        f"{name}.shape=(2, 1, 5, 7)."
    )
    with raises(ValueError, message):
        layer(**LAYERS[layer])(zeros(B, T, D), **arguments)


@pytest.mark.parametrize("layer", [kt.DecoderLayer, kt.Decoder], ids=name_of)
def test_a_decoder_needs_what_was_encoded(layer):
    message = "`encoded` must be the encoder output, a float tensor of shape "
    decode = layer(**LAYERS[layer])
    for _ in range(2):  # before and after it is built
        with raises(ValueError, message):
            decode(zeros(B, T, D), None)
        decode(zeros(B, T, D), zeros(B, S, D))


# The model.


def test_preset_must_be_known():
    message = "`preset` must be one of 'tiny', 'base', 'big'. Received: preset="
    with raises(ValueError, f"{message}'huge'."):
        kt.Transformer.from_preset("huge", V)


def test_positions_must_be_known():
    message = (
        "`positional_encoding` must be one of 'interleaved', 'concatenated', "
        "'learned'. Received: positional_encoding='rotary'."
    )
    with raises(ValueError, message):
        make_model(positional_encoding="rotary")


def test_learned_positions_need_a_length():
    message = (
        "`max_length` must be given for learned positions. Received: "
        "positional_encoding='learned', max_length=None."
    )
    with raises(ValueError, message):
        make_model(positional_encoding="learned")


@pytest.mark.parametrize("layout", ["interleaved", "learned"])
def test_length_of_the_model_must_be_positive(layout):
    with raises(ValueError, "`max_length` must be at least 1. Received: max_"):
        make_model(positional_encoding=layout, max_length=0)


@pytest.mark.parametrize("length", [S - 1, S + 1, None])
def test_limit_of_learned_positions_cannot_be_changed(length):
    model = make_model(positional_encoding="learned", max_length=S)
    message = (
        "`max_length` must be the number of learned positions. Received: "
        f"max_length={length} for 7 positions. Make a new model"
    )
    with raises(ValueError, message):
        model.max_length = length
    model.max_length = S
    assert model.get_config()["max_length"] == S


def test_changed_limit_must_be_positive():
    model = make_model(max_length=S)
    with raises(ValueError, "`max_length` must be at least 1. Received: max_"):
        model.max_length = 0
    with raises(TypeError, "`max_length` must be an integer. Received: max_le"):
        model.max_length = 8.0
    assert model.max_length == S
    model.max_length = None
    assert model.get_config()["max_length"] is None


def test_one_embedding_cannot_serve_two_vocabularies():
    message = (
        "`tie_source` must be False where source and target have vocabularies "
        "of their own. Received: tie_source=True, vocabulary_size=13, "
        "source_vocabulary_size=17."
    )
    with raises(ValueError, message):
        make_model(source_vocabulary_size=17, tie_source=True)


def test_source_vocabulary_must_be_positive():
    with raises(ValueError, "`source_vocabulary_size` must be at least 1."):
        make_model(source_vocabulary_size=0)


@pytest.mark.parametrize("name", ["start_token_id", "end_token_id"])
def test_special_tokens_must_be_in_the_vocabulary(name):
    with raises(ValueError, f"`{name}` must be less than `vocabulary_size`."):
        make_model(**{name: V})
    with raises(ValueError, f"`{name}` must be at least 1. Received: {name}=0"):
        make_model(**{name: 0})
    with raises(TypeError, f"`{name}` must be an integer."):
        make_model(**{name: "</s>"})


def test_sources_need_no_special_tokens_of_targets(untraced):
    """Vocabularies of one's own may have them last, and be of two sizes."""
    special = {"start_token_id": V - 2, "end_token_id": V - 1}
    model = make_model(source_vocabulary_size=5, **special)
    target_ids, scores = model.generate([[3, 4], [4, 0]], max_length=3)
    expected, _ = model.score([[3, 4], [4, 0]], target_ids)
    np.testing.assert_allclose(scores, expected.sum(axis=1), rtol=1e-4)


def test_start_and_end_must_differ():
    message = (
        "`start_token_id` and `end_token_id` must differ. Received: "
        "start_token_id=4, end_token_id=4."
    )
    with raises(ValueError, message):
        make_model(start_token_id=4, end_token_id=4)


# Ids given to `fit` and `generate`.

WRONG_IDS = [
    (
        [[4, 13]],
        ValueError,
        "{name}` must be in [0, 13), the ids of the vocabulary. Received: "
        "{name} with id 13. Were the ids made with another tokenizer?",
    ),
    ([[4, -1]], ValueError, "Received: {name} with id -1."),
    ([[4.0]], TypeError, "`{name}` must hold integers. Received: {name}.dtype"),
    ([["a"]], TypeError, "`{name}` must hold integers. Received: {name}.dtype"),
    (
        [[True]],
        TypeError,
        "`{name}` must hold integers. Received: {name}.dtype",
    ),
    (
        [4, 5],
        ValueError,
        "`{name}` must have shape (B, T), shorter rows padded with 0. "
        "Received: {name}.shape=(2,).",
    ),
    ([[[4]]], ValueError, "Received: {name}.shape=(1, 1, 1)."),
    ([[4, 5], [6]], ValueError, "Received: {name} with rows of several leng"),
    ([[4, 5], None], ValueError, "Received: {name}.shape=(2,)."),
    ([], ValueError, "Received: {name}.shape=(0,)."),
]

each_wrong_ids = pytest.mark.parametrize(
    ("ids", "kind", "message"),
    WRONG_IDS,
    ids=[str(ids) for ids, _, _ in WRONG_IDS],
)


@each_wrong_ids
def test_generate_checks_ids(ids, kind, message):
    with raises(kind, message.format(name="source_ids")):
        make_model().generate(ids)


def test_generate_checks_ids_against_the_source_vocabulary():
    model = make_model(source_vocabulary_size=V + 4)
    with raises(ValueError, "`source_ids` must be in [0, 17)"):
        model.generate([[17]])


@pytest.mark.parametrize("name", ["source_ids", "target_ids"])
@pytest.mark.parametrize("token_id", [-1, V])
def test_fit_checks_ids_of_arrays(name, token_id):
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy())
    wrong = {**IDS, name: IDS[name].copy()}
    wrong[name][-1, -1] = token_id
    message = f"`{name}` must be in [0, 13), the ids of the vocabulary. Rec"
    with raises(ValueError, message):
        model.fit(wrong, LABELS)


@pytest.mark.parametrize("shape", [(B, T + 1), (B + 1, T)])
def test_fit_compares_labels_with_targets(shape):
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy())
    labels = np.full(shape, 6, "int32")
    message = (
        "`y` must have an id for each of 'target_ids'. Received: "
        f"y.shape={shape}, target_ids.shape={(B, T)}."
    )
    with raises(ValueError, message):
        model.fit(IDS, labels)
    with raises(ValueError, message):
        model.fit(IDS, LABELS, validation_data=(IDS, labels))


@pytest.mark.parametrize("shape", [(B, T + 1), (B + 1,), (B, T, 1)])
def test_fit_compares_weights_with_labels(shape):
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy())
    weights = np.ones(shape)
    message = f"`sample_weight` must have shape {(B, T)}. Received: sample_wei"
    for call in (model.fit, model.evaluate):
        with raises(ValueError, message):
            call(IDS, LABELS, sample_weight=weights)
    with raises(ValueError, message):
        model.fit(IDS, LABELS, validation_data=(IDS, LABELS, weights))


def test_training_needs_labels():
    model = make_model()
    model.compile("sgd", kt.LabelSmoothedCrossentropy(), **AT_ONCE)
    model.fit(IDS, LABELS, verbose=0)
    for call in (model.fit, model.evaluate, model.train_on_batch):
        with raises(ValueError, "`y` must be the labels `(B, T)`, the targets"):
            call(IDS)
    # An error in a step would have lost the weights on JAX.
    assert np.isfinite(model.get_weights()[0]).all()


@pytest.mark.parametrize(
    "search",
    [kt.GreedySearch(), kt.BeamSearch(2), kt.Sampling(seed=1)],
    ids=["greedy", "beam", "sampling"],
)
@pytest.mark.parametrize("return_scores", [True, False])
def test_a_search_needs_numbers(untraced, search, return_scores):
    model = make_model()
    ids = np.array([[0, 0], [4, 3]])
    options = {
        "search": search,
        "return_scores": return_scores,
        "max_length": 3,
    }
    expected = model.generate(ids, **options)
    bias = model.encoder.layers[0].feed_forward.inner.bias
    bias.assign(np.full(bias.shape, np.nan))
    with raises(ValueError, "must be numbers. Received: NaN for row 1"):
        model.generate(ids, **options)
    assert model.generate(ids[:1], **options)[0].shape == (1, 0)
    bias.assign(np.zeros(bias.shape))
    for wanted, found in zip(
        expected, model.generate(ids, **options), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "search",
    [
        kt.GreedySearch(),
        kt.GreedySearch(forbidden_token_ids=[1]),
        kt.Sampling(seed=1),
    ],
    ids=["greedy", "constrained", "sample"],
)
@pytest.mark.parametrize("return_scores", [True, False])
def test_a_search_needs_numbers_after_its_first_token(
    untraced, search, return_scores
):
    model = make_model(
        source_vocabulary_size=V, tie_output=False, output_bias=True
    )
    vectors = model.target_embedding.embeddings
    vectors.assign(np.where(np.arange(V)[:, None] == 5, np.nan, vectors))
    options = {
        "search": search,
        "return_scores": return_scores,
        "max_length": 4,
    }
    ids = np.array([[0, 0], [4, 3]])
    prefix = np.array([[0, 0], [6, 5]])
    message = "must be numbers. Received: NaN for row 1"
    with raises(ValueError, message):
        model.generate(ids, target_prefix_ids=prefix, **options)
    model.logit_bias.assign(np.where(np.arange(V) == 5, 1e4, 0.0))
    with raises(ValueError, message):
        model.generate(ids, **options)
    # Nothing is computed after the last token.
    options["max_length"] = 1
    assert model.generate(ids, **options)[0].tolist() == [[0], [5]]


@pytest.mark.parametrize("make", [kt.GreedySearch, kt.BeamSearch])
def test_constraints_that_leave_no_token_are_no_error(untraced, make):
    search = make(forbidden_token_ids=range(V))
    target_ids, scores = make_model().generate([[4, 3]], search)
    assert target_ids.shape == (1, 0)
    assert scores == [-np.inf]


def test_numbers_are_looked_for_in_all_rows_without_tokens(untraced):
    """A target without tokens may have a reason in one row, NaN in another."""
    model = make_model(source_vocabulary_size=V)
    vectors = model.source_embedding.embeddings
    vectors.assign(np.where(np.arange(V)[:, None] == 5, np.nan, vectors))
    search = kt.GreedySearch(forbidden_token_ids=range(V))
    assert model.generate([[4, 3]], search)[1] == [-np.inf]
    with raises(ValueError, "must be numbers. Received: NaN for row 1"):
        model.generate([[4, 3], [5, 3]], search)


def test_numbers_too_large_for_float16_are_found(untraced):
    model = make_model(dtype="float16")
    ids = np.array([[4, 3]])
    assert model.generate(ids, max_length=2)[0].size
    kernel = model.encoder.layers[0].feed_forward.inner.kernel
    kernel.assign(6e4 * np.sign(ops.convert_to_numpy(kernel)))
    with raises(ValueError, "too large for its dtype, float16"):
        model.generate(ids, max_length=2)


def test_labels_follow_the_targets():
    model = make_model()
    model.compile("sgd", kt.LabelSmoothedCrossentropy(), **AT_ONCE)
    with pytest.warns(
        UserWarning, match="`y` should be the ids that follow"
    ) as warned:
        model.fit(IDS, IDS["target_ids"], verbose=0)
    assert warned[0].filename == __file__
    with pytest.raises(ValueError, match="Drop the last token of 'target_ids'"):
        model.fit(IDS, LABELS[:, 1:])


@pytest.mark.parametrize(
    ("loss", "is_warned"),
    [
        ("sparse_categorical_crossentropy", True),
        (keras.losses.sparse_categorical_crossentropy, True),
        (keras.losses.SparseCategoricalCrossentropy(), True),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), False),
        (lambda y, logits: keras.ops.mean(logits, axis=-1), False),
    ],
)
def test_losses_of_probabilities_are_a_warning(loss, is_warned):
    model = make_model()
    model.compile("sgd", loss, **AT_ONCE)
    warns = contextlib.nullcontext()
    if is_warned:
        warns = pytest.warns(UserWarning, match="`loss` should be of logits")
    with warns:
        model.fit(IDS, LABELS, verbose=0)


def loss_of_rows(labels, logits):
    loss = keras.losses.sparse_categorical_crossentropy
    return ops.mean(loss(labels, logits, from_logits=True), axis=-1)


class LossOfRows(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return loss_of_rows(y_true, y_pred)


class LossThatKeeps(keras.losses.Loss):
    """Keeps a tensor of its first call."""

    kept = None

    def call(self, y_true, y_pred):
        if self.kept is None:
            self.kept = ops.ones((), y_pred.dtype) * 2
        return self.kept * ops.mean(loss_of_rows(y_true, y_pred))


@pytest.mark.parametrize(
    "loss",
    [loss_of_rows, LossOfRows(), functools.partial(loss_of_rows)],
    ids=["function", "class", "partial"],
)
def test_a_loss_of_rows_is_refused(loss):
    """Keras would multiply it by the weights of tokens, along a wrong axis."""
    model = make_model()
    model.compile("sgd", loss, **AT_ONCE)
    with raises(
        ValueError, "`loss` must give a number for each token, `(B, T)`"
    ):
        model.fit(IDS, LABELS, verbose=0)

    class OfRows(kt.Transformer):
        def compute_loss(self, x, y, y_pred, *args, **kwargs):
            return ops.mean(loss_of_rows(y, y_pred))

    model = OfRows(V, **STACK)
    model.compile("sgd", loss, **AT_ONCE)
    model.fit(IDS, LABELS, verbose=0)
    expected = ops.mean(loss_of_rows(LABELS, model(IDS)))
    found = model.evaluate(IDS, LABELS, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_loss_that_keeps_something_keeps_nothing_of_the_check():
    loss = LossThatKeeps()
    check_not_of_rows(loss, V)
    assert loss.kept is None
    assert float(loss(LABELS, make_model()(IDS))) > 0
    assert float(loss.kept) == 2


def test_an_error_of_a_loss_is_not_hidden_by_the_check():
    def loss(labels, logits):
        raise ArithmeticError("of the user")

    model = make_model()
    model.compile("sgd", loss)
    with pytest.raises(ArithmeticError, match="of the user"):
        model.fit(IDS, LABELS, verbose=0)


@pytest.mark.parametrize("size", [None, (B, T, V)])
def test_a_loss_may_be_of_the_batch_or_want_more_than_a_rank(size):
    def loss(labels, logits):
        if size is not None:  # which raises for another batch
            logits = ops.reshape(logits, size)
        return ops.mean(loss_of_rows(labels, logits))

    model = make_model()
    model.compile("sgd", loss, **AT_ONCE)
    model.fit(IDS, LABELS, B, verbose=0)
    found = model.evaluate(IDS, LABELS, B, verbose=0)
    np.testing.assert_allclose(found, loss(LABELS, model(IDS)), rtol=1e-4)


def test_fit_refuses_weights_of_classes():
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy())
    with raises(ValueError, "Received: class_weight of type dict. Weigh"):
        model.fit(IDS, LABELS, class_weight={4: 2.0})
    with raises(ValueError, "`class_weight` must be `None`: a row has"):
        model.fit(IDS, LABELS, 2, 1, 0, None, 0.0, None, True, {4: 2.0})


def test_training_on_a_batch_refuses_weights_of_classes():
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy(), **AT_ONCE)
    with raises(ValueError, "`class_weight` must be `None`: a row has"):
        model.train_on_batch(IDS, LABELS, class_weight={4: 2.0})
    loss = model.train_on_batch(IDS, LABELS, np.ones(B), return_dict=True)
    assert loss["loss"] > 0


def test_a_fork_says_that_tensorflow_does_not_compute(monkeypatch):
    model = make_model()
    model.compile("sgd", kt.LabelSmoothedCrossentropy(), **AT_ONCE)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    if keras.backend.backend() != "tensorflow":
        make_model()
        return
    for call in (
        make_model,
        lambda: model.generate([[4, 3]]),
        lambda: model.fit(IDS, LABELS),
        lambda: model.train_on_batch(IDS, LABELS),
        lambda: model.evaluate(IDS, LABELS),
        lambda: model.predict(IDS),
    ):
        with raises(RuntimeError, "does not compute in a process that was"):
            call()


@pytest.mark.parametrize("name", ["source_ids", "target_ids"])
def test_fit_evaluate_and_predict_refuse_padding_in_front(name):
    """As `keras.utils.pad_sequences` pads by default."""
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy(), **AT_ONCE)
    ids = {**IDS, name: IDS[name].copy()}
    ids[name][1, 0] = 0
    message = f"`{name}` must have padding, id 0, only after the tokens of a"
    for call in (model.fit, model.evaluate):
        with raises(ValueError, message):
            call(ids, LABELS)
    with raises(ValueError, message):
        model.predict(ids)


def test_evaluate_and_predict_check_ids():
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy(), **AT_ONCE)
    wrong = {**IDS, "source_ids": np.full((B, S), V, "int32")}
    with raises(ValueError, "`source_ids` must be in [0, 13)"):
        model.evaluate(wrong, LABELS, verbose=0)
    with raises(ValueError, "`y` must be in [0, 13)"):
        model.evaluate(IDS, LABELS + V, verbose=0)
    with raises(ValueError, "`source_ids` must be in [0, 13)"):
        model.predict(wrong, verbose=0)
    assert model.evaluate(IDS, LABELS, verbose=0) > 0
    assert model.predict(IDS, verbose=0).shape == (B, T, V)


@pytest.mark.parametrize("shape", [(B, T + 1), (B, T, 1), (B + 1,)])
def test_labels_and_weights_must_fit_the_logits(shape):
    loss = kt.LabelSmoothedCrossentropy()
    logits = zeros(B, T, V)
    with raises(
        ValueError, f"`y_true` must have shape {(B, T)}. Received: y_t"
    ):
        loss(np.full(shape, 6, "int32"), logits)
    with raises(ValueError, "`y_true` must have shape (B, T). Received: y_t"):
        one_hot = np.ones((B, T, V))
        loss(one_hot, logits, sample_weight=np.ones((B, T)))
    message = f"`sample_weight` must have shape {(B, T)}. Received: sample_wei"
    with raises(ValueError, message):
        loss(LABELS, logits, sample_weight=np.ones(shape))


def test_fit_refuses_ragged_ids():
    tf = pytest.importorskip("tensorflow")
    model = make_model()
    rows = [[4, 3], [5]]
    with raises(ValueError, "`source_ids` must have shape (B, T), shorter r"):
        model.fit({"source_ids": rows, "target_ids": rows}, rows)
    ragged = {name: tf.RaggedTensor.from_tensor(x) for name, x in IDS.items()}
    with raises(
        TypeError, "`source_ids` must be padded with 0. Received: a ra"
    ):
        model.fit(ragged, LABELS)
    with raises(
        TypeError, "`source_ids` must be padded with 0. Received: a ra"
    ):
        model.generate(ragged["source_ids"])
    dataset = tf.data.Dataset.from_tensors(rows[0])
    with raises(
        TypeError, "`source_ids` must be an array of ids. Received: source_id"
    ):
        model.generate(dataset)


@pytest.mark.parametrize("shape", [(D, D), (B, S, D, D)])
def test_inputs_have_three_axes(shape):
    encoded = zeros(B, S, D)
    for layer, *others in (
        (kt.EncoderLayer(**LAYER),),
        (kt.Encoder(**STACK),),
        (kt.DecoderLayer(**LAYER), encoded),
        (kt.Decoder(**STACK), encoded),
        (kt.MultiHeadAttention(N, D), encoded),
        (kt.LearnedPositionalEncoding(S, D),),
        (kt.SinusoidalPositionalEncoding(),),
    ):
        with raises(ValueError, "expected ndim=3"):
            layer(zeros(*shape), *others)


def test_masks_that_do_not_fit_have_the_names_they_were_given():
    x, mask = zeros(B, S, D), np.ones((B, S - 1), bool)
    for layer, name, *others in (
        (kt.EncoderLayer(**LAYER), "padding_mask"),
        (kt.Encoder(**STACK), "padding_mask"),
        (kt.DecoderLayer(**LAYER), "padding_mask", x),
        (kt.Decoder(**STACK), "encoded_mask", x),
    ):
        message = f"`{name}` must have shape {(B, S)}. Received: {name}.shape="
        with raises(ValueError, message):
            layer(x, *others, **{name: mask})


def test_values_and_masks_must_fit():
    layer, x = kt.MultiHeadAttention(N, D), zeros(B, S, D)
    with raises(ValueError, "`value` must have shape (B, S, D). Received: val"):
        layer(x, zeros(B, S, D, D))
    with raises(ValueError, "`key` must have shape (B, S, D). Received: k"):
        layer(x, x, key=zeros(S, D))
    message = f"`value_mask` must have shape {(B, S)}. Received: value_mask"
    with raises(ValueError, message):
        layer(x, x, value_mask=np.ones((B, S - 1), bool))
    for shape in ((B, S, S), (S, S), (1, S)):
        layer(x, x, attention_mask=np.ones(shape, bool))
    for shape in ((B, S, S + 1), (S + 1, S), (B + 1, S, S)):
        sizes = (B, S, S)[-len(shape) :]
        message = f"`attention_mask` must have shape {sizes}. Received: att"
        with raises(ValueError, message):
            layer(x, x, attention_mask=np.ones(shape, bool))


def test_ids_must_be_whole_numbers():
    model = make_model()
    whole = {name: ids.astype("float32") for name, ids in IDS.items()}
    model(whole)  # as Keras makes of some datasets
    with raises(TypeError, "`source_ids` must hold integers. Received: sou"):
        model({**whole, "source_ids": whole["source_ids"] + 0.5})
    for rows in ([[4.0, 5.5]], ((4.0, 5.5),)):
        with raises(TypeError, "Received: source_ids with 5.5."):
            model({"source_ids": rows, "target_ids": [[4]]})
    for value in (np.inf, -np.inf, np.nan):
        with raises(TypeError, f"Received: source_ids with {value}."):
            model({"source_ids": [[4.0, value]], "target_ids": [[4]]})
    with raises(TypeError, "Received: source_ids of dtype <U1."):
        model({"source_ids": [["a"]], "target_ids": [[4]]})
    with raises(ValueError, "`source_ids` must have rows of one length. Rece"):
        model({"source_ids": [[4, 5], [4]], "target_ids": [[4], [4]]})


def test_sides_must_have_as_many_rows():
    model = make_model()
    with raises(ValueError, "'source_ids' and 'target_ids' must have the same"):
        model({**IDS, "target_ids": IDS["target_ids"][:1]})
    with raises(ValueError, "`source_ids` must have shape (B, S). Received: s"):
        model({**IDS, "source_ids": IDS["source_ids"][0]})
    with raises(
        ValueError, "`inputs` must be a dictionary with 'source_ids' a"
    ):
        model.cross_attention({"source_ids": IDS["source_ids"]})
    with raises(ValueError, "'source_ids' and 'target_ids' must have the same"):
        model.cross_attention({**IDS, "target_ids": IDS["target_ids"][:1]})
    with raises(TypeError, "`target_ids` must hold integers. Received: target"):
        model.cross_attention({**IDS, "target_ids": IDS["target_ids"] + 0.5})


def test_positions_start_at_0():
    with raises(ValueError, "`start_position` must not be negative"):
        kt.SinusoidalPositionalEncoding()(zeros(B, S, D), start_position=-1)
    for layer in (
        kt.SinusoidalPositionalEncoding(),
        kt.LearnedPositionalEncoding(S, D),
    ):
        for start in (1.5, "1", True, ops.array(1.0)):
            with raises(TypeError, "`start_position` must be an integer. Rec"):
                layer(zeros(B, 1, D), start_position=start)


def test_activation_must_keep_the_width():
    for activation in ("glu", keras.activations.glu):
        with raises(ValueError, "`activation` must return as many units as it"):
            kt.FeedForward(8, 16, activation=activation)


def test_activation_must_have_no_weights():
    prelu = {"activation": keras.layers.PReLU()}
    with raises(ValueError, "`activation` must have no weights: all layers"):
        kt.FeedForward(8, 16, **prelu)(zeros(2, 3, 8))
    with raises(ValueError, "`activation` must have no weights: all layers"):
        make_model(**prelu).build_all()
    kt.FeedForward(8, 16, activation=keras.layers.LeakyReLU())(zeros(2, 3, 8))


def test_sizes_may_be_of_numpy():
    size = np.int64(8)
    x = np.zeros((1, 3, 8), "float32")
    for layer in (
        kt.FeedForward(size, np.int64(16)),
        kt.EncoderLayer(np.int64(2), size, size),
    ):
        assert layer(x).shape == (1, 3, 8)
    assert kt.MultiHeadAttention(np.int64(2), size)(x, x).shape == (1, 3, 8)


def test_masks_must_be_tensors():
    x = np.zeros((1, 2, 8), "float32")
    with pytest.raises(TypeError, match="`key_mask` must be a tensor.*list"):
        kt.MultiHeadAttention(2, 8)(x, x, key_mask=[[True, False]])


@pytest.mark.parametrize(
    ("forbidden", "dtype"),
    [
        (-1e9, "float32"),
        (-np.inf, "float32"),
        (0.5, "float32"),
        (-10_000, "int32"),
        (2, "int8"),
    ],
)
def test_masks_of_other_numbers_are_refused(forbidden, dtype):
    """Those to add to scores are 0, so False, where a key is visible."""
    advice = "pass `ids != 0`" if forbidden > 0 else "pass `mask == 0`"
    layer = kt.MultiHeadAttention(2, 8)
    x = np.ones((1, 3, 8), "float32")
    mask = np.array([[0, 0, forbidden]], dtype)
    for name, given in (
        ("attention_mask", np.repeat(mask, 3, axis=0)),
        ("value_mask", mask),
        ("key_mask", ops.array(mask)),
    ):
        with raises(
            ValueError, f"`{name}` must be True where a key may be attended to."
        ) as raised:
            layer(x, x, **{name: given})
        assert advice in str(raised.value)
    encoder, decoder = kt.EncoderLayer(2, 8, 16), kt.DecoderLayer(2, 8, 16)
    stack = kt.Encoder(1, 2, 8, 16)
    for name, call in (
        ("padding_mask", lambda **masks: stack(x, **masks)),
        ("padding_mask", lambda **masks: encoder(x, **masks)),
        ("padding_mask", lambda **masks: decoder(x, x, **masks)),
        ("encoded_mask", lambda **masks: decoder(x, x, **masks)),
    ):
        with raises(ValueError, f"`{name}` must be True where a key may be"):
            call(**{name: mask})
    ones = np.array([[1, 1, 0]], dtype)
    np.testing.assert_array_equal(
        layer(x, x, value_mask=ones), layer(x, x, value_mask=ones > 0)
    )


@pytest.mark.parametrize("layer", ["DecoderLayer", "Decoder"])
def test_what_a_decoder_attends_to_has_three_axes(layer):
    sizes = (2, 8, 16) if layer == "DecoderLayer" else (1, 2, 8, 16)
    x = np.ones((1, 3, 8), "float32")
    with raises(ValueError, "`encoded` must have shape (B, S, D). Received: "):
        getattr(kt, layer)(*sizes)(x, x[0])


def test_fit_checks_labels():
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy())
    with raises(ValueError, "`y` must be in [0, 13)"):
        model.fit(IDS, LABELS + V)
    with raises(TypeError, "`y` must hold integers. Received: y.dtype=float64"):
        model.fit(IDS, LABELS * 1.0)
    with raises(ValueError, "`y` must have shape (B, T)"):
        model.fit(IDS, LABELS[0])


def test_fit_checks_tensors():
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy())
    wrong = {name: ops.array(ids + V) for name, ids in IDS.items()}
    with raises(ValueError, "`source_ids` must be in [0, 13)"):
        model.fit(wrong, ops.array(LABELS))


def test_fit_checks_lengths():
    model = make_model(positional_encoding="learned", max_length=T)
    model.compile(loss=kt.LabelSmoothedCrossentropy())
    with raises(ValueError, "must not be longer than `max_length`. Received:"):
        model.fit(IDS, LABELS, verbose=0)


@pytest.mark.parametrize("name", ["source_ids", "target_ids"])
def test_fit_needs_both_sides(name):
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy())
    message = (
        "`x` must be a dictionary with 'source_ids' and 'target_ids'. "
        f"Received: x of keys ['{name}']."
    )
    with raises(ValueError, message):
        model.fit({name: IDS[name]}, LABELS)


@pytest.mark.parametrize("kind", [list, tuple, np.stack])
def test_inputs_must_be_named(kind):
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy())
    both = kind([np.ones((2, 5), "int32")] * 2)
    with raises(TypeError, "`x` must be a dictionary with 'source_ids' and"):
        model.fit(both, LABELS)
    with raises(TypeError, "`inputs` must be a dictionary with 'source_ids'"):
        model(both)
    with raises(TypeError, "`inputs` must be a dictionary with 'source_ids'"):
        model(both[0], both[1])
    with raises(
        TypeError, "type tuple. Of a pair make {'source_ids': source, "
    ):
        model((IDS["source_ids"], IDS["target_ids"]))


def test_inputs_must_not_be_empty():
    with raises(ValueError, "Received: inputs of keys []."):
        make_model()({})


def test_fit_takes_a_keras_dataset():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return IDS, LABELS

    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy(), **AT_ONCE)
    history = model.fit(Batches(), shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"][0])


VALIDATION_DATA = {
    "inputs": lambda x, y: x,
    "inputs alone": lambda x, y: (x,),
    "pair": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "with weights": lambda x, y: (x, y, y != 0),
}


@pytest.mark.parametrize(
    "form", VALIDATION_DATA.values(), ids=VALIDATION_DATA.keys()
)
def test_validation_ids_must_be_in_the_vocabulary(monkeypatch, form):
    model = make_model()
    model.compile(loss=kt.LabelSmoothedCrossentropy())
    wrong = {**IDS, "source_ids": np.full((B, S), 99, "int32")}
    with raises(ValueError, "`source_ids` must be in [0, "):
        model.fit(IDS, LABELS, validation_data=form(wrong, LABELS))
    with raises(ValueError, "`source_ids` must be in [0, "):  # in its place
        model.fit(IDS, LABELS, B, 1, 0, None, 0.0, form(wrong, LABELS))
    monkeypatch.setattr(keras.Model, "fit", lambda *args, **kwargs: "fits")
    model.compile()  # without a loss, which wants labels
    assert model.fit(IDS, LABELS, validation_data=form(IDS, LABELS)) == "fits"


def test_embedded_ids_must_be_integers():
    layer = kt.TokenEmbedding(13, 8)
    # As Keras makes them where an `Input` has no dtype: exact.
    np.testing.assert_array_equal(
        layer(np.full((2, 5), 4.0, "float32")), layer(np.full((2, 5), 4))
    )
    np.testing.assert_array_equal(layer(((4, 7),)), layer([[4, 7]]))
    with raises(TypeError, "`inputs` must hold integers. Received: inputs wit"):
        layer(np.full((2, 5), 2.7))
    with raises(TypeError, "`inputs` must hold integers. Received: inputs wit"):
        layer(((4, 2.7),))
    with raises(TypeError, "`inputs` must be integers, unless `reverse=True`."):
        layer(keras.ops.ones((2, 5), "bfloat16"))
    for dtype in ("str", "object"):
        with raises(TypeError, "`inputs` must hold integers. Received: inputs"):
            layer(np.array([["a", "b"]], dtype))


def test_a_search_is_not_for_symbolic_tensors():
    source_ids = keras.Input((None,), dtype="int32")
    with raises(TypeError, "`source_ids` must be a tensor with ids. Received:"):
        make_model().search(source_ids)


def test_search_must_be_a_search():
    message = (
        "`search` must be a Search. Received: search of type str. Pass one, "
        "such as `BeamSearch()`."
    )
    with raises(TypeError, message):
        make_model().generate(IDS["source_ids"], search="greedy")


def test_schedule_takes_numbers():
    with raises(TypeError, "`scale` must be a number. Received: scale='1'"):
        kt.WarmupSchedule(hidden_dim=8, scale="1")


# Limits of `generate`.


def test_lengths_must_be_positive():
    model = make_model()
    with raises(ValueError, "`max_length` must be at least 1. Received: max_"):
        model.generate([[4, 3]], max_length=0)
    with raises(TypeError, "`max_length` must be an integer. Received: max_le"):
        model.generate([[4, 3]], max_length=5.0)
    with raises(ValueError, "`min_length` must not be negative. Received: min"):
        model.generate([[4, 3]], min_length=-1)
    with raises(TypeError, "`min_length` must be an integer. Received: min_le"):
        model.generate([[4, 3]], min_length="1")


def test_lengths_must_leave_room():
    message = (
        "`min_length` must not be more than `max_length`. Received: "
        "min_length=6, max_length=5."
    )
    with raises(ValueError, message):
        make_model().generate([[4, 3]], min_length=6, max_length=5)


def test_a_search_must_be_one():
    ids = np.array([[4, 3]])
    for call in (make_model().search, make_model().generate):
        with raises(TypeError, "`search` must be a Search. Received: "):
            call(ids, "beam")


def test_prefixes_must_fit():
    model = make_model()
    message = (
        "A prefix must not be longer than the target may be. "
        "Received: target_prefix_ids[1] of 3 tokens, max_length=2."
    )
    sources, prefixes = [[4, 3], [5, 3]], [[4, 0, 0], [4, 5, 6]]
    with raises(ValueError, message):
        model.generate(sources, target_prefix_ids=prefixes, max_length=2)
    with raises(ValueError, "of 53 tokens, max_length=52."):
        model.generate([[4, 3]], target_prefix_ids=[[4] * 53])
    message = "`target_prefix_ids` and `source_ids` must have the same length"
    with raises(ValueError, message):
        model.generate([[4, 3]], target_prefix_ids=prefixes)
    with raises(ValueError, "`target_prefix_ids` must be in [0, "):
        model.generate([[4, 3]], target_prefix_ids=[[99]])


def test_prefixes_must_be_without_the_start():
    message = (
        "`target_prefix_ids` must be without the start token, which the model "
        "adds. Received: row 1 with id 2."
    )
    with raises(ValueError, message):
        make_model().generate(
            [[4, 3], [5, 3]], target_prefix_ids=[[4, 0], [2, 4]]
        )
    message = message.replace("target_prefix_ids", "target_ids")
    with raises(ValueError, message):
        make_model().score([[4, 3], [5, 3]], [[4, 3, 0], [2, 4, 3]])


def test_labels_are_checked_where_one_output_has_several_losses():
    model = make_model()
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=[crossentropy, crossentropy])
    ids = {"source_ids": [[4, 3]] * 2, "target_ids": [[2, 4]] * 2}
    ids = {name: np.array(rows) for name, rows in ids.items()}
    with raises(ValueError, "`y` must be in [0, "):
        model.fit(ids, [[4, 99], [4, 3]], verbose=0)


def test_prefixes_must_have_nothing_behind_the_end(untraced):
    message = (
        "`target_prefix_ids` must have nothing after the end token, 3. "
        "Received: more in row 1."
    )
    sources = [[4, 3], [5, 3]]
    with raises(ValueError, message):
        make_model().generate(sources, target_prefix_ids=[[4, 3, 0], [4, 3, 5]])
    message = message.replace("target_prefix_ids", "target_ids")
    for method in (make_model().score, make_model().align):
        with raises(ValueError, message):
            method(sources, [[4, 3, 0], [4, 3, 3]])
    whole = [[4, 5, 3], [5, 3, 0]]
    found, _ = make_model().generate(sources, target_prefix_ids=whole)
    np.testing.assert_array_equal(found, whole)


def test_ids_of_a_traced_function_are_refused():
    model = make_model()
    message = "`source_ids` must be an array whose values can be read. Receiv"
    for method in (model.generate, lambda ids: model.score(ids, ids)):
        with raises(TypeError, message):
            traced(method)(np.array([[4, 3]], "int32"))


@pytest.mark.parametrize(
    "name",
    [
        *("return_scores", "return_token_scores", "return_attention"),
        "jit_compile",
    ],
)
def test_flags_of_generate(name):
    message = f"`{name}` must be True or False. Received: {name}='auto' of type"
    with raises(TypeError, message):
        make_model().generate([[4, 3]], **{name: "auto"})


@pytest.mark.parametrize("row", [[0, 0, 5], [5, 0, 6], [0, 5, 0]], ids=str)
def test_padding_must_be_last(row):
    model, good = make_model(), [[4, 3, 0], [0, 0, 0], [5, 6, 3]]
    wrong = [*good[:2], row]
    for name, call in (
        ("source_ids", lambda: model.generate(wrong)),
        (
            "target_prefix_ids",
            lambda: model.generate(good, target_prefix_ids=wrong),
        ),
        ("source_ids", lambda: model.score(wrong, good)),
        ("target_ids", lambda: model.score(good, wrong)),
    ):
        message = (
            f"`{name}` must have padding, id 0, only after the tokens of a "
            f"row. Received: {name} with padding before a token in row 2."
        )
        with raises(ValueError, message):
            call()


def test_scored_ids_must_be_pairs_of_the_vocabulary():
    model = make_model()
    message = (
        "`source_ids` and `target_ids` must have the same length. "
        "Received: 1 and 2."
    )
    with raises(ValueError, message):
        model.score([[4, 3]], [[4, 3], [5, 3]])
    with raises(ValueError, "`target_ids` must be in [0, "):
        model.score([[4, 3]], [[99, 3]])
    with raises(TypeError, "`source_ids` must hold integers."):
        model.score([[4.0, 3.0]], [[4, 3]])


@pytest.mark.parametrize("layout", ["learned", "interleaved"])
def test_sources_must_fit_the_model(layout):
    model = make_model(positional_encoding=layout, max_length=S)
    message = (
        "`source_ids` must not be longer than `max_length`. Received: "
        "source_ids of 8 tokens, max_length=7."
    )
    with raises(ValueError, message):
        model.generate(np.full((1, 8), 4))


def test_inputs_of_the_model_must_fit_the_learned_positions():
    model = make_model(positional_encoding="learned", max_length=T)
    message = "The last position of `inputs` must be less than `max_length`. R"
    with raises(ValueError, message):
        model(IDS)


# Training kit and files.


def test_smoothing_must_be_a_share():
    message = "`label_smoothing` must be in [0, 1). Received: label_smoothing="
    with raises(ValueError, f"{message}1.0."):
        kt.LabelSmoothedCrossentropy(1.0)
    with raises(TypeError, "`label_smoothing` must be a number. Received: lab"):
        kt.LabelSmoothedCrossentropy("0.1")


@pytest.mark.parametrize(
    "arguments", [{}, {"hidden_dim": D, "peak_learning_rate": 0.1}]
)
def test_schedule_needs_one_height(arguments):
    received = {"hidden_dim": None, "peak_learning_rate": None, **arguments}
    message = (
        "Exactly one of `hidden_dim` and `peak_learning_rate` must be given. "
        f"Received: hidden_dim={received['hidden_dim']}, "
        f"peak_learning_rate={received['peak_learning_rate']}."
    )
    with raises(ValueError, message):
        kt.WarmupSchedule(**arguments)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (0, "greater than 0"),
        (-0.1, "greater than 0"),
        (float("nan"), "finite"),
        (float("-inf"), "finite"),
    ],
)
def test_rates_must_be_positive(value, rule):
    with raises(
        ValueError, f"`scale` must be {rule}. Received: scale={value}."
    ):
        kt.WarmupSchedule(hidden_dim=D, scale=value)
    message = f"`peak_learning_rate` must be {rule}. Received: peak_learning"
    with raises(ValueError, f"{message}_rate={value}."):
        kt.WarmupSchedule(peak_learning_rate=value)


def test_slots_of_a_step_need_their_ancestry():
    decoder = kt.Decoder(**STACK)
    decoder.build((None, None, D), (None, None, D))
    arguments = (
        np.ones((B, 2, D), "float32"),
        0,
        decoder.start_cache(B, T, num_slots=2),
        decoder.encoded_cache(np.ones((B, S, D), "float32")),
    )
    message = "`ancestry` must be given for more than one slot, .*None, 2 slots"
    with pytest.raises(ValueError, match=message):
        decoder.step(*arguments)
    decoder.step(*arguments, ancestry=np.zeros((B, 2, T), "int32"))


@pytest.mark.parametrize("name", ["hidden_dim", "warmup_steps"])
def test_sizes_of_the_schedule_must_be_positive(name):
    with raises(ValueError, f"`{name}` must be at least 1. Received: {name}=0"):
        kt.WarmupSchedule(**{"hidden_dim": D, name: 0})
    with raises(TypeError, f"`{name}` must be an integer. Received: {name}='"):
        kt.WarmupSchedule(**{"hidden_dim": D, name: "many"})


@pytest.mark.parametrize("total_steps", [1, 7])
def test_learning_rates_fall_after_they_rise(total_steps):
    message = (
        "`total_steps` must be above `warmup_steps`. Received: "
        f"total_steps={total_steps}, warmup_steps=7."
    )
    with raises(ValueError, message):
        kt.WarmupSchedule(D, warmup_steps=7, total_steps=total_steps)
    with raises(TypeError, "`total_steps` must be an integer. Received: "):
        kt.WarmupSchedule(D, warmup_steps=7, total_steps=9.5)


def test_files_must_exist(tmp_path):
    path = tmp_path / "nothing.txt"
    with raises(FileNotFoundError, f"No such file: '{path}'."):
        check_file(path)
    path.write_text("")
    assert check_file(path) == str(path)


def test_one_start_position_is_for_all_rows():
    x = ops.zeros((2, 2, 8))
    for layer in (
        kt.SinusoidalPositionalEncoding(),
        kt.LearnedPositionalEncoding(16, 8),
    ):
        with pytest.raises(ValueError, match="`start_position` must be a sc"):
            layer(x, start_position=ops.array([0, 10]))


def test_keys_values_and_queries_must_fit_each_other():
    layer = kt.MultiHeadAttention(2, 8)
    query, value = ops.ones((2, 5, 8)), ops.ones((2, 7, 8))
    message = (
        "`key` must have shape (2, 7, None). Received: key.shape=(2, 6, 8)"
    )
    with raises(ValueError, message):
        layer(query, value, ops.ones((2, 6, 8)))
    message = (
        "`value` must have shape (2, None, None). Received: value.shape=(3, 7, "
        "8)."
    )
    with raises(ValueError, message):
        layer(query, ops.ones((3, 7, 8)))


@pytest.mark.parametrize("shape", [(1, 4), (3, 5), (3,)])
def test_each_position_needs_a_label(shape):
    labels, logits = ops.ones(shape, "int32"), ops.ones((3, 4, 5))
    message = r"`y_true` must have shape \(3, 4\). Received: y_true.shape="
    for check in (
        kt.LabelSmoothedCrossentropy(),
        kt.Perplexity().update_state,
        kt.TokenAccuracy().update_state,
    ):
        with pytest.raises(ValueError, match=message):
            check(labels, logits)


def test_one_weight_is_for_all_tokens():
    labels, logits = ops.ones((3, 4), "int32"), ops.ones((3, 4, 5))
    loss = kt.LabelSmoothedCrossentropy()
    weighted = loss(labels, logits, sample_weight=ops.ones((1,)))
    assert float(weighted) == pytest.approx(float(loss(labels, logits)))


def test_fit_needs_a_row():
    model = kt.Transformer(V, **STACK)
    model.compile("adam", kt.LabelSmoothedCrossentropy())
    empty = {name: ids[:0] for name, ids in IDS.items()}
    with pytest.raises(ValueError, match="must have at least one row"):
        model.fit(empty, LABELS[:0])

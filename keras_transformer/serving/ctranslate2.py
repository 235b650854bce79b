"""CTranslate2: a folder for an engine that needs neither TensorFlow nor Keras.

[CTranslate2](https://github.com/OpenNMT/CTranslate2) runs Transformers in C++
on CPUs and GPUs. It takes and returns pieces; SentencePiece splits and joins
the text.
"""

import functools
import os

import keras
import numpy as np

from keras_transformer.add_norm import LAYER_NORM_EPSILON
from keras_transformer.decoder import Decoder
from keras_transformer.decoder import DecoderLayer
from keras_transformer.encoder import Encoder
from keras_transformer.encoder import EncoderLayer
from keras_transformer.layer import check_not_quantized
from keras_transformer.layer import parts_in
from keras_transformer.positional_encoding import sinusoids
from keras_transformer.search import BeamSearch
from keras_transformer.search import GreedySearch
from keras_transformer.serving.export_note import CTRANSLATE2_FILE
from keras_transformer.serving.export_note import note_of
from keras_transformer.serving.export_note import write_note
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID
from keras_transformer.system.atomic import new_folder
from keras_transformer.system.extras import not_installed
from keras_transformer.system.paths import check_replaceable
from keras_transformer.transformer import Transformer
from keras_transformer.translator import Translator
from keras_transformer.weights import assign_named_weights
from keras_transformer.weights import check_finite_model
from keras_transformer.weights import named_weights

# CTranslate2's names for the activations that it computes as Keras does.
ACTIVATIONS = {
    keras.activations.relu: "RELU",
    keras.activations.gelu: "GELU",
    keras.activations.silu: "SWISH",
    keras.activations.tanh: "Tanh",
    keras.activations.sigmoid: "Sigmoid",
}

# Files that every export has.
MODEL_FILE = "model.bin"
SOURCE_FILE = "source.spm"
TARGET_FILE = "target.spm"

# CTranslate2 looks positions up in a table; this is the size that its converter
# for Marian writes.
NUM_POSITIONS = 2048

# Added to the logits of tokens that must not be chosen: it makes their
# probability exactly 0, and is finite in float16 too.
FORBIDDEN_BIAS = -1e4


def export_ctranslate2(translator, folder, overwrite: bool = False):
    """Writes what `Translator.export_ctranslate2` describes."""
    folder = os.fsdecode(folder)
    try:
        from ctranslate2 import specs
    except ModuleNotFoundError as error:
        raise ImportError(
            not_installed("`export_ctranslate2`", error.name, "ctranslate2")
        ) from error
    _check_model(translator.model)
    _check_special_pieces(translator)
    check = functools.partial(
        check_replaceable,
        folder,
        overwrite,
        "a CTranslate2 model and its tokenizers",
        MODEL_FILE,
        SOURCE_FILE,
    )
    with new_folder(folder, check) as new:
        spec = _model_spec(translator, specs)
        spec.validate()
        spec.optimize()  # writes a matrix that several layers share once
        spec.save(new)
        translator.tokenizer.save(os.path.join(new, SOURCE_FILE))
        translator.target_tokenizer.save(os.path.join(new, TARGET_FILE))
        note = note_of(translator, has_search=False)
        write_note(note, os.path.join(new, CTRANSLATE2_FILE))


def is_ctranslate2(folder) -> bool:
    """Whether a folder holds a model of CTranslate2, not all of them ours."""
    return os.path.isfile(os.path.join(folder, MODEL_FILE))


def as_exported(translator) -> Translator:
    """A translator that computes what CTranslate2 does with the same weights.

    There, tokens that are never chosen have no share of the probability: they
    are forbidden before probabilities are computed, here after.
    """
    model = translator.model
    _check_model(model)
    config = {
        **Transformer.get_config(model),
        "output_bias": True,
        "max_length": model.max_length or NUM_POSITIONS,
    }
    same = Transformer.from_config(config)
    same.build_all()
    weights = {**named_weights(model), same.logit_bias.name: _bias(model)}
    for name, part, _ in parts_in(model):
        if getattr(part, "lora_enabled", False):  # merged, as in the export
            weights[f"{name}/kernel"] = part.kernel
            for lora in ("lora_kernel_a", "lora_kernel_b"):
                del weights[f"{name}/{lora}"]
    assign_named_weights(same, weights, "the translator")
    return Translator(
        same,
        translator.tokenizer,
        translator.target_tokenizer,
        search=translator.search,
    )


def check_lines(translator, lines):
    """Raises `ValueError` if one is longer than CTranslate2 has positions."""
    limit = max(NUM_POSITIONS, translator.model.max_length or 0)
    for number, row in enumerate(translator.encode(lines), start=1):
        if len(row) + 1 > limit:  # with its end token
            raise ValueError(
                "Lines must not be longer than CTranslate2 has positions, "
                f"{limit:,}. Received: line {number} of {len(row) + 1:,} "
                "tokens."
            )


def search_options(search) -> dict:
    """The arguments with which `translate_batch` searches as `search` does.

    Raises:
        ValueError: If there are none.
    """
    same = GreedySearch()
    options = {"beam_size": 1, "length_penalty": 0}
    if isinstance(search, BeamSearch):
        options = {
            "beam_size": search.width,
            "length_penalty": search.length_penalty,
        }
        same = BeamSearch(
            search.width,
            search.length_penalty,
            patience=1,
            length_penalty_form="power",
        )
    is_same = search.get_config() == same.get_config()
    if type(search) is not type(same) or not is_same:
        raise ValueError(
            "The search must be one that CTranslate2 has: `GreedySearch()`, or "
            '`BeamSearch` with `patience=1`, `length_penalty_form="power"` '
            "and one hypothesis (`--search beam --patience 1 "
            "--length-penalty-form power`), without penalties, and without "
            "forbidden tokens or sequences. Received: "
            f"{type(search).__name__} with {search.get_config()}."
        )
    return {"min_decoding_length": 0, **options}


def _check_model(model):
    check_not_quantized(model)
    check_finite_model(model)
    _check_layers(model)
    if model.activation not in ACTIVATIONS:
        names = ", ".join(function.__name__ for function in ACTIVATIONS)
        name = getattr(model.activation, "__name__", model.activation)
        raise ValueError(
            f"`activation` must be one that CTranslate2 computes: {names}. "
            f"Received: activation={name!r}."
        )
    attention = model.encoder.layers[0].self_attention
    sizes = {attention.key_dim, attention.value_dim}
    if sizes != {model.hidden_dim / model.num_heads}:
        raise ValueError(
            "`key_dim` and `value_dim` must be `hidden_dim / num_heads`, as "
            "CTranslate2 splits vectors evenly into heads. Received: "
            f"key_dim={attention.key_dim}, value_dim={attention.value_dim}, "
            f"hidden_dim={model.hidden_dim}, num_heads={model.num_heads}."
        )


def _check_layers(model):
    """Raises if a subclass has added weights, or computes differently."""
    for name in ("encode", "embed_targets", "project", "decode_step"):
        if getattr(type(model), name) is not getattr(Transformer, name):
            raise ValueError(
                "The model must compute as `Transformer` does, which is what "
                f"CTranslate2 computes. Received: a {type(model).__name__}, "
                f"which overrides `{name}`."
            )
    for stack, kinds in (
        (model.encoder, (Encoder, EncoderLayer)),
        (model.decoder, (Decoder, DecoderLayer)),
    ):
        for part in (stack, *getattr(stack, "layers", ())):
            if type(part) not in kinds:
                raise ValueError(
                    "The model must have only the layers of `Transformer`, "
                    "which are those that CTranslate2 computes. Received: a "
                    f"{type(model).__name__} with a {type(part).__name__}."
                )
    layers = (
        model.source_embedding,
        model.target_embedding,
        model.source_positions,
        model.target_positions,
        model.encoder,
        model.decoder,
        model.output_projection,
    )
    known = {id(model.logit_bias)}.union(
        id(weight)
        for layer in layers
        if layer is not None
        for weight in layer.weights
    )
    for weight in model.weights:
        if id(weight) not in known:
            raise ValueError(
                "The model must have only the layers of `Transformer`, which "
                "are those that CTranslate2 computes. Received: a "
                f"{type(model).__name__} with the weight {weight.path}."
            )


def _check_special_pieces(translator):
    source, target = (
        tokenizer.pieces[: END_TOKEN_ID + 1]
        for tokenizer in (translator.tokenizer, translator.target_tokenizer)
    )
    if source != target:
        raise ValueError(
            "The tokenizers must have the same special pieces, as CTranslate2 "
            f"has one set for both. Received: {', '.join(source)} of the "
            f"source and {', '.join(target)} of the target."
        )


def _model_spec(translator, specs):
    """Fills CTranslate2's description of a model from ours."""
    model = translator.model
    spec = specs.TransformerSpec.from_config(
        (len(model.encoder.layers), len(model.decoder.layers)),
        model.num_heads,
        pre_norm=model.normalize_first,
        activation=specs.Activation[ACTIVATIONS[model.activation]],
        # The attention that it returns is the mean of all heads, as ours is.
        alignment_heads=model.num_heads,
    )
    _set_encoder(spec.encoder, model)
    _set_decoder(spec.decoder, model)

    pieces = [*translator.target_tokenizer.pieces]
    spec.register_source_vocabulary([*translator.tokenizer.pieces])
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token = pieces[UNKNOWN_TOKEN_ID]
    spec.config.bos_token = pieces[START_TOKEN_ID]
    spec.config.eos_token = pieces[END_TOKEN_ID]
    spec.config.decoder_start_token = pieces[START_TOKEN_ID]
    spec.config.add_source_bos = False
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    return spec


def _set_encoder(spec, model):
    spec.embeddings[0].weight = _array(model.source_embedding.embeddings)
    spec.position_encodings.encodings = _positions(
        model, model.source_positions
    )
    for layer_spec, layer in zip(spec.layer, model.encoder.layers, strict=True):
        _set_self_attention(layer_spec.self_attention, layer)
        _set_feed_forward(layer_spec.ffn, layer)
    if model.normalize_first:
        _set_norm(spec.layer_norm, model.encoder.final_norm)


def _set_decoder(spec, model):
    spec.embeddings.weight = _array(model.target_embedding.embeddings)
    spec.position_encodings.encodings = _positions(
        model, model.target_positions
    )
    for layer_spec, layer in zip(spec.layer, model.decoder.layers, strict=True):
        _set_self_attention(layer_spec.self_attention, layer)
        _set_cross_attention(layer_spec.attention, layer)
        _set_feed_forward(layer_spec.ffn, layer)
    if model.normalize_first:
        _set_norm(spec.layer_norm, model.decoder.final_norm)
    if model.output_projection is None:
        spec.projection.weight = spec.embeddings.weight
    else:
        _set_linear(spec.projection, model.output_projection)
    spec.projection.bias = _bias(model)


def _bias(model):
    """What is added to the logits, which makes some tokens impossible."""
    bias = np.zeros(model.vocabulary_size, "float32")
    if model.logit_bias is not None:
        bias += _array(model.logit_bias)
    bias[[PAD_TOKEN_ID, START_TOKEN_ID]] = FORBIDDEN_BIAS
    return bias


def _set_self_attention(spec, layer):
    attention = layer.self_attention
    _set_linear(
        spec.linear[0],
        attention.query_projection,
        attention.key_projection,
        attention.value_projection,
    )
    _set_linear(spec.linear[1], attention.output_projection)
    _set_norm(spec.layer_norm, layer.self_attention_add_norm.norm)


def _set_cross_attention(spec, layer):
    attention = layer.cross_attention
    _set_linear(spec.linear[0], attention.query_projection)
    _set_linear(
        spec.linear[1], attention.key_projection, attention.value_projection
    )
    _set_linear(spec.linear[2], attention.output_projection)
    _set_norm(spec.layer_norm, layer.cross_attention_add_norm.norm)


def _set_feed_forward(spec, layer):
    _set_linear(spec.linear_0, layer.feed_forward.inner)
    _set_linear(spec.linear_1, layer.feed_forward.outer)
    _set_norm(spec.layer_norm, layer.feed_forward_add_norm.norm)


def _set_linear(spec, *layers):
    """Sets one matrix (outputs, inputs) from the kernels of `layers`."""
    kernels = [_array(layer.kernel) for layer in layers]
    spec.weight = np.concatenate(kernels, axis=1).T
    if layers[0].use_bias:
        spec.bias = np.concatenate([_array(layer.bias) for layer in layers])


def _set_norm(spec, layer):
    spec.gamma = _array(layer.gamma)
    spec.beta = _array(layer.beta)


def _positions(model, layer):
    """The vectors that are added to embedded tokens, `(T, D)`."""
    if model.positional_encoding == "learned":
        return _array(layer.position_embeddings)
    length = max(NUM_POSITIONS, model.max_length or 0)
    positions = keras.ops.arange(length, dtype="float32")
    return _array(sinusoids(positions, model.hidden_dim, layer.layout))


def _array(values):
    return keras.ops.convert_to_numpy(values).astype("float32")

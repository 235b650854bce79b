"""Translators made of Marian models in the format of Hugging Face.

More than a thousand of them are those of
[OPUS-MT](https://aclanthology.org/2020.eamt-1.61). They differ from the paper
in biases of attention and logits, and in their activation.
"""

import json
import os

import numpy as np
import safetensors.numpy

from keras_transformer.checks import check_choice
from keras_transformer.extras import not_installed
from keras_transformer.paths import check_file
from keras_transformer.search import BeamSearch
from keras_transformer.search import GreedySearch
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID
from keras_transformer.text.sentencepiece_model import with_symbols
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.transformer import Transformer
from keras_transformer.translator import Translator

CONFIG = "config.json"
GENERATION = "generation_config.json"
SOURCE_VOCABULARY = "vocab.json"
TARGET_VOCABULARY = "target_vocab.json"
ADDED_TOKENS = "added_tokens.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SAFETENSORS = "model.safetensors"
TORCH = "pytorch_model.bin"

# Hugging Face's names of activations, with Keras's.
ACTIVATIONS = {
    "swish": "silu",
    "silu": "silu",
    "relu": "relu",
    "gelu": "gelu",
}
# What a configuration may say where a `Transformer` has no choice.
FIXED = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
# What must be the same in both stacks: a `Transformer` has one argument for it.
OF_BOTH_STACKS = ("attention_heads", "ffn_dim")

# The bias of what is never a token of a target. Its probability rounds to 0,
# and it hardly changes the mean of all logits, which label smoothing takes.
FORBIDDEN_BIAS = -100.0


def translator_from_marian(folder) -> Translator:
    """Makes what `Translator.from_marian` describes."""
    folder = os.fsdecode(folder)
    config = _JsonFile(folder, CONFIG)
    _check_config(config)
    ids = target_ids = _JsonFile(folder, SOURCE_VOCABULARY)
    if os.path.exists(os.path.join(folder, TARGET_VOCABULARY)):
        target_ids = _JsonFile(folder, TARGET_VOCABULARY)
    ids.update(_added_languages(folder, {**ids, **target_ids}))
    languages = {f"▁{piece}": piece for piece in ids if _is_language(piece)}
    tokenizer = Tokenizer.from_sentencepiece(os.path.join(folder, "source.spm"))
    if languages:
        tokenizer = Tokenizer(with_symbols(tokenizer.model, languages))
    target_tokenizer = Tokenizer.from_sentencepiece(
        os.path.join(folder, "target.spm")
    )
    is_shared = target_tokenizer.model == tokenizer.model
    if is_shared:
        target_tokenizer = tokenizer
    ids.update({word: ids[piece] for word, piece in languages.items()})
    model = Transformer(
        target_tokenizer.vocabulary_size,
        source_vocabulary_size=tokenizer.vocabulary_size,
        tie_source=is_shared
        and config.get("share_encoder_decoder_embeddings", True),
        tie_output=_ties_output(config),
        **_model_options(config),
    )
    weights = _Weights(folder, model.hidden_dim)
    _set_embeddings(
        model,
        weights,
        config,
        _rows(tokenizer.pieces, ids),
        _rows(target_tokenizer.pieces, target_ids, _start(config)),
    )
    for kind, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(stack.layers):
            weights.set_layer(layer, f"model.{kind}.layers.{number}")
    return Translator(
        model, tokenizer, target_tokenizer, search=_search(folder, config)
    )


def _is_language(piece):
    return piece.startswith(">>") and piece.endswith("<<")


def _added_languages(folder, ids):
    """The languages that a tokenizer has beside the vocabulary, with ids."""
    added = {}
    if os.path.exists(os.path.join(folder, ADDED_TOKENS)):
        added |= _JsonFile(folder, ADDED_TOKENS)
    if os.path.exists(os.path.join(folder, TOKENIZER_CONFIG)):
        config = _JsonFile(folder, TOKENIZER_CONFIG)
        decoder = config.get("added_tokens_decoder", {})
        try:
            added |= {x["content"]: int(row) for row, x in decoder.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{config.path} must have ids of tokens, each with its "
                "`content`, as added_tokens_decoder. Received: "
                f"added_tokens_decoder={decoder!r}."
            ) from error
    added = {piece: row for piece, row in added.items() if piece not in ids}
    for piece in added:
        if not _is_language(piece):
            raise ValueError(
                f"Tokens that were added to the tokenizer in {folder} must be "
                f"languages, such as '>>fra<<'. Received: {piece!r}. If texts "
                f"do not have it, remove it from {ADDED_TOKENS} and "
                f"{TOKENIZER_CONFIG}."
            )
    return added


class _Weights:
    """The weights of a folder by name, float32.

    Hugging Face adds the sines of a position to the first half of a vector and
    the cosines to the second, where the paper has them by turns. To the model,
    the units of a vector have no order: here they are in the paper's.

    Args:
        folder: Has them in the format of safetensors, or in torch's own.
        hidden_dim: Size `D` of a vector.
    """

    def __init__(self, folder, hidden_dim):
        if hidden_dim % 2:
            raise ValueError(
                "A Marian model must have vectors of an even size, half of "
                f"them sines. Received: d_model={hidden_dim}."
            )
        self._order = np.arange(hidden_dim).reshape((2, -1)).T.ravel()
        self.path = os.path.join(folder, SAFETENSORS)
        if os.path.isfile(self.path):
            try:
                self._arrays = safetensors.numpy.load_file(self.path)
            except safetensors.SafetensorError as error:
                raise ValueError(f"{self.path} is damaged: {error}") from error
        else:
            self.path = os.path.join(folder, TORCH)
            if not os.path.isfile(self.path):
                raise FileNotFoundError(
                    f"There must be a {SAFETENSORS} or a {TORCH} with all "
                    f"weights. Received: neither in {folder!r}."
                )
            self._arrays = _torch_arrays(self.path)

    def __contains__(self, name):
        return name in self._arrays

    def __getitem__(self, name):
        if name not in self._arrays:
            raise ValueError(
                f"{self.path} must have all weights of a Marian model. "
                f"Received: none called {name}."
            )
        return np.asarray(self._arrays[name], "float32")

    def set_layer(self, layer, name):
        """Sets a layer of a stack to the one called `name` there."""
        attentions = {
            "self_attn": ("self_attention", "self_attention_add_norm"),
            "encoder_attn": ("cross_attention", "cross_attention_add_norm"),
        }
        for theirs, (ours, add_norm) in attentions.items():
            if not hasattr(layer, ours):
                continue
            attention = getattr(layer, ours)
            for part, dense in (
                ("q_proj", attention.query_projection),
                ("k_proj", attention.key_projection),
                ("v_proj", attention.value_projection),
            ):
                self._set_input(dense, f"{name}.{theirs}.{part}")
            self._set_output(
                attention.output_projection, f"{name}.{theirs}.out_proj"
            )
            self._set_norm(
                getattr(layer, add_norm).norm, f"{name}.{theirs}_layer_norm"
            )
        self._set_input(layer.feed_forward.inner, f"{name}.fc1")
        self._set_output(layer.feed_forward.outer, f"{name}.fc2")
        self._set_norm(
            layer.feed_forward_add_norm.norm, f"{name}.final_layer_norm"
        )

    def vectors(self, *names):
        """The matrix of the first name that there is, a vector in each row."""
        matrix = self[next((name for name in names if name in self), names[0])]
        return self._in_order(matrix.T, names[0]).T

    def _set_input(self, dense, name):
        """Sets a layer whose inputs are vectors."""
        kernel = self._in_order(self[f"{name}.weight"].T, f"{name}.weight")
        self.set(dense.kernel, kernel, f"{name}.weight")
        self.set(dense.bias, self[f"{name}.bias"], f"{name}.bias")

    def _set_output(self, dense, name):
        """Sets a layer whose outputs are vectors."""
        weight = self._in_order(self[f"{name}.weight"], f"{name}.weight")
        self.set(dense.kernel, weight.T, f"{name}.weight")
        bias = self._in_order(self[f"{name}.bias"], f"{name}.bias")
        self.set(dense.bias, bias, f"{name}.bias")

    def _set_norm(self, norm, name):
        for variable, end in ((norm.gamma, "weight"), (norm.beta, "bias")):
            scale = self._in_order(self[f"{name}.{end}"], f"{name}.{end}")
            self.set(variable, scale, f"{name}.{end}")

    def _in_order(self, array, name):
        """Puts the units of vectors, along the first axis, in our order."""
        if len(array) != len(self._order):
            raise self._wrong_shape(name, array, f"{len(self._order)} units")
        return array[self._order]

    def set(self, variable, array, name):
        """Sets a variable; `name` is what an error calls the array."""
        if tuple(variable.shape) != array.shape:
            raise self._wrong_shape(name, array, tuple(variable.shape))
        variable.assign(array)

    def _wrong_shape(self, name, array, wanted):
        return ValueError(
            f"{name} of {self.path} must have the shape that {CONFIG} says, "
            f"{wanted} here. Received: {array.shape}."
        )


def _torch_arrays(path):
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ImportError(
            not_installed(f"{path}, without {SAFETENSORS},", "torch", "marian")
        ) from error
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {name: x.float().numpy() for name, x in tensors.items()}
    except Exception as error:  # of many kinds
        # Its message may advise to run whatever code is in the file.
        raise ValueError(
            f"{path} must hold the weights of a model and nothing else. "
            "Received: a file that torch.load refuses, perhaps a damaged one."
        ) from error


class _JsonFile(dict):
    """The object in a JSON file. A missing key raises, and null is missing."""

    def __init__(self, folder, name):
        self.path = check_file(os.path.join(folder, name))
        with open(self.path, encoding="utf-8") as file:
            try:
                content = json.load(file)
            except ValueError as error:
                content = error
        if not isinstance(content, dict):
            raise ValueError(
                f"{self.path} must hold a JSON object. Received: {content!r}."
            )
        super().__init__(
            (name, x) for name, x in content.items() if x is not None
        )

    def __missing__(self, name):
        raise ValueError(
            f"{self.path} must be that of a Marian model. Received: no {name} "
            "in it."
        )


def _check_config(config):
    kind = config["model_type"]
    if kind != "marian":
        raise ValueError(
            f"{config.path} must be that of a Marian model. Received: "
            f"model_type={kind!r}."
        )
    for name, value in FIXED.items():
        if config.get(name, value) != value:
            raise ValueError(
                f"{config.path} must have {name}={value}. Received: "
                f"{name}={config[name]}."
            )
    for name in OF_BOTH_STACKS:
        both = config[f"encoder_{name}"], config[f"decoder_{name}"]
        if both[0] != both[1]:
            raise ValueError(
                f"{config.path} must have the same {name} for the encoder as "
                f"for the decoder. Received: {both[0]} and {both[1]}."
            )
    check_choice(
        tuple(ACTIVATIONS), activation_function=config["activation_function"]
    )


def _model_options(config):
    return {
        "num_layers": config["encoder_layers"],
        "num_decoder_layers": config["decoder_layers"],
        "num_heads": config["encoder_attention_heads"],
        "hidden_dim": config["d_model"],
        "intermediate_dim": config["encoder_ffn_dim"],
        "dropout": config.get("dropout", 0.1),
        "attention_dropout": config.get("attention_dropout", 0.0),
        "feed_forward_dropout": config.get("activation_dropout", 0.0),
        "activation": ACTIVATIONS[config["activation_function"]],
        "max_length": config.get("max_position_embeddings"),
        "attention_bias": True,
        "output_bias": True,
    }


def _ties_output(config):
    # Otherwise the matrix is not the same, or is not scaled in both places.
    return config.get("tie_word_embeddings", True) and bool(
        config.get("scale_embedding")
    )


def _start(config):
    """The id of the first token of a target, `None` for that of padding."""
    name = "decoder_start_token_id"
    if name in config:
        _check_id(config[name], config.path, name)
    return config.get(name)


def _check_id(row, path, name):
    if type(row) is not int or row < 0:
        raise ValueError(
            f"{path} must have whole numbers of at least 0 as ids. Received: "
            f"{row!r} for {name!r}."
        )


def _rows(pieces, ids, start=None):
    """The row of each piece in the matrices of a folder, -1 if it has none."""
    for piece, row in ids.items():
        _check_id(row, ids.path, piece)
    rows = np.array([ids.get(piece, -1) for piece in pieces])
    rows[PAD_TOKEN_ID] = ids["<pad>"]
    rows[START_TOKEN_ID] = ids["<pad>"] if start is None else start
    rows[UNKNOWN_TOKEN_ID] = ids["<unk>"]
    rows[END_TOKEN_ID] = ids["</s>"]
    return rows


def _set_embeddings(model, weights, config, rows, target_rows):
    """Sets the embeddings and the logits from the rows of their pieces."""
    shared = "model.shared.weight"
    source = weights.vectors("model.encoder.embed_tokens.weight", shared)
    target = weights.vectors("model.decoder.embed_tokens.weight", shared)
    scale = 1.0 if config.get("scale_embedding") else model.hidden_dim**-0.5
    for layer, matrix, places in (
        (model.source_embedding, source, rows),
        (model.target_embedding, target, target_rows),
    ):
        vectors = scale * _taken(matrix, places)
        weights.set(layer.embeddings, vectors, "embed_tokens")
    if model.output_projection is not None:
        matrix = target
        if not config.get("tie_word_embeddings", True):
            matrix = weights.vectors("lm_head.weight")
        kernel = _taken(matrix, target_rows).T
        weights.set(model.output_projection.kernel, kernel, "lm_head.weight")
    bias = _taken(weights["final_logits_bias"].ravel(), target_rows)
    is_token = target_rows >= 0
    # Marian itself has no padding, and no start token.
    is_token[[PAD_TOKEN_ID, START_TOKEN_ID]] = False
    bias = np.where(is_token, bias, FORBIDDEN_BIAS)
    weights.set(model.logit_bias, bias, "final_logits_bias")


def _taken(array, rows):
    """The rows of an array; where a piece has none, that of unknown pieces."""
    if rows.max() >= len(array):
        raise ValueError(
            f"Pieces must have ids in [0, {len(array)}), the rows of the "
            f"weights. Received: {rows.max()}."
        )
    return array[np.where(rows < 0, rows[UNKNOWN_TOKEN_ID], rows)]


def _search(folder, config):
    """The search that the folder says, or that Hugging Face has by default."""
    if os.path.exists(os.path.join(folder, GENERATION)):
        config = _JsonFile(folder, GENERATION)  # which alone counts there
    settings = {
        "num_beams": 1,
        "length_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        **config,
    }
    ngram_size = settings["no_repeat_ngram_size"]
    if settings["num_beams"] == 1:
        return GreedySearch(no_repeat_ngram_size=ngram_size)
    return BeamSearch(
        width=settings["num_beams"],
        length_penalty=settings["length_penalty"],
        length_penalty_form="power",
        patience=1 if settings.get("early_stopping") is True else None,
        no_repeat_ngram_size=ngram_size,
    )

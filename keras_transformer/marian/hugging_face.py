"""Marian models in the format of Hugging Face, as it has those of OPUS-MT."""

import os
import re

import numpy as np

from keras_transformer.files import read_tensors
from keras_transformer.marian.conversion import MarianModel
from keras_transformer.marian.conversion import MarianWeights
from keras_transformer.marian.conversion import check_no_more_layers
from keras_transformer.marian.conversion import check_row
from keras_transformer.marian.conversion import rows_of
from keras_transformer.marian.files import read_named_values
from keras_transformer.marian.opus import is_language
from keras_transformer.marian.opus import languages_in
from keras_transformer.marian.opus import read_tokenizers
from keras_transformer.quoting import quoted
from keras_transformer.search import BeamSearch
from keras_transformer.search import GreedySearch
from keras_transformer.system.extras import not_installed

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
# The number of a layer, from 0, in the name of a weight.
LAYER = re.compile(r"model\.(encoder|decoder)\.layers\.(\d+)\.")
# What must be the same in both stacks: a `Transformer` has one argument for it.
OF_BOTH_STACKS = ("attention_heads", "ffn_dim")


def read_hugging_face(folder) -> MarianModel:
    """Reads a folder that `save_pretrained` writes.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If torch is needed and not installed.
        ValueError: If a file is damaged, or the model of another kind.
    """
    config = _read_json(folder, CONFIG)
    _check_config(config)
    ids = target_ids = _read_json(folder, SOURCE_VOCABULARY)
    if os.path.exists(os.path.join(folder, TARGET_VOCABULARY)):
        target_ids = _read_json(folder, TARGET_VOCABULARY)
    ids.update(_added_languages(folder, {**ids, **target_ids}))
    languages = languages_in(ids)
    ids.update(languages)
    tokenizer, target_tokenizer = read_tokenizers(folder, languages)
    options = _options(config)
    weights = _weights(folder, options["hidden_dim"])
    check_no_more_layers(weights.path, weights, LAYER, 0, options)
    return MarianModel(
        options=options,
        weights=weights,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
        rows=rows_of(tokenizer.pieces, ids),
        target_rows=rows_of(
            target_tokenizer.pieces, target_ids, _start(config)
        ),
        shares_embeddings=config.flag("share_encoder_decoder_embeddings", True),
        scales_embeddings=config.flag("scale_embedding", False),
        ties_output=config.flag("tie_word_embeddings", True),
        search=_search(folder, config),
    )


def _added_languages(folder, ids):
    """The languages that a tokenizer has beside the vocabulary, with ids."""
    added = {}
    if os.path.exists(os.path.join(folder, ADDED_TOKENS)):
        tokens = _read_json(folder, ADDED_TOKENS)
        for piece, row in tokens.items():
            check_row(row, tokens.path, piece)
        added |= tokens
    if os.path.exists(os.path.join(folder, TOKENIZER_CONFIG)):
        config = _read_json(folder, TOKENIZER_CONFIG)
        decoder = config.get("added_tokens_decoder", {})
        try:
            tokens = {x["content"]: int(row) for row, x in decoder.items()}
            if not all(isinstance(piece, str) for piece in tokens):
                raise TypeError("content must be a string")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{config.path} must have ids of tokens, each with its "
                "`content`, as added_tokens_decoder. Received: "
                f"added_tokens_decoder={quoted(decoder)}."
            ) from error
        for piece, row in tokens.items():
            check_row(row, config.path, piece)
        added |= tokens
    added = {piece: row for piece, row in added.items() if piece not in ids}
    for piece in added:
        if not is_language(piece):
            raise ValueError(
                f"Tokens that were added to the tokenizer in {folder} must be "
                f"languages, such as '>>fra<<'. Received: {piece!r}. If texts "
                f"do not have it, remove it from {ADDED_TOKENS} and "
                f"{TOKENIZER_CONFIG}."
            )
    return added


def _weights(folder, hidden_dim):
    """The weights of a folder, in the format of safetensors or torch's own.

    Hugging Face adds the sines of a position to the first half of a vector and
    the cosines to the second, where the paper has them by turns.
    """
    if hidden_dim % 2:
        raise ValueError(
            "A Marian model must have vectors of an even size, half of them "
            f"sines. Received: d_model={hidden_dim}."
        )
    order = np.arange(hidden_dim).reshape((2, -1)).T.ravel()
    path = os.path.join(folder, SAFETENSORS)
    if os.path.isfile(path):
        return MarianWeights(path, read_tensors(path), order)
    path = os.path.join(folder, TORCH)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"There must be a {SAFETENSORS} or a {TORCH} with all weights. "
            f"Received: neither in {folder!r}."
        )
    return MarianWeights(path, _torch_arrays(path), order)


def _torch_arrays(path):
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ImportError(
            not_installed(f"{path}, without {SAFETENSORS},", "torch")
        ) from error

    def array(tensor):
        if not tensor.is_floating_point():
            return tensor.numpy()
        if tensor.element_size() == 1:  # float8, which weights must not be
            return tensor.view(torch.uint8).numpy()
        return tensor.float().numpy()  # NumPy has no bfloat16

    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {name: array(tensor) for name, tensor in tensors.items()}
    except (MemoryError, OSError):
        raise
    except Exception as error:  # of many kinds
        # Its message may advise to run whatever code is in the file.
        raise ValueError(
            f"{path} must hold the weights of a model and nothing else. "
            "Received: a file that torch.load refuses, perhaps a damaged one, "
            "or that holds something else."
        ) from error


def _read_json(folder, name):
    return read_named_values(os.path.join(folder, name))


def _check_config(config):
    kind = config["model_type"]
    if kind != "marian":
        raise ValueError(
            f"{config.path} must be that of a Marian model. Received: "
            f"model_type={quoted(kind)}."
        )
    config.check_fixed(FIXED)
    for name in OF_BOTH_STACKS:
        both = config[f"encoder_{name}"], config[f"decoder_{name}"]
        if both[0] != both[1]:
            raise ValueError(
                f"{config.path} must have the same {name} for the encoder as "
                f"for the decoder. Received: {' and '.join(map(quoted, both))}."
            )


def _options(config):
    return {
        "num_layers": config.size("encoder_layers"),
        "num_decoder_layers": config.size("decoder_layers"),
        "num_heads": config.size("encoder_attention_heads"),
        "hidden_dim": config.size("d_model"),
        "intermediate_dim": config.size("encoder_ffn_dim"),
        "dropout": config.get("dropout", 0.1),
        "attention_dropout": config.get("attention_dropout", 0.0),
        "feed_forward_dropout": config.get("activation_dropout", 0.0),
        "activation": config.choice("activation_function", ACTIVATIONS),
        "max_length": config.get("max_position_embeddings"),
    }


def _start(config):
    """The id of the first token of a target, `None` for that of padding."""
    name = "decoder_start_token_id"
    if name in config:
        check_row(config[name], config.path, name)
    return config.get(name)


def _search(folder, config):
    """The search that the folder says, or that Hugging Face has by default."""
    if os.path.exists(os.path.join(folder, GENERATION)):
        config = _read_json(folder, GENERATION)  # which alone counts there
    settings = {
        "num_beams": 1,
        "length_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        **config,
    }
    ngram_size = settings["no_repeat_ngram_size"]
    try:
        if settings["num_beams"] == 1:
            return GreedySearch(no_repeat_ngram_size=ngram_size)
        return BeamSearch(
            width=settings["num_beams"],
            length_penalty=settings["length_penalty"],
            length_penalty_form="power",
            patience=1 if settings.get("early_stopping") is True else None,
            no_repeat_ngram_size=ngram_size,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{config.path} must say how to search as Hugging Face does: "
            f"{error}"
        ) from error

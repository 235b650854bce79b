"""Marian models as Marian itself writes them: `.npz` and `decoder.yml`.

What they hold was read off models that Marian 1.12.42 trained, and what Marian
computes off the scores that it gives.
"""

import errno
import os
import re

import numpy as np
import yaml

from keras_transformer.files import damaged
from keras_transformer.marian.conversion import MarianModel
from keras_transformer.marian.conversion import MarianWeights
from keras_transformer.marian.conversion import check_floats
from keras_transformer.marian.conversion import check_no_more_layers
from keras_transformer.marian.conversion import check_row
from keras_transformer.marian.conversion import no_weight
from keras_transformer.marian.conversion import rows_of
from keras_transformer.marian.files import NamedValues
from keras_transformer.marian.files import read_named_values
from keras_transformer.marian.opus import languages_in
from keras_transformer.marian.opus import read_tokenizers
from keras_transformer.quoting import quoted
from keras_transformer.search import BeamSearch
from keras_transformer.search import GreedySearch
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID
from keras_transformer.system.paths import check_file
from keras_transformer.text.sentencepiece_model import processor_of
from keras_transformer.text.tokenizer import Tokenizer

# The end of the names of files that say what to translate with, and how.
SETTINGS = "decoder.yml"
# What says how a model is made, beside its weights.
MODEL_SETTINGS = "special:model.yml"
# The number of a layer, from 1, in the name of a weight.
LAYER = re.compile(r"(encoder|decoder)_l(\d+)_")

# Most levels of lists and mappings in its files; usual are 2.
MOST_DEPTH = 20

# Marian's names of activations, with Keras's. Its "gelu" is another function.
ACTIVATIONS = {"swish": "silu", "relu": "relu"}

# What settings may say where a `Transformer` or its searches have no choice.
FIXED = {
    "type": "transformer",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-ffn-depth": 2,
    "transformer-attention-mask": "default",
    "transformer-train-position-embeddings": False,
    "transformer-disable-position-embeddings": False,
    "transformer-no-projection": False,
    "transformer-no-affine": False,
    "transformer-no-bias": False,
    "transformer-pool": False,
    "transformer-rnn-projection": False,
    "transformer-tied-layers": [],
    "input-types": [],
    "factors-dim-emb": 0,
    "right-left": False,
    "ulr": False,
}
FIXED_IN_SEARCH = {"word-penalty": 0}

# Where layers normalise ("n") and add ("a") or drop units ("d").
PLACES = (
    "transformer-preprocess",  # before each sublayer
    "transformer-postprocess",  # after it
    "transformer-postprocess-top",  # at the end of a stack
    "transformer-postprocess-emb",  # after embeddings
)
POST_NORM = ("", "an", "", "")
PRE_NORM = ("n", "a", "n", "")

# Hugging Face's names of a layer's parts, with Marian's.
ATTENTIONS = {"self_attn": "self", "encoder_attn": "context"}
PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}


def read_own_format(path) -> MarianModel:
    """Reads the model that a `decoder.yml` names.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, or the model of another kind.
    """
    settings = _read_yaml(path)
    settings.check_fixed(FIXED_IN_SEARCH)
    [model_path] = _paths(settings, "models", 1)
    arrays = _Arrays(model_path)
    model_settings = _model_settings(arrays)
    options = _options(model_settings)
    check_no_more_layers(model_path, arrays, LAYER, 1, options)
    is_shared = "Wemb" in arrays
    is_tied = model_settings.flag("tied-embeddings") or model_settings.flag(
        "tied-embeddings-all"
    )
    source, target = (
        arrays["Wemb" if is_shared else f"{stack}_Wemb"]
        for stack in ("encoder", "decoder")
    )
    weights = {
        "model.encoder.embed_tokens.weight": _with_zeros(source),
        "model.decoder.embed_tokens.weight": _with_zeros(target),
        "final_logits_bias": np.zeros((1, len(target) + 1)),
    }
    if not model_settings.flag("output-omit-bias", False):
        bias = arrays["decoder_ff_logit_out_b"]
        weights["final_logits_bias"] = _with_zeros(bias.T).T
    if not is_tied:
        output = arrays["decoder_ff_logit_out_Wt"]
        weights["lm_head.weight"] = _with_zeros(output)
    weights |= _stack("encoder", options["num_layers"], arrays, options)
    weights |= _stack("decoder", options["num_decoder_layers"], arrays, options)
    tokenizers, ids = _read_text(settings)
    for numbers, matrix in zip(ids, (source, target), strict=True):
        _fit(numbers, len(matrix))
        numbers["<pad>"] = len(matrix)
    return MarianModel(
        options=options,
        weights=MarianWeights(
            model_path, weights, np.arange(options["hidden_dim"])
        ),
        tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
        rows=rows_of(tokenizers[0].pieces, ids[0]),
        target_rows=rows_of(tokenizers[1].pieces, ids[1]),
        shares_embeddings=is_shared,
        scales_embeddings=True,
        ties_output=is_tied,
        search=_search(settings),
    )


def _fit(ids, num_rows):
    """Leaves out pieces without a row, as `dim-vocabs` has Marian do.

    Raises:
        ValueError: If a SentencePiece model has not a piece for each row.
    """
    if not ids.path.endswith(".spm"):
        for piece in [piece for piece, row in ids.items() if row >= num_rows]:
            del ids[piece]
    elif len(ids) != num_rows:
        raise ValueError(
            f"{ids.path} must have a piece for each row of the weights, "
            f"{num_rows}. Received: {len(ids)} pieces."
        )


def _with_zeros(matrix):
    """Adds a row of zeros: the vector that Marian starts targets with."""
    return np.pad(matrix, ((0, 1), (0, 0)))


def _read_yaml(path, kind="SafeLoader"):
    path = check_file(path)
    with open(path, "rb") as file:
        return NamedValues(path, _content(path, file.read(), kind))


def _content(path, source, kind="SafeLoader"):
    """What YAML in a file holds; with `"BaseLoader"` all of it is strings."""
    # libyaml, where it is there, reads a vocabulary in a tenth of the time.
    loader = getattr(yaml, f"C{kind}", getattr(yaml, kind))
    try:
        found = _not_plain(yaml.parse(source, Loader=loader))
        if found is None:
            return yaml.load(source, Loader=loader)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        ValueError,
        yaml.YAMLError,
    ) as error:  # many of them of values that their tags do not fit
        raise damaged(path, error) from error
    raise ValueError(
        f"{path} must be YAML as Marian writes it, without aliases and hardly "
        f"nested. Received: {found}."
    )


def _not_plain(events) -> str | None:
    """What there is in YAML that Marian does not write.

    Of aliases, a few lines make lists of any size. Versions of libyaml end the
    process where lists and mappings are deep in each other.
    """
    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            return f"*{event.anchor}"
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            return f"more than {MOST_DEPTH} levels"
    return None


def _paths(settings, name, number):
    """Where the files are that the settings name.

    Marian takes names from the folder that it was started in. Whoever gets a
    model has all its files in one.
    """
    names = settings[name]
    if not isinstance(names, list) or len(names) != number:
        raise ValueError(
            f"{settings.path} must have a list of {number} as {name}; there "
            f"are no ensembles. Received: {quoted(names)}."
        )
    folder = os.path.dirname(settings.path)
    found = []
    for path in map(str, names):
        beside = os.path.join(folder, os.path.basename(path))
        places = beside, os.path.join(folder, path), path
        found.append(next(filter(os.path.isfile, places), beside))
    return [check_file(path) for path in found]


class _Arrays(dict):
    """The arrays of a `.npz` file by Marian's names."""

    def __init__(self, path):
        self.path = path
        if not path.endswith(".npz"):
            raise ValueError(
                "Weights of Marian must be a .npz file, as its training "
                f"writes. Received: {path!r}."
            )
        # numpy does not close a file that it cannot read.
        with open(path, "rb") as source:
            try:
                super().__init__(np.load(source))
            except MemoryError:
                raise
            except Exception as error:  # of many kinds
                # EINVAL is of a place that no file has.
                is_system = isinstance(error, OSError)
                if is_system and error.errno != errno.EINVAL:
                    raise
                raise damaged(path, error) from error
        for name, array in self.items():
            if not isinstance(array, np.ndarray):  # but bytes
                raise damaged(path, f"{name} is no array")

    def __missing__(self, name):
        raise no_weight(self.path, name)


def _model_settings(arrays):
    content = arrays[MODEL_SETTINGS].tobytes().rstrip(b"\0")
    settings = NamedValues(arrays.path, _content(arrays.path, content))
    settings.check_fixed(FIXED)
    for name, usual in (
        ("transformer-decoder-ffn-depth", "transformer-ffn-depth"),
        ("transformer-decoder-dim-ffn", "transformer-dim-ffn"),
    ):
        if settings.get(name):  # 0 is that of the encoder
            settings.check_fixed({name: settings[usual]})
    for name, array in arrays.items():
        if name != MODEL_SETTINGS:
            check_floats(arrays.path, name, array)
    return settings


def _options(settings):
    """The arguments of `Transformer`."""
    placed = {name: str(settings.get(name, "")) for name in PLACES}
    order = tuple(what.replace("d", "") for what in placed.values())
    if order not in (POST_NORM, PRE_NORM):
        raise ValueError(
            f"{settings.path} must normalise as the paper, or before each "
            f"sublayer and at the end of a stack. Received: {placed}."
        )
    return {
        "num_layers": settings.size("enc-depth"),
        "num_decoder_layers": settings.size("dec-depth"),
        "num_heads": settings.size("transformer-heads"),
        "hidden_dim": settings.size("dim-emb"),
        "intermediate_dim": settings.size("transformer-dim-ffn"),
        "activation": settings.choice(
            "transformer-ffn-activation", ACTIVATIONS
        ),
        "normalize_first": order == PRE_NORM,
        "positional_encoding": "concatenated",
    }


def _stack(name, depth, arrays, options):
    """The weights of an encoder or a decoder by Hugging Face's names.

    Theirs have a row for each output, Marian's a column.
    """
    mark = "_pre" if options["normalize_first"] else ""
    weights = {}

    def add_dense(ours, weight, bias):
        weights[f"{ours}.weight"] = arrays[weight].T
        weights[f"{ours}.bias"] = arrays[bias].ravel()

    def add_norm(ours, theirs, mark=mark):
        weights[f"{ours}.weight"] = arrays[f"{theirs}_scale{mark}"].ravel()
        weights[f"{ours}.bias"] = arrays[f"{theirs}_bias{mark}"].ravel()

    for number in range(depth):
        ours, theirs = f"model.{name}.layers.{number}", f"{name}_l{number + 1}"
        for attention, part in ATTENTIONS.items():
            if name == "encoder" and attention == "encoder_attn":
                continue
            for projection, letter in PROJECTIONS.items():
                add_dense(
                    f"{ours}.{attention}.{projection}",
                    f"{theirs}_{part}_W{letter}",
                    f"{theirs}_{part}_b{letter}",
                )
            add_norm(f"{ours}.{attention}_layer_norm", f"{theirs}_{part}_Wo_ln")
        for digit in "12":
            add_dense(
                f"{ours}.fc{digit}",
                f"{theirs}_ffn_W{digit}",
                f"{theirs}_ffn_b{digit}",
            )
        add_norm(f"{ours}.final_layer_norm", f"{theirs}_ffn_ffn_ln")
    if options["normalize_first"]:
        add_norm(f"model.{name}.layer_norm", f"{name}_top_ln", mark="")
    return weights


def _read_text(settings):
    """The tokenizer of each side, and the row of each of its pieces."""
    paths = _paths(settings, "vocabs", 2)
    endings = {os.path.splitext(path)[1] for path in paths}
    if endings <= {".yml", ".yaml", ".json"}:
        # Of text that is split before it gets to Marian, as OPUS-MT's.
        read = {path: _read_vocabulary(path) for path in {*paths}}
        ids = [NamedValues(path, read[path]) for path in paths]
        folder = os.path.dirname(settings.path)
        languages = languages_in(ids[0])
        ids[0].update(languages)
        return read_tokenizers(folder, languages), ids
    if endings != {".spm"}:
        raise ValueError(
            f"{settings.path} must name vocabularies of one kind, .spm or "
            ".yml, the latter with source.spm and target.spm beside them. "
            f"Received: vocabs={settings['vocabs']}."
        )
    tokenizers = [Tokenizer.from_sentencepiece(path) for path in paths]
    return tokenizers, [_ids_in_model(path) for path in paths]


def _read_vocabulary(path):
    """The row of each piece, which may look like a number or as `yes`."""
    ids = {}
    try:  # YAML has no surrogates, as in "\ud83d\ude00"
        content = read_named_values(path)
    except ValueError:
        content = _read_yaml(path, "BaseLoader")
    for piece, row in content.items():
        is_number = isinstance(row, str) and row.isdecimal()
        ids[piece] = int(row) if is_number else row
        check_row(ids[piece], path, piece)
    return ids


def _ids_in_model(path):
    """The row of each piece of a SentencePiece model."""
    with open(path, "rb") as file:
        processor = processor_of(file.read())
    ids = {processor.IdToPiece(x): x for x in range(processor.GetPieceSize())}
    for piece in ("<pad>", "<s>"):
        if piece in ids and not processor.IsControl(ids[piece]):
            raise ValueError(
                f"{path} must not have a piece of text {piece!r}, for which a "
                "`Transformer` has a meaning of its own."
            )
    return NamedValues(path, ids)


def _search(settings):
    """The search that the settings say, or that Marian has by default."""
    forbidden = [] if settings.get("allow-unk") else [UNKNOWN_TOKEN_ID]
    width, alpha = settings.get("beam-size", 12), settings.get("normalize", 0)
    if width == 1:
        return GreedySearch(forbidden_token_ids=forbidden)
    try:
        return BeamSearch(
            width=width,
            length_penalty=alpha,
            length_penalty_form="power",
            forbidden_token_ids=forbidden,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{settings.path} must have a number as beam-size and normalize. "
            f"Received: beam-size={width!r}, normalize={alpha!r}: {error}"
        ) from error

"""A `Translator` made of what was read of a Marian model."""

import dataclasses

import numpy as np

from keras_transformer.quoting import quoted
from keras_transformer.search import Search
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.transformer import Transformer
from keras_transformer.translator import Translator

# A vocabulary in which hardly any piece is found cannot be the model's. That of
# a model for similar languages has more of them.
LEAST_SHARE_WITH_ROWS = 0.01

# The bias of what is never a token of a target. Its probability rounds to 0,
# and it hardly changes the mean of all logits, which label smoothing takes.
FORBIDDEN_BIAS = -100.0


def no_weight(path, name) -> ValueError:
    """The error to raise for a file without a weight."""
    return ValueError(
        f"{path} must have all weights of a Marian model. Received: none "
        f"called {name}."
    )


def check_floats(path, name, array):
    """Raises `ValueError` unless a weight has floating-point numbers."""
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise ValueError(
            f"{path} must hold weights of floating-point numbers, not "
            f"quantised ones. Received: {array.dtype} for {name}."
        )


def check_no_more_layers(path, names, pattern, first, options):
    """Raises `ValueError` if there are weights of layers that are not used.

    Args:
        path: The file, for messages.
        names: Those of its weights.
        pattern: Finds in them the stack and the number of the layer.
        first: The number of the first layer.
        options: The arguments of `Transformer`.
    """
    depths = {
        "encoder": options["num_layers"],
        "decoder": options["num_decoder_layers"],
    }
    for name in names:
        found = pattern.match(name)
        if found and int(found[2]) - first >= depths[found[1]]:
            raise ValueError(
                f"{path} must have weights of as many layers as the settings "
                f"of the model say, {depths[found[1]]} in the {found[1]}. "
                f"Received: {name}."
            )


class MarianWeights:
    """Weights by the names that Hugging Face gives them, float32.

    Args:
        path: The file that they are from, for messages.
        arrays: Arrays by name; a matrix has a row for each output.
        order: Which unit of the file's vectors becomes each of ours, `(D,)`.
            To a model, the units of a vector have no order.
    """

    def __init__(self, path, arrays, order):
        self.path = path
        self._arrays = arrays
        self._order = order

    def __contains__(self, name):
        return name in self._arrays

    def __iter__(self):
        return iter(self._arrays)

    def __getitem__(self, name):
        if name not in self._arrays:
            raise no_weight(self.path, name)
        check_floats(self.path, name, self._arrays[name])
        return np.asarray(self._arrays[name], "float32")

    def set_stack(self, stack, name):
        """Sets an encoder or a decoder to the one called `name` there."""
        for number, layer in enumerate(stack.layers):
            self._set_layer(layer, f"{name}.layers.{number}")
        if stack.normalize_first:
            self._set_norm(stack.final_norm, f"{name}.layer_norm")

    def _set_layer(self, layer, name):
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
        # Where there is none, the error names the first.
        found, *_ = [name for name in names if name in self] or names
        return self._in_order(self[found].T, names[0]).T

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
            f"{name} of {self.path} must have the shape that the settings of "
            f"the model say, {wanted} here. Received: {array.shape}."
        )


@dataclasses.dataclass(frozen=True)
class MarianModel:
    """What a reader finds of a model, in whichever format.

    Attributes:
        options: Arguments of `Transformer`, all but those that follow from
            vocabularies and embeddings.
        weights: The weights of all layers.
        tokenizer: Splits source text.
        target_tokenizer: Splits target text.
        rows: Row of each source piece in a matrix of vectors, -1 for those
            that have none, `(V,)`.
        target_rows: The same for the target.
        shares_embeddings: Whether both sides have the same vectors.
        scales_embeddings: Whether vectors are multiplied by `sqrt(D)`, as in
            section 3.4, where they are looked up.
        ties_output: Whether logits are products with the target's vectors.
        search: How the model is to be searched.
    """

    options: dict
    weights: MarianWeights
    tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    rows: np.ndarray
    target_rows: np.ndarray
    shares_embeddings: bool
    scales_embeddings: bool
    ties_output: bool
    search: Search


def translator_of(marian: MarianModel, path: str) -> Translator:
    """Builds the model, sets its weights, and adds the text processing.

    Args:
        marian: What was read.
        path: Where, for messages.
    """
    tokenizer, target_tokenizer = marian.tokenizer, marian.target_tokenizer
    is_shared = target_tokenizer.model == tokenizer.model
    if is_shared:
        target_tokenizer = tokenizer
    try:
        model = Transformer(
            target_tokenizer.vocabulary_size,
            source_vocabulary_size=tokenizer.vocabulary_size,
            tie_source=is_shared and marian.shares_embeddings,
            # Otherwise the matrix is not scaled in both places.
            tie_output=marian.ties_output and marian.scales_embeddings,
            attention_bias=True,
            output_bias=True,
            **marian.options,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The model of {path!r} must be a `Transformer`: {error}"
        ) from error
    _set_embeddings(model, marian)
    marian.weights.set_stack(model.encoder, "model.encoder")
    marian.weights.set_stack(model.decoder, "model.decoder")
    return Translator(model, tokenizer, target_tokenizer, search=marian.search)


def rows_of(pieces, ids, start=None):
    """The row of each piece in the matrices of a model, -1 if it has none.

    Args:
        pieces: The pieces of a vocabulary of ours.
        ids: Row of each piece, with those of `<pad>`, `<unk>` and `</s>`; its
            `path` is where they are from.
        start: Row of what starts a target; that of `<pad>` by default.

    Raises:
        ValueError: If rows are not whole numbers of at least 0, or hardly any
            piece has one.
    """
    for piece, row in ids.items():
        check_row(row, ids.path, piece)
    rows = np.array([ids.get(piece, -1) for piece in pieces])
    rows[PAD_TOKEN_ID] = ids["<pad>"]
    rows[START_TOKEN_ID] = ids["<pad>"] if start is None else start
    rows[UNKNOWN_TOKEN_ID] = ids["<unk>"]
    rows[END_TOKEN_ID] = ids["</s>"]
    has_row = rows[END_TOKEN_ID + 1 :] >= 0  # of those that are text
    if has_row.sum() < LEAST_SHARE_WITH_ROWS * len(has_row):
        raise ValueError(
            f"{ids.path} must be the vocabulary of the SentencePiece models. "
            f"Received: one with {has_row.sum()} of {len(has_row)} pieces."
        )
    return rows


def check_row(row, path, name):
    """Raises `ValueError` unless an id in a file can be a row."""
    if type(row) is not int or row < 0:
        raise ValueError(
            f"{path} must have whole numbers of at least 0 as ids. Received: "
            f"{quoted(row)} for {quoted(name)}."
        )


def _set_embeddings(model, marian):
    """Sets the embeddings and the logits from the rows of their pieces."""
    weights, shared = marian.weights, "model.shared.weight"
    source = weights.vectors("model.encoder.embed_tokens.weight", shared)
    target = weights.vectors("model.decoder.embed_tokens.weight", shared)
    scale = 1.0 if marian.scales_embeddings else model.hidden_dim**-0.5
    for layer, matrix, rows in (
        (model.source_embedding, source, marian.rows),
        (model.target_embedding, target, marian.target_rows),
    ):
        vectors = scale * _taken(matrix, rows)
        weights.set(layer.embeddings, vectors, "embed_tokens")
    if model.output_projection is not None:
        matrix = target
        if not marian.ties_output:
            matrix = weights.vectors("lm_head.weight")
        kernel = _taken(matrix, marian.target_rows).T
        weights.set(model.output_projection.kernel, kernel, "lm_head.weight")
    bias = _taken(weights["final_logits_bias"].ravel(), marian.target_rows)
    is_token = marian.target_rows >= 0
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

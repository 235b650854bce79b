"""The weights of a model in a LiteRT file, each stored once."""

import contextlib

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.positional_encoding import LearnedPositionalEncoding
from keras_transformer.tensors.slices import take


class Weights:
    """The weights of a model, in the form in which a file stores them.

    Left to itself, the converter stores an embedding twice. In int8 it writes
    a table to look up in, with one scale for all rows, beside the matrix of the
    logits, with one for each; and it keeps a table that is looked up in a loop
    as floats, which the loop carries. Here ids are looked up in the bytes of
    the matrix, so the file holds them once, and so are learned positions.

    Args:
        model: The `Transformer`.
        quantization: As for `export_litert`.
        screen: A `Screen`, whose weights the file is to hold too.

    Attributes:
        quantization: As for `export_litert`.
        screen: As given.
        variables: The variables that the file must hold.
    """

    def __init__(self, model, quantization=None, screen=None):
        self.quantization = quantization
        self.screen = screen
        self.variables = [weight.value for weight in model.weights]
        self._weights = model.weights
        self._tables = []  # (layer, function to look up in it, its parts)
        if screen is not None:
            self.variables += screen.variables
        if quantization is None:
            return
        form, look_up_in = FORMS[quantization]
        for layer, table in _looked_up(model):
            parts = form(ops.convert_to_numpy(table))
            parts = [tf.Variable(part, trainable=False) for part in parts]
            self.variables += parts
            self._tables.append((layer, look_up_in, parts))

    @contextlib.contextmanager
    def read(self):
        """Reads all weights here, for a graph that is traced inside.

        Read before any loop, they become constants that all signatures share;
        LiteRT cannot read a variable inside a loop.
        """
        weights = [(weight, tf.identity(weight)) for weight in self._weights]
        for layer, look_up_in, parts in self._tables:
            # Hides the method of the class.
            layer.look_up = look_up_in(*map(tf.identity, parts))
        screen = self.screen
        reads = contextlib.nullcontext() if screen is None else screen.read()
        try:
            with keras.StatelessScope(state_mapping=weights), reads:
                yield
        finally:
            for layer, *_ in self._tables:
                del layer.look_up


def _looked_up(model):
    """The layers that look rows up, each once, and what they look up in."""
    embeddings = [model.source_embedding, model.target_embedding]
    positions = [model.source_positions, model.target_positions]
    return [
        *((layer, layer.embeddings) for layer in dict.fromkeys(embeddings)),
        *(
            (layer, layer.position_embeddings)
            for layer in positions
            if isinstance(layer, LearnedPositionalEncoding)
        ),
    ]


def int8_form(table):
    """Quantises rows as the converter does: int8 `(V, D)`, scales `(V, 1)`."""
    # In double precision, or the last bit of some values differs.
    table = table.astype("float64")
    scales = np.abs(table).max(axis=1, keepdims=True) / 127
    # LiteRT refuses 0 as a scale, and what float32 has only as a subnormal.
    is_nothing = scales < np.finfo("float32").tiny
    table = np.where(is_nothing, 0, table)
    scales = np.where(is_nothing, 1, scales)
    rows = table / scales
    # Rounds halves away from 0, where NumPy rounds them to even: a few in 16
    # million values.
    whole = np.trunc(rows)
    is_half = np.abs(rows - whole) == 0.5
    rows = np.where(is_half, whole + np.sign(rows), np.round(rows))
    return rows.astype("int8"), scales.astype("float32")


def _int8_table(table):
    """`int8_form`, with the bits `(V, 1)` of the scales as int32.

    The converter would write floats that are looked up in 8 bits as well, with
    one scale for all: the smallest would become 0.
    """
    rows, scales = int8_form(table)
    return rows, scales.view("int32")


def _look_up_int8(rows, scale_bits):
    def look_up(ids):
        taken = ops.cast(take(rows, ids), "float32")
        return taken * tf.bitcast(take(scale_bits, ids), tf.float32)

    return look_up


def _float16_table(table):
    """The bits `(V, D)` as int16, as LiteRT cannot gather rows of float16."""
    return (table.astype("float16").view("int16"),)


def _look_up_float16(bits):
    def look_up(ids):
        taken = tf.bitcast(take(bits, ids), tf.float16)
        return ops.cast(taken, "float32")

    return look_up


# Functions that make the stored form of an embedding, and look up in it.
FORMS = {
    "int8": (_int8_table, _look_up_int8),
    "float16": (_float16_table, _look_up_float16),
}

"""Requests that TensorFlow Serving answers before a model is ready.

The first call of a graph is slower than later ones; with these requests the
server makes it itself while it loads the model.
"""

import os

import numpy as np
import tensorflow as tf

from keras_transformer.batches import pad_rows
from keras_transformer.pieces import end_sources
from keras_transformer.special_tokens import END_TOKEN_ID

# Where TensorFlow Serving looks for them.
FOLDER = "assets.extra"
FILE = "tf_serving_warmup_requests"

# Tokens of the sentences of each call. The compiled signatures get no requests:
# where XLA is off, the server would refuse the model.
LENGTHS = ((1,), (5, 0, 20, 40))


def write_warmup_requests(translator, folder):
    """Writes requests for the signatures that run anywhere.

    Args:
        translator: The `Translator` that `folder` is an export of.
        folder: Folder of the SavedModel.
    """
    path = os.path.join(folder, FOLDER)
    os.makedirs(path, exist_ok=True)
    with tf.io.TFRecordWriter(os.path.join(path, FILE)) as writer:
        for lengths in LENGTHS:
            for signature, inputs in _inputs(translator, lengths):
                writer.write(prediction_log(signature, inputs))


def prediction_log(signature: str, inputs) -> bytes:
    """Makes a `PredictionLog` of TensorFlow Serving with one request.

    Encoded by hand, as tensorflow-serving-api is a large dependency for four
    nested messages: the numbers are those of their fields in
    `prediction_log.proto`, `predict.proto` and `model.proto`.

    Args:
        signature: Name of the signature.
        inputs: Dictionary of the arrays that it is called with, by name.
    """
    model_spec = _field(3, signature.encode())
    request = _field(1, model_spec)
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        request += _field(2, _field(1, name.encode()) + _field(2, tensor))
    predict_log = _field(1, request)
    return _field(6, predict_log)


def _inputs(translator, lengths):
    """Yields the name of each signature, and inputs to call it with."""
    tokenizer = translator.tokenizer
    longest = translator.longest_source - 1  # leaves the end token
    lengths = [min(length, longest) for length in lengths]
    ordinary = range(END_TOKEN_ID + 1, tokenizer.vocabulary_size)
    rows = [np.resize(ordinary, length).tolist() for length in lengths]
    # A text that is joined and split again may have more tokens.
    texts = [
        text
        for text in tokenizer.decode(rows)
        if len(tokenizer.encode(text)) <= longest
    ]
    yield "serving_default", {"text": np.array(texts, dtype=object)}
    yield "translate_ids", {"source_ids": pad_rows(end_sources(rows))}


def _field(number, content):
    """A length-delimited field of a protocol buffer."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number):
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])

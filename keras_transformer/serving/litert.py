"""LiteRT: one file that takes and returns strings on small machines."""

import functools
import os
import sys

import numpy as np
import tensorflow as tf
from keras import ops
from tensorflow.lite.python import schema_py_generated as schema

from keras_transformer.checks import check_choice
from keras_transformer.checks import check_flag
from keras_transformer.checks import check_positive
from keras_transformer.decoding import DecodingLoop
from keras_transformer.layer import check_not_quantized
from keras_transformer.masking import padding_mask
from keras_transformer.serving.export_note import METADATA
from keras_transformer.serving.export_note import note_of
from keras_transformer.serving.litert_compaction import compacted
from keras_transformer.serving.litert_contents import foreign_operations
from keras_transformer.serving.litert_file import Facts
from keras_transformer.serving.litert_float16 import LARGEST_FLOAT16
from keras_transformer.serving.litert_float16 import store_in_float16
from keras_transformer.serving.litert_screen import screen_for
from keras_transformer.serving.litert_weights import Weights
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.system.atomic import temporary_folder
from keras_transformer.system.atomic import write_file
from keras_transformer.system.paths import check_file_to_write
from keras_transformer.tensorflow_only.graphs import graph_for
from keras_transformer.weights import check_finite_model

QUANTIZATIONS = (None, "float16", "int8")

# From this `hidden_dim` on, a step reads many weights.
LARGE_HIDDEN_DIM = 256


def export_litert(
    translator,
    path,
    quantization: str | None = None,
    text: bool = True,
    steps: bool = True,
    source_length: int | None = None,
    screening: bool = True,
    overwrite: bool = False,
    verbose: int = 0,
):
    """Writes what `Translator.export_litert` describes."""
    path = os.fsdecode(path)
    check_choice(QUANTIZATIONS, quantization=quantization)
    check_flag(text=text, steps=steps, screening=screening, overwrite=overwrite)
    if source_length is not None:
        _check_source_length(source_length, translator.longest_source)
        text = steps = False
    check_not_quantized(translator.model)
    check_finite_model(translator.model)
    if quantization == "float16":
        _check_fits_float16(translator.model)
    text = text and translator.search.num_hypotheses == 1
    if text:
        _check_tokenizers(translator)
    check = functools.partial(check_file_to_write, path, overwrite)
    check()
    translator = translator.with_dtype("float32")
    screen = None
    if screening and quantization is None and source_length is None:
        screen = screen_for(translator.model, translator.search)
    weights = Weights(translator.model, quantization, screen)
    graph = _LiteRTGraph(translator, weights, source_length)
    signatures = graph.signatures(text, steps)
    metadata = {METADATA: note_of(translator)}
    content = _convert(weights, signatures, metadata, verbose)
    _check_operations(content, translator)
    write_file(path, content, check)


def convert_function(weights, function, *specs) -> bytes:
    """Makes a LiteRT file of one function of a model.

    Args:
        weights: The `Weights` that the function reads.
        function: Function of tensors to a dictionary of tensors.
        *specs: `tf.TensorSpec` of each argument, with its name.
    """
    signatures = {"serving_default": _traceable(weights, function, *specs)}
    return _convert(weights, signatures)


def hypotheses_per_batch(model, quantization: str | None = None) -> int:
    """How many hypotheses of a model LiteRT best decodes at once.

    Few, so that what a step computes stays in the processor's caches, and as
    LiteRT keeps several copies of what a loop carries; but more, the larger
    the weights that each step reads.

    Args:
        model: The `Transformer`.
        quantization: As for `export_litert`.
    """
    # Multiples of 7, the rows that XNNPACK multiplies at a time with AVX-512: 8
    # rows cost as much as 14.
    best = 56 if model.hidden_dim >= LARGE_HIDDEN_DIM else 28
    return best // 2 if quantization == "int8" else best


def _traceable(weights, function, *specs):
    """Makes a `tf.function` that reads `Weights` first."""

    def with_weights_read(*arguments):
        with weights.read(), graph_for("litert"):
            return function(*arguments)

    return tf.function(
        with_weights_read, input_signature=specs, autograph=False
    )


def _convert(weights, signatures, metadata=None, verbose=0):
    def say(stage):
        if verbose:
            print(stage, file=sys.stderr, flush=True)

    module = tf.Module()
    module.variables_to_hold = weights.variables
    with temporary_folder() as folder:
        say("Tracing the model and its search.")
        tf.saved_model.save(module, folder, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=list(signatures)
        )
        # Those of tensorflow-text; any others raise an error later.
        converter.allow_custom_ops = True
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if weights.quantization == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        say("Converting; a minute for base size.")
        content = converter.convert()
    say("Making the file smaller.")
    file = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content))
    if weights.screen is not None:
        weights.screen.store(file)
    if weights.quantization == "float16":
        store_in_float16(file)
    return compacted(file, next(iter(signatures)), metadata)


def _check_fits_float16(model):
    for weight in model.weights:
        if len(weight.shape) < 2:
            continue  # stays in float32
        largest = float(ops.max(ops.abs(ops.cast(weight, "float32"))))
        if largest > LARGEST_FLOAT16:
            raise ValueError(
                f"Matrices must be at most {LARGEST_FLOAT16:g} to be written "
                f"in float16. Received: {weight.path} with {largest:g}."
            )


def _check_source_length(source_length, longest):
    check_positive(source_length=source_length)
    if source_length > longest:
        raise ValueError(
            f"`source_length` must not be over the {longest:,} tokens that the "
            f"model takes. Received: source_length={source_length}."
        )


def _check_tokenizers(translator):
    for tokenizer in (translator.tokenizer, translator.target_tokenizer):
        if not tokenizer.is_fast:
            raise ValueError(
                "LiteRT splits text in the file with unigram models only, "
                "which have neither byte fallback nor `symbols` and make "
                "spaces of tabs. Received: another tokenizer. Pass "
                "`text=False` (`--no-text`); `LiteRTTranslator` takes and "
                "returns strings all the same."
            )


def _check_operations(content, translator):
    foreign = foreign_operations(content)
    if not foreign:
        return
    advice = "This is an error of keras-transformer; please report it."
    own = [
        type(part).__name__
        for part in (translator.search, translator.model)
        if not type(part).__module__.startswith("keras_transformer.")
    ]
    if own:
        advice = (
            f"Use other operations in {' and '.join(own)}, such as `ops.top_k` "
            "for `ops.argmax`."
        )
    raise RuntimeError(
        "A LiteRT file must have only built-in operations and those of "
        f"tensorflow-text. Received: {', '.join(foreign)}. {advice}"
    )


class _LiteRTGraph:
    """The functions of the file."""

    def __init__(self, translator, weights, source_length):
        self.translator = translator
        self.model = translator.model
        self.weights = weights
        self.source_length = source_length

    def signatures(self, text, steps):
        """Makes the signatures: functions by name."""
        shape = [None, None]
        if self.source_length is not None:
            shape = [1, self.source_length]
        ids = tf.TensorSpec(shape, tf.int32, name="source_ids")
        signatures = {
            "translate_ids": _traceable(self.weights, self._translate_ids, ids),
            "tokenizers": tf.function(
                self._tokenizers,
                input_signature=[tf.TensorSpec([1], tf.int32, name="start")],
                autograph=False,
            ),
        }
        if steps:
            signatures["encode"] = _traceable(self.weights, self._encode, ids)
            signatures["decode_step"] = _traceable(
                self.weights, self._decode_step, *self._step_specs()
            )
        if text:
            signatures["translate_text"] = tf.function(
                self._translate_text(signatures["translate_ids"]),
                input_signature=[tf.TensorSpec([1], tf.string, name="text")],
                autograph=False,
            )
        return signatures

    def _translate_ids(self, source_ids):
        decode = DecodingLoop(
            self.model, self.translator.search, screen=self.weights.screen
        )
        # Sizes change between segments, which fixed shapes rule out.
        is_fixed = self.source_length is not None
        found = (decode.whole if is_fixed else decode.in_segments)(
            {"source_ids": source_ids}
        )
        target_ids, scores = found.target_ids, found.scores
        if self.translator.search.num_hypotheses == 1:
            target_ids, scores = target_ids[:, 0], scores[:, 0]
        return {"target_ids": target_ids, "score": scores}

    def _translate_text(self, translate_ids):
        """Makes a function for one text, whose ragged ids are a vector."""
        source = self.translator.tokenizer.tensor_tokenizer()
        target = self.translator.target_tokenizer.tensor_tokenizer()

        def translate_text(text):
            pieces = source.encode(text).flat_values
            # Empty text has no end token, only padding.
            end = tf.where(tf.size(pieces) > 0, END_TOKEN_ID, PAD_TOKEN_ID)
            source_ids = tf.concat([pieces, tf.reshape(end, [1])], axis=0)
            result = translate_ids(tf.expand_dims(source_ids, 0))
            target_ids = result["target_ids"][0]
            is_content = padding_mask(target_ids) & (target_ids != END_TOKEN_ID)
            length = tf.reduce_sum(tf.cast(is_content, tf.int32))
            row = tf.RaggedTensor.from_row_lengths(
                target_ids[:length], tf.reshape(length, [1]), validate=False
            )
            return {
                "translation": target.operations.detokenize(row),
                "score": result["score"],
            }

        return translate_text

    def _encode(self, source_ids):
        cache = self.model.decoder.encoded_cache(self.model.encode(source_ids))
        return {
            "encoded_keys": tf.stack([keys for keys, _ in cache]),
            "encoded_values": tf.stack([values for _, values in cache]),
        }

    def _decode_step(
        self,
        token_ids,
        position,
        source_ids,
        encoded_keys,
        encoded_values,
        keys,
        values,
    ):
        logits, cache = self.model.decode_step(
            token_ids[:, tf.newaxis],
            position[0],
            _pairs(keys, values),
            _pairs(encoded_keys, encoded_values),
            padding_mask(source_ids),
        )
        return {
            "logits": logits[:, 0],
            "keys": tf.stack([keys for keys, _ in cache]),
            "values": tf.stack([values for _, values in cache]),
        }

    def _step_specs(self):
        layers = self.model.decoder.layers

        def cache(name, head_dim):
            shape = [len(layers), None, self.model.num_heads]
            return tf.TensorSpec([*shape, None, head_dim], name=name)

        return [
            tf.TensorSpec([None], tf.int32, name="token_ids"),
            tf.TensorSpec([1], tf.int32, name="position"),
            tf.TensorSpec([None, None], tf.int32, name="source_ids"),
            cache("encoded_keys", layers[0].key_dim),
            cache("encoded_values", layers[0].value_dim),
            cache("keys", layers[0].key_dim),
            cache("values", layers[0].value_dim),
        ]

    def _tokenizers(self, start):
        source = self.translator.tokenizer
        target = self.translator.target_tokenizer
        models = {
            "source_model": np.frombuffer(source.model, "uint8"),
            "target_model": np.frombuffer(target.model, "uint8"),
        }
        search = self.translator.search
        facts = Facts(
            is_fast=target.is_fast,
            longest_source=(
                self.source_length or self.translator.longest_source
            ),
            num_slots=search.num_slots,
            num_hypotheses=search.num_hypotheses,
            hypotheses_per_batch=hypotheses_per_batch(
                self.model, self.weights.quantization
            ),
        )

        # An output must depend on an input.
        def sliced(x, start):
            size = -1 if self.source_length is None else len(x)
            return tf.slice(x, start, [size])

        return {
            **{name: sliced(x, start) for name, x in models.items()},
            **{
                name: sliced(x, start * 0)
                for name, x in facts.outputs().items()
            },
        }


def _pairs(keys, values):
    return list(zip(tf.unstack(keys), tf.unstack(values), strict=True))

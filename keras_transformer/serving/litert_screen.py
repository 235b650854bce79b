"""Logits of rounded weights, with which a search in a LiteRT file screens."""

import contextlib

import numpy as np
import tensorflow as tf
from keras import ops
from tensorflow.lite.python import schema_py_generated as schema

from keras_transformer.search import ScreenedLogits
from keras_transformer.serving.litert_weights import int8_form
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.tensorflow_only.products import matrix_product
from keras_transformer.tensors.slices import take
from keras_transformer.transformer import Transformer

# Fewest weights `V D` of the logits: with a million, what is saved of the
# product is no more than what the choice costs.
LEAST_WEIGHTS = 4_000_000

# Errors of rounding are taken to be independent (Higham and Mary, 2019, "A New
# Approach to Probabilistic Rounding Error Analysis"), and their sum to be no
# more than this many standard deviations: one in 10^11 is.
STANDARD_DEVIATIONS = 7

# LiteRT rounds each vector to integers such that its least and its largest
# number become -128 and 127. Beside the vector are put -128 and 127 steps:
# these become the ends, and the rest, multiples of the step already, stay as
# they are.
ENDS = (-128, 127)

# The converter's version of a product of floats and int8, a scale for each row.
VERSION = 12


def screen_for(model, search):
    """Makes the `Screen` of a model; `None` where it is of no use to a search.

    Args:
        model: The `Transformer`.
        search: The `Search`.
    """
    is_known = type(model) is Transformer  # or its logits may be its own
    num_weights = model.vocabulary_size * model.hidden_dim
    if is_known and search.chooses_largest and num_weights >= LEAST_WEIGHTS:
        return Screen(model)
    return None


class Screen:
    """Computes logits approximately, and says how far off they may be.

    Weights are rounded to 8 bits, with a scale for each token, and vectors to
    8 bits with one for each, which LiteRT multiplies as integers. What rounding
    takes from a vector is a vector too, which is rounded in turn: without it
    the largest logits could be told, but the sum of all probabilities would be
    off by thousandths.

    Args:
        model: The `Transformer`.

    Attributes:
        variables: The variables that the file must hold.
    """

    def __init__(self, model):
        self.model = model
        matrix = _output_matrix(model)  # (V, D)
        rows, self._scales = int8_form(matrix)
        rounded = rows * self._scales  # float32
        chosen = np.ones(len(matrix), bool)
        chosen[[PAD_TOKEN_ID, model.start_token_id]] = False
        errors = (matrix - rounded)[chosen]
        self._weight_error = float(np.sqrt((errors**2).mean(axis=1)).max())
        norms = np.linalg.norm(rounded[chosen], axis=1)
        self._largest_norm = float(norms.max())
        beside = ((0, 0), (0, len(ENDS)))
        self._rows = np.pad(rows, beside)
        self._rounded = np.pad(rounded, beside)
        self.variables = [tf.Variable(self._rounded, trainable=False)]
        if model.output_projection is not None:
            self.variables.append(tf.Variable(matrix, trainable=False))

    @contextlib.contextmanager
    def read(self):
        """Reads the weights here, for a graph that is traced inside."""
        self._read = [tf.identity(variable) for variable in self.variables]
        try:
            yield
        finally:
            del self._read

    def __call__(self, vectors) -> ScreenedLogits:
        """Computes logits from the last vectors of a step, `(B, W, D)`."""
        bias = self.model.logit_bias

        def of_tokens(token_ids):
            if self.model.output_projection is None:
                rows = self.model.target_embedding.look_up(token_ids)
            else:
                rows = take(self._read[1], token_ids)
            logits = ops.sum(rows * ops.expand_dims(vectors, 2), axis=-1)
            return logits if bias is None else logits + take(bias, token_ids)

        rounded = ops.transpose(self._read[0])
        size = ops.max(ops.abs(vectors), axis=-1, keepdims=True)
        step = ops.maximum(size, 1e-30) / max(ENDS)  # zeros have none
        rest, parts = vectors, []
        for _ in range(2):
            part = ops.round(rest / step) * step
            ends = step * ops.convert_to_tensor(ENDS, dtype="float32")
            part_and_ends = ops.concatenate([part, ends], axis=-1)
            parts.append(matrix_product(part_and_ends, rounded))
            rest, step = rest - part, step / (2 * max(ENDS))
        logits = ops.add(*parts)
        return ScreenedLogits(
            logits=logits if bias is None else logits + bias,
            most_error=self._most_error(vectors, rest),
            of_tokens=of_tokens,
            of_all=lambda: self.model.project(vectors),
        )

    def store(self, file: schema.ModelT):
        """Stores the rounded weights of a converted file in 8 bits.

        Raises:
            RuntimeError: If the file has no such product.
        """
        code = schema.OperatorCodeT()
        code.builtinCode = schema.BuiltinOperator.FULLY_CONNECTED
        code.deprecatedBuiltinCode = code.builtinCode
        code.version = VERSION
        file.operatorCodes.append(code)
        products = [
            (operator, graph.tensors[operator.inputs[1]])
            for graph in file.subgraphs
            for operator in graph.operators
            if self._is_screen(file, graph, operator)
        ]
        for operator, weights in products:
            operator.opcodeIndex = len(file.operatorCodes) - 1
            operator.builtinOptions.asymmetricQuantizeInputs = True
            weights.type = schema.TensorType.INT8
            weights.quantization = self._quantization()
            file.buffers[weights.buffer].data = self._rows.view("uint8").ravel()
        if not products:
            raise RuntimeError(
                "The converter must keep the product that screens tokens. This "
                "is an error of keras-transformer; please report it, and "
                "export with `screening=False`."
            )

    def _most_error(self, vectors, rest):
        """The most by which logits are off, `(B, W, 1)`.

        Args:
            vectors: What was rounded, `(B, W, D)`.
            rest: What that has taken from it.
        """
        of_weights = _sum_of_squares(vectors) * self._weight_error**2
        of_vectors = _sum_of_squares(rest) * (
            self._largest_norm**2 / self.model.hidden_dim
        )
        return STANDARD_DEVIATIONS * ops.sqrt(of_weights + of_vectors)

    def _is_screen(self, file, graph, operator):
        code = file.operatorCodes[operator.opcodeIndex].builtinCode
        if code != schema.BuiltinOperator.FULLY_CONNECTED:
            return False
        weights = graph.tensors[operator.inputs[1]]
        data = file.buffers[weights.buffer].data
        return (
            tuple(weights.shape) == self._rounded.shape
            and data is not None
            and np.array_equal(
                np.frombuffer(data, "uint8"),
                self._rounded.view("uint8").ravel(),
            )
        )

    def _quantization(self):
        quantization = schema.QuantizationParametersT()
        quantization.scale = self._scales.ravel()
        quantization.zeroPoint = np.zeros(len(self._scales), "int64")
        return quantization


def _sum_of_squares(x):
    return ops.sum(x * x, axis=-1, keepdims=True)


def _output_matrix(model):
    """The matrix of the logits, float32 `(V, D)`."""
    if model.output_projection is None:
        return ops.convert_to_numpy(model.target_embedding.embeddings)
    return ops.convert_to_numpy(model.output_projection.kernel).T.copy()

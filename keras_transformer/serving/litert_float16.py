"""Weights in float16, in a LiteRT file that was converted in float32.

The converter would round every constant of a graph, also the epsilon of layer
normalisation and the frequencies of sinusoids, whose errors grow with the
position.
"""

import copy

import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

from keras_transformer.serving.litert_compaction import share_buffers

LARGEST_FLOAT16 = float(np.finfo("float16").max)

# What reads the matrices of a model. All other constants stay as they are.
READERS = (
    schema.BuiltinOperator.FULLY_CONNECTED,
    schema.BuiltinOperator.GATHER,
)


def store_in_float16(file: schema.ModelT):
    """Stores each matrix of a converted file in float16, if its values fit.

    They may not, even if those of the model do: the converter multiplies scales
    into matrices. LiteRT widens them again, once, when it loads the file.
    """
    share_buffers(file)
    halves = {}  # numbers of buffers, by those of float32
    for graph in file.subgraphs:
        for tensor in _matrices(file, graph):
            values = file.buffers[tensor.buffer].data.view("<f4")
            fits = np.max(np.abs(values), initial=0) <= LARGEST_FLOAT16
            if fits and tensor.buffer not in halves:
                halves[tensor.buffer] = len(file.buffers)
                half = schema.BufferT()
                half.data = values.astype("<f2").view("uint8")
                file.buffers.append(half)
    code = schema.OperatorCodeT()
    code.builtinCode = schema.BuiltinOperator.DEQUANTIZE
    code.deprecatedBuiltinCode = code.builtinCode
    code.version = 3  # of float16
    file.operatorCodes.append(code)
    for graph in file.subgraphs:
        read = {*graph.outputs}.union(*(x.inputs for x in graph.operators))
        for place in sorted(read - {-1}):  # an optional input that is left out
            tensor = graph.tensors[place]
            if _is_float32(tensor) and tensor.buffer in halves:
                half = copy.copy(tensor)
                half.type = schema.TensorType.FLOAT16
                half.buffer = halves[tensor.buffer]
                tensor.buffer = 0  # nothing: it is computed
                widen = schema.OperatorT()
                widen.opcodeIndex = len(file.operatorCodes) - 1
                widen.inputs = [len(graph.tensors)]
                widen.outputs = [place]
                graph.tensors.append(half)
                graph.operators.insert(0, widen)


def _matrices(file, graph):
    """The constant float32 tensors of two axes that `READERS` read."""
    for operator in graph.operators:
        code = file.operatorCodes[operator.opcodeIndex].builtinCode
        for place in operator.inputs if code in READERS else ():
            if place == -1:  # no bias
                continue
            tensor = graph.tensors[place]
            is_constant = file.buffers[tensor.buffer].data is not None
            if is_constant and _is_float32(tensor) and len(tensor.shape) == 2:
                yield tensor


def _is_float32(tensor):
    return tensor.type == schema.TensorType.FLOAT32

"""Makes LiteRT files smaller by storing equal parts once.

The converter names every tensor, gives each its own buffer, and converts what
several signatures call once for each of them.
"""

import copy
import hashlib

import flatbuffers
import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

from keras_transformer.serving.litert_file import IDENTIFIER

# The format requires the bytes of a tensor to begin at a multiple of this.
ALIGNMENT = 16


def compacted(model: schema.ModelT, first: str, metadata=None) -> bytes:
    """Drops from a LiteRT file what is unused or duplicated.

    Only the inputs and outputs of a graph keep their names. Loops that several
    signatures share are stored once, so that LiteRT also arranges their weights
    in memory only once.

    Args:
        model: The file's content, which is changed.
        first: The signature whose graph is to come first. With fixed shapes,
            LiteRT arranges the weights of other graphs again at each call.
        metadata: Bytes by name, to add to the file's metadata.
    """
    for name, data in (metadata or {}).items():
        _add_metadata(model, name, data)
    for index, graph in enumerate(model.subgraphs):
        _order_by_need(graph)
        places = _number_by_use(graph)
        for signature in model.signatureDefs:
            if signature.subgraphIndex == index:
                for entry in (*signature.inputs, *signature.outputs):
                    entry.tensorIndex = places[entry.tensorIndex]
    share_buffers(model)
    while _share_subgraphs(model):
        pass  # graphs that call equal ones become equal only now
    _put_first(model, first)
    size = sum(
        len(buffer.data) for buffer in model.buffers if buffer.data is not None
    )
    builder = _Builder(size)
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


class _Builder(flatbuffers.Builder):
    """Aligns bytes as the format requires, which its Python code does not."""

    def StartVector(self, elemSize, numElems, alignment):  # noqa: N802, N803
        if elemSize == 1:
            alignment = ALIGNMENT
        return super().StartVector(elemSize, numElems, alignment)


def _add_metadata(model, name, data):
    entry, buffer = schema.MetadataT(), schema.BufferT()
    entry.name = name
    entry.buffer = len(model.buffers)
    buffer.data = np.frombuffer(data, "uint8")
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or ()), entry]


def share_buffers(model):
    """Keeps one of equal buffers in use, and the first, which is empty."""
    users = [
        *(tensor for graph in model.subgraphs for tensor in graph.tensors),
        *(model.metadata or ()),
    ]
    of_metadata = [] if model.metadataBuffer is None else model.metadataBuffer
    used = {0, *(user.buffer for user in users), *of_metadata}
    kept, places, place_of = [], {}, {}
    for number in sorted(used):
        data = model.buffers[number].data
        digest = hashlib.sha256(b"" if data is None else data).digest()
        if digest not in place_of:
            place_of[digest] = len(kept)
            kept.append(model.buffers[number])
        places[number] = place_of[digest]
    model.buffers = kept
    for user in users:
        user.buffer = places[user.buffer]
    if model.metadataBuffer is not None:
        model.metadataBuffer = [places[number] for number in of_metadata]


def _order_by_need(graph):
    """Puts each operation right before the first that reads its output.

    LiteRT runs operations in the order of the file, and keeps an output until
    the last operation that reads it.
    """
    maker_of = {
        tensor: operator
        for operator in graph.operators
        for tensor in operator.outputs
    }
    ordered = {}  # operators by their identity, in order

    def add(operator):
        pending = [operator]
        while pending:
            operator = pending[-1]
            makers = [maker_of.get(tensor) for tensor in operator.inputs]
            missing = [
                maker
                for maker in makers
                if maker is not None and id(maker) not in ordered
            ]
            if missing:
                pending.append(missing[0])
            else:
                ordered[id(pending.pop())] = operator

    makers = [maker_of.get(tensor) for tensor in graph.outputs]
    for operator in (*filter(None, makers), *graph.operators):
        add(operator)
    graph.operators = list(ordered.values())


def _number_by_use(graph):
    """Numbers the tensors of a graph in the order in which they are used.

    Equal graphs then have equal numbers. Unused tensors are dropped, and so are
    empty quantisation records, and all names except those of inputs and
    outputs.

    Returns:
        The new number of each tensor, by its old one.
    """
    ends = [*graph.inputs, *graph.outputs]
    users = [(graph, "inputs"), (graph, "outputs")]
    for operator in graph.operators:
        users += [(operator, "inputs"), (operator, "outputs")]
        if operator.intermediates is not None:
            users.append((operator, "intermediates"))
    places = {-1: -1}  # an optional argument that is left out
    kept = []
    for user, role in users:
        for tensor in getattr(user, role):
            if tensor not in places:
                places[tensor] = len(kept)
                kept.append(graph.tensors[tensor])
    for tensor in kept:
        if not _is_quantized(tensor.quantization):
            tensor.quantization = None
    for number in set(places) - {-1, *ends}:
        graph.tensors[number].name = None
    graph.tensors = kept
    for user, role in users:
        setattr(user, role, [places[tensor] for tensor in getattr(user, role)])
    return places


def _is_quantized(quantization):
    return quantization is not None and any(
        getattr(quantization, name) is not None
        for name in ("scale", "zeroPoint", "min", "max", "details")
    )


def _share_subgraphs(model):
    """Keeps one of equal graphs; returns whether there were any."""
    begins = {0, *(entry.subgraphIndex for entry in model.signatureDefs)}
    kept, places, place_of = [], [], {}
    for index, graph in enumerate(model.subgraphs):
        key = index if index in begins else _anonymous(graph)
        if key not in place_of:
            place_of[key] = len(kept)
            kept.append(graph)
        places.append(place_of[key])
    changed = len(kept) < len(model.subgraphs)
    model.subgraphs = kept
    _renumber_subgraphs(model, places)
    return changed


def _put_first(model, name):
    """Swaps the graph of a signature with the first."""
    [place] = [
        entry.subgraphIndex
        for entry in model.signatureDefs
        if entry.signatureKey == name.encode()
    ]
    graphs = model.subgraphs
    places = [*range(len(graphs))]
    for swapped in (graphs, places):
        swapped[0], swapped[place] = swapped[place], swapped[0]
    _renumber_subgraphs(model, places)


def _renumber_subgraphs(model, places):
    """Updates all references to graphs to `places`, by their old numbers."""
    for graph in model.subgraphs:
        for operator in graph.operators:
            for options in (operator.builtinOptions, operator.builtinOptions2):
                for name in vars(options) if options else ():
                    if name.endswith("SubgraphIndex"):
                        setattr(options, name, places[getattr(options, name)])
    for signature in model.signatureDefs:
        signature.subgraphIndex = places[signature.subgraphIndex]


def _anonymous(graph):
    """The bytes of a graph without names."""
    graph = copy.copy(graph)
    graph.name = None
    graph.tensors = [copy.copy(tensor) for tensor in graph.tensors]
    for tensor in graph.tensors:
        tensor.name = None
    builder = flatbuffers.Builder()
    builder.Finish(graph.Pack(builder))
    return bytes(builder.Output())

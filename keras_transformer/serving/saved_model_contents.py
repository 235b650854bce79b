"""What is in a SavedModel, read without running it."""

import functools
import importlib.resources
import os

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.serving.export_note import FILE
from keras_transformer.serving.export_note import read_note

# Signatures that must run wherever TensorFlow does; the others need XLA.
PORTABLE_SIGNATURES = ("serving_default", "translate_ids")

# The prefix of operations, and the attribute of functions, that XLA compiles
# when they run, which TensorFlow Serving by default refuses on a CPU.
XLA = "Xla"
COMPILED = "_XlaMustCompile"


def read(path) -> tuple[list[str], bytes | None]:
    """Inspects a SavedModel.

    Returns:
        Its `foreign_operations`, and the note on what it was made from or
        `None`.

    Raises:
        FileNotFoundError: As `read_graph`.
        ValueError: As `read_graph`.
    """
    path = os.fspath(path)
    graph = read_graph(path)
    try:
        foreign = foreign_operations(graph)
    except KeyError as error:
        raise ValueError(
            f"The SavedModel is damaged. Received: {path!r}, whose graph names "
            f"{error}, which it lacks."
        ) from error
    return foreign, read_note(os.path.join(path, FILE))


def read_graph(path):
    """Reads the graph of a SavedModel and its signatures, without weights.

    Args:
        path: Folder of the SavedModel.

    Returns:
        A `MetaGraphDef`.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If the folder holds no SavedModel, or one that is damaged
            or lacks the signatures of `export_saved_model`.
    """
    path = os.fspath(path)
    if not os.path.isdir(path):
        raise FileNotFoundError(f"No such folder: {path!r}.")
    file = os.path.join(path, "saved_model.pb")
    if not os.path.isfile(file):
        raise ValueError(
            "The folder must hold a SavedModel. Received: "
            f"{path!r} without saved_model.pb. Is it the folder of all "
            "versions? Then add the version, such as /1."
        )
    try:
        with open(file, "rb") as stream:
            saved_model = saved_model_pb2.SavedModel.FromString(stream.read())
        (graph,) = saved_model.meta_graphs
    except (DecodeError, ValueError) as error:
        raise ValueError(
            f"The SavedModel is damaged. Received: {file!r} of "
            f"{os.path.getsize(file):,} bytes."
        ) from error
    missing = set(PORTABLE_SIGNATURES) - set(graph.signature_def)
    if missing:
        raise ValueError(
            "The SavedModel must be one that `export_saved_model` has written. "
            f"Received: {path!r} without the signatures "
            f"{', '.join(sorted(missing))}."
        )
    return graph


def foreign_operations(graph) -> list[str]:
    """Lists operations of a SavedModel that, say, TensorFlow Serving may lack.

    Args:
        graph: A `MetaGraphDef`.

    Returns:
        Names of operations anywhere in the graph that are not in
        `portable_ops.txt`; and of those that need XLA, if the signatures
        `serving_default` and `translate_ids`, the functions they call, or the
        restoring of weights use them.
    """
    everything = _Reachable(graph.graph_def)
    for node in graph.graph_def.node:
        everything.visit_node(node)
    for function in graph.graph_def.library.function:
        everything.visit_function(function.signature.name)
    foreign = everything.operations - portable_operations()
    return sorted(foreign | xla_operations(graph, PORTABLE_SIGNATURES))


def xla_operations(graph, signatures) -> set[str]:
    """The operations and functions of signatures that need XLA."""
    reachable = _Reachable(graph.graph_def)
    for name in signatures:
        for output in graph.signature_def[name].outputs.values():
            reachable.visit_tensor(output.name)
    reachable.visit_tensor(graph.saver_def.restore_op_name)
    return reachable.compiled | {
        name for name in reachable.operations if name.startswith(XLA)
    }


@functools.cache
def portable_operations() -> frozenset[str]:
    """Operations that TensorFlow and tensorflow-text have had since 2.12."""
    file = importlib.resources.files(__package__) / "portable_ops.txt"
    lines = file.read_text("utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


class _Reachable:
    """The operations that some tensors of a graph depend on."""

    def __init__(self, graph_def):
        self.nodes = {node.name: node for node in graph_def.node}
        self.functions = {
            function.signature.name: function
            for function in graph_def.library.function
        }
        self.operations = set()
        self.compiled = set()
        self._visited = set()

    def visit_tensor(self, name):
        """Visits the node of a tensor, and all nodes that it depends on."""
        waiting = [name]
        while waiting:
            name = waiting.pop().lstrip("^").partition(":")[0]
            if name not in self._visited:
                self._visited.add(name)
                self.visit_node(self.nodes[name])
                waiting.extend(self.nodes[name].input)

    def visit_node(self, node):
        """Notes a node's operation, and visits the functions that it calls."""
        if node.op in self.functions:
            self.visit_function(node.op)
        else:
            self.operations.add(node.op)
        for value in node.attr.values():
            for function in (value.func, *value.list.func):
                if function.name in self.functions:
                    self.visit_function(function.name)

    def visit_function(self, name):
        """Visits the nodes of a function."""
        if ("function", name) in self._visited:
            return
        self._visited.add(("function", name))
        function = self.functions[name]
        if function.attr[COMPILED].b:
            self.compiled.add(COMPILED)
        for node in function.node_def:
            self.visit_node(node)

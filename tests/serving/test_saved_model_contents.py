"""SavedModels run where there is TensorFlow, and no XLA."""

import json

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import keras_transformer as kt
from keras_transformer.serving.saved_model_contents import foreign_operations
from keras_transformer.serving.saved_model_contents import portable_operations
from keras_transformer.serving.saved_model_contents import read
from keras_transformer.serving.saved_model_contents import read_graph
from keras_transformer.serving.saved_model_contents import xla_operations

TEXTS = ["the cat sees the dog", "", "fox", "the hen sees the fox " * 9]


@pytest.mark.slow
def test_export_runs_where_xla_is_off(small, run_program):
    process = run_program(
        "run_without_xla", small.saved_model, json.dumps(TEXTS), check=False
    )
    assert process.stdout, process.stderr[-3000:]
    assert json.loads(process.stdout) == small.translator(TEXTS)
    # So that the switch is known to do something.
    assert "XLA compilation disabled" in process.stderr
    assert process.returncode == 1


def test_export_has_portable_operations_alone(small):
    graph = read_graph(small.saved_model)
    assert foreign_operations(graph) == []
    assert xla_operations(graph, ["translate_compiled"]) != set()
    assert xla_operations(graph, ["translate_ids_compiled"]) != set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "search",
    [
        kt.BeamSearch(3, num_hypotheses=2, repetition_penalty=1.5),
        kt.Sampling(
            top_k=5,
            top_p=0.9,
            no_repeat_ngram_size=2,
            forbidden_sequences=[[4, 5, 6], [7]],
        ),
    ],
    ids=["beam", "sampling"],
)
def test_every_search_has_portable_operations_alone(
    make_small, search, tmp_path
):
    translator = make_small(
        "bpe", search, positional_encoding="learned", max_length=64
    )
    translator.export_saved_model(tmp_path / "1")
    assert foreign_operations(read_graph(tmp_path / "1")) == []


def test_foreign_operations_are_found_in_functions_of_functions(small):
    graph = read_graph(small.saved_model)
    loops = [
        node
        for function in graph.graph_def.library.function
        for node in function.node_def
        if node.op in ("While", "StatelessWhile")
    ]
    functions = {
        function.signature.name: function
        for function in graph.graph_def.library.function
    }
    body = functions[loops[0].attr["body"].func.name]
    body.node_def.add(name="new", op="NewOperation")
    assert foreign_operations(graph) == ["NewOperation"]


def test_functions_for_xla_are_found_where_a_portable_signature_calls(small):
    graph = read_graph(small.saved_model)
    graph.signature_def["serving_default"].CopyFrom(
        graph.signature_def["translate_compiled"]
    )
    assert "_XlaMustCompile" in foreign_operations(graph)


def test_list_of_operations_is_whole():
    names = portable_operations()
    assert {"MatMul", "While", "TFText>FastSentencepieceTokenize"} <= names
    assert len(names) > 1000


def test_what_is_no_export_is_named(small, tmp_path):
    with pytest.raises(FileNotFoundError, match="No such folder: '.*missing'"):
        read_graph(tmp_path / "missing")
    with pytest.raises(ValueError, match="must hold a SavedModel.*such as /1"):
        read_graph(small.saved_model.parent)
    content = (small.saved_model / "saved_model.pb").read_bytes()
    for damaged in (b"", b"no model", content[: len(content) // 2]):
        (tmp_path / "saved_model.pb").write_bytes(damaged)
        with pytest.raises(ValueError, match="SavedModel is damaged.*bytes"):
            read_graph(tmp_path)
    saved_model = saved_model_pb2.SavedModel.FromString(content)
    saved_model.meta_graphs[0].saver_def.restore_op_name = "nothing"
    (tmp_path / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    with pytest.raises(ValueError, match="SavedModel is damaged.*'nothing', w"):
        read(tmp_path)
    tf.saved_model.save(tf.Module(), str(tmp_path / "other"))
    message = "one that `export_saved_model` has written.*serving_default"
    with pytest.raises(ValueError, match=message):
        read_graph(tmp_path / "other")

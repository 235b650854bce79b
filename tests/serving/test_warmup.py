"""TensorFlow Serving finds requests in an export, and can answer them."""

import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from tensorflow.core.framework import tensor_pb2

from keras_transformer.serving.warmup import prediction_log
from keras_transformer.serving.warmup import write_warmup_requests

FIELD = descriptor_pb2.FieldDescriptorProto

# The messages of TensorFlow Serving, by name: fields by number, their names
# and the messages that they hold. Tensors are read apart.
MESSAGES = {
    "PredictionLog": {6: ("predict_log", "PredictLog")},
    "PredictLog": {1: ("request", "PredictRequest")},
    "PredictRequest": {
        1: ("model_spec", "ModelSpec"),
        2: ("inputs", "InputsEntry"),
    },
    "InputsEntry": {1: ("key", None), 2: ("value", None)},
    "ModelSpec": {1: ("name", None), 3: ("signature_name", None)},
}


@pytest.fixture(scope="module")
def parse():
    """Gives a function that reads a `PredictionLog`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="prediction_log.proto", package="test", syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in fields.items():
            message.field.add(
                name=field,
                number=number,
                type=FIELD.TYPE_MESSAGE if kind else FIELD.TYPE_BYTES,
                type_name=kind and f".test.{kind}",
                label=FIELD.LABEL_REPEATED
                if field == "inputs"
                else FIELD.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("test.PredictionLog")
    return message_factory.GetMessageClass(descriptor).FromString


def test_requests_are_answered_by_the_export(small, parse):
    path = small.saved_model / "assets.extra" / "tf_serving_warmup_requests"
    signatures = tf.saved_model.load(str(small.saved_model)).signatures
    called = []
    for record in tf.data.TFRecordDataset(str(path)):
        log = parse(record.numpy())
        request = log.predict_log.request
        name = request.model_spec.signature_name.decode()
        inputs = {
            entry.key.decode(): tf.make_ndarray(
                tensor_pb2.TensorProto.FromString(entry.value)
            )
            for entry in request.inputs
        }
        called.append((name, *(len(value) for value in inputs.values())))
        outputs = signatures[name](
            **{key: tf.constant(value) for key, value in inputs.items()}
        )
        if "text" in inputs:
            texts = [text.decode() for text in inputs["text"]]
            found = outputs["translation"].numpy()
            assert [text.decode() for text in found] == (
                small.translator(texts)
            )
    assert called == [
        ("serving_default", 1),
        ("translate_ids", 1),
        ("serving_default", 4),
        ("translate_ids", 4),
    ]


def test_requests_are_within_the_limit_of_the_model(
    small, parse, tmp_path, monkeypatch
):
    limit = 8
    monkeypatch.setattr(small.translator.model, "max_length", limit)
    write_warmup_requests(small.translator, tmp_path)
    path = tmp_path / "assets.extra" / "tf_serving_warmup_requests"
    lengths = []
    for record in tf.data.TFRecordDataset(str(path)):
        for entry in parse(record.numpy()).predict_log.request.inputs:
            proto = tensor_pb2.TensorProto.FromString(entry.value)
            value = tf.make_ndarray(proto)
            if entry.key == b"text":
                for text in value.astype(str):
                    ids = small.translator.tokenizer.encode(text)
                    assert len(ids) < limit
            else:
                lengths.append(value.shape[1])
    assert lengths == [2, limit]


def test_long_requests_are_written_whole(parse):
    for size in (0, 127, 128, 100_000):
        log = parse(prediction_log("x" * size, {"text": ["y" * size]}))
        request = log.predict_log.request
        assert request.model_spec.signature_name == b"x" * size
        (entry,) = request.inputs
        tensor = tensor_pb2.TensorProto.FromString(entry.value)
        assert tf.make_ndarray(tensor).tolist() == [b"y" * size]


def test_requests_are_those_of_tensorflow_serving(small):
    from tensorflow_serving.apis import prediction_log_pb2

    path = small.saved_model / "assets.extra" / "tf_serving_warmup_requests"
    records = [*tf.data.TFRecordDataset(str(path))]
    assert records
    for record in records:
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        assert log.WhichOneof("log_type") == "predict_log"
        assert log.predict_log.request.model_spec.signature_name

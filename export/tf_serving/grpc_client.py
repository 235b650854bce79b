"""Translates lines with TensorFlow Serving over gRPC.

pip install 'tensorflow-serving-api>=2.21,<2.22'
python grpc_client.py "A man rides a bike." "Two dogs play."
python grpc_client.py < test.en > test.de
"""

import argparse
import itertools
import os
import sys

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

# Lines per request.
LINES = 64


def translate(texts, channel, model, signature="serving_default", timeout=60.0):
    """Asks a server for the translations of some texts.

    Args:
        texts: A list of strings.
        channel: A `grpc.Channel` to the server; keep it for all requests.
        model: Name of the model on the server.
        signature: Name of the signature to call.
        timeout: Seconds to wait for an answer.

    Returns:
        A list of strings, the best for each text, and a list of their scores
        in nats.

    Raises:
        grpc.RpcError: If there is no answer, or the answer is an error.
    """
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts, tf.string))
    service = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    outputs = service.Predict(request, timeout=timeout).outputs
    translations, scores = (
        tf.make_ndarray(outputs[name]) for name in ("translation", "score")
    )
    if translations.ndim == 2:  # several per text, best first
        translations, scores = translations[:, 0], scores[:, 0]
    return [text.decode() for text in translations.tolist()], scores.tolist()


def _piped_lines():
    sys.stdin.reconfigure(encoding="utf-8", newline="\n")
    for line in sys.stdin:
        yield line.rstrip("\r\n")


def main(arguments=None):
    """Translates the arguments or, without any, standard input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", help="by default piped lines")
    parser.add_argument("--address", default="localhost:8500")
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--signature", default="serving_default")
    options = parser.parse_args(arguments)
    lines = iter(options.texts or _piped_lines())
    try:
        with grpc.insecure_channel(options.address) as channel:
            while texts := list(itertools.islice(lines, LINES)):
                translations, _ = translate(
                    texts, channel, options.model, options.signature
                )
                for translation in translations:
                    print(translation.replace("\n", " ").replace("\r", " "))
        sys.stdout.flush()  # else Python does on exit, with a traceback
    except UnicodeError as error:
        sys.exit(f"The text is not UTF-8: {error}")
    except BrokenPipeError:  # the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except grpc.RpcError as error:
        sys.exit(f"{options.address}: {error.code().name}: {error.details()}")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # as all input is
    main()

"""The clients of TensorFlow Serving, against servers that speak as it does."""

import concurrent.futures
import contextlib
import http.server
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest
import tensorflow as tf
import yaml

FOLDER = pathlib.Path(__file__).parents[2] / "export" / "tf_serving"
TEXTS = ["the cat sees the dog", "", 'the hen 😀 "sees" the fox\\n']


def load(name):
    specification = importlib.util.spec_from_file_location(
        name, FOLDER / f"{name}.py"
    )
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def signatures(small):
    loaded = tf.saved_model.load(str(small.saved_model))
    # What is loaded must live as long as its signatures.
    yield loaded.signatures
    del loaded


@pytest.fixture(scope="module")
def rest(signatures):
    """The address of a server with TensorFlow Serving's REST interface."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            size = int(self.headers["Content-Length"])
            request = json.loads(self.rfile.read(size))
            if self.path == "/v1/models/gateway:predict":
                return self.answer(502, b"<html>Bad Gateway</html>")
            if self.path == "/v1/models/short:predict":
                self.send_response(500)
                self.send_header("Content-Length", "100")
                self.end_headers()
                self.wfile.write(b"cut sh")
                return None
            if self.path == "/v1/models/page:predict":
                return self.answer(200, b"<html>Sign in</html>")
            if self.path == "/v1/models/nothing:predict":
                return self.answer(200, b"{}")
            if self.path == "/v1/models/several:predict":
                several = {
                    "translation": [["eins", "ein"], ["二\r\n", "zwei"]],
                    "score": [[-1.0, -2.0], [-3.0, -4.0]],
                }
                return self.answer(
                    200, json.dumps({"outputs": several}).encode()
                )
            if self.path != "/v1/models/en-de:predict":
                message = f"Servable not found for request: {self.path}"
                return self.answer(404, json.dumps({"error": message}).encode())
            assert set(request) == {"signature_name", "inputs"}
            outputs = signatures[request["signature_name"]](
                **{
                    name: tf.constant(value, tf.string)
                    for name, value in request["inputs"].items()
                }
            )
            content = {
                "translation": [
                    x.decode() for x in outputs["translation"].numpy()
                ],
                "score": outputs["score"].numpy().tolist(),
            }
            return self.answer(200, json.dumps({"outputs": content}).encode())

        def answer(self, code, content):
            self.send_response(code)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_rest_client_translates(small, rest):
    client = load("rest_client")
    translations, scores = client.translate(TEXTS, rest, "en-de")
    assert translations == small.translator(TEXTS)
    assert len(scores) == len(TEXTS)


def pipe(monkeypatch, content):
    """Pipes bytes into what reads `sys.stdin`."""
    stdin = io.TextIOWrapper(io.BytesIO(content))
    monkeypatch.setattr(sys, "stdin", stdin)


def test_rest_client_translates_arguments_and_lines(small, rest, monkeypatch):
    client = load("rest_client")
    lines = [TEXTS[0], "", "fox"] * 50  # more than one request
    for arguments in (lines, []):
        output = io.StringIO()
        pipe(monkeypatch, "".join(f"{line}\r\n" for line in lines).encode())
        with contextlib.redirect_stdout(output):
            client.main(["--url", rest, *arguments])
        found = output.getvalue().split("\n")
        assert found == [*small.translator(lines), ""]


def test_rest_client_takes_the_best_of_several(rest):
    found = load("rest_client").translate(["one", "two"], rest, "several")
    assert found == (["eins", "二\r\n"], [-1.0, -3.0])


def test_rest_client_prints_utf_8_whatever_the_locale(rest):
    command = [sys.executable, FOLDER / "rest_client.py", "one", "two"]
    process = subprocess.run(
        [*command, "--url", rest, "--model", "several"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        timeout=60,
    )
    assert process.stdout == "eins\n二  \n".encode(), process.stderr


def test_rest_client_names_what_the_server_says(rest):
    client = load("rest_client")
    with pytest.raises(RuntimeError, match="404: Servable not found"):
        client.translate(TEXTS, rest, "de-en")
    with pytest.raises(RuntimeError, match="502: <html>Bad Gateway"):
        client.translate(TEXTS, rest, "gateway")
    with pytest.raises(RuntimeError, match="500: cut sh"):
        client.translate(TEXTS, rest, "short")
    for model in ("page", "nothing"):
        with pytest.raises(RuntimeError, match="answer is no translation"):
            client.translate(TEXTS, rest, model)
    with pytest.raises(SystemExit, match="127.0.0.1.*404: Servable not"):
        client.main(["--url", rest, "--model", "de-en", "fox"])
    with pytest.raises(SystemExit, match="127.0.0.1:1: .*refused"):
        client.main(["--url", "http://127.0.0.1:1", "fox"])
    with pytest.raises(SystemExit, match="127.0.0.1: unknown url type"):
        client.main(["--url", "127.0.0.1", "fox"])


def test_rest_client_needs_a_url(rest):
    translate = load("rest_client").translate
    with pytest.raises(ValueError, match="control characters.*my model"):
        translate(TEXTS, rest, "my model")
    with pytest.raises(ValueError, match="nonnumeric port: 'x'"):
        translate(TEXTS, "http://localhost:x", "en-de")


def test_rest_client_ends_lines_at_newlines_alone(small, rest, monkeypatch):
    client = load("rest_client")
    lines = ["the cat\rsees", "the\u2028fox"]
    pipe(monkeypatch, "\n".join(lines).encode())
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        client.main(["--url", rest])
    assert output.getvalue().split("\n") == [*small.translator(lines), ""]
    pipe(monkeypatch, b"the caf\xe9\n")
    with pytest.raises(SystemExit, match="text is not UTF-8: .* 0xe9 in"):
        client.main(["--url", rest])


def test_rest_client_ends_with_what_reads_it(small, rest):
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as nobody:
        process = subprocess.run(
            [sys.executable, FOLDER / "rest_client.py", "--url", rest, "fox"],
            stdout=nobody,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (process.returncode, process.stderr) == (0, b"")


@pytest.fixture(scope="module")
def grpc_address(signatures):
    """The address of a server with TensorFlow Serving's gRPC interface."""
    import grpc
    from tensorflow_serving.apis import predict_pb2
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            if request.model_spec.name != "en-de":
                context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found")
            outputs = signatures[request.model_spec.signature_name](
                **{
                    name: tf.constant(tf.make_ndarray(value))
                    for name, value in request.inputs.items()
                }
            )
            response = predict_pb2.PredictResponse()
            for name, value in outputs.items():
                response.outputs[name].CopyFrom(
                    tf.make_tensor_proto(value.numpy())
                )
            return response

    pool = concurrent.futures.ThreadPoolExecutor(1)
    server = grpc.server(pool)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        Service(), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()
    pool.shutdown()


def test_grpc_client_translates(small, grpc_address):
    import grpc

    client = load("grpc_client")
    with grpc.insecure_channel(grpc_address) as channel:
        translations, scores = client.translate(TEXTS, channel, "en-de")
    assert translations == small.translator(TEXTS)
    assert len(scores) == len(TEXTS)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        client.main(["--address", grpc_address, TEXTS[0]])
    with pytest.raises(SystemExit, match="text is not UTF-8: .*surrogates"):
        client.main(["--address", grpc_address, "caf\udce9"])
    assert output.getvalue() == f"{small.translator(TEXTS)[0]}\n"
    with pytest.raises(SystemExit, match="NOT_FOUND: Servable not found"):
        client.main(["--address", grpc_address, "--model", "x", "fox"])


def test_configuration_is_that_of_tensorflow_serving():
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    models = text_format.Parse(
        (FOLDER / "models.config").read_text("utf-8"),
        model_server_config_pb2.ModelServerConfig(),
    )
    (model,) = models.model_config_list.config
    assert (model.name, model.base_path) == ("en-de", "/models/en-de")


def test_compose_file_mounts_what_its_command_names():
    content = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
    service = content["services"]["tf_serving"]
    mounted = {}
    for volume in service["volumes"]:
        source, target, mode = volume.rsplit(":", 2)
        assert mode == "ro"
        mounted[target] = source
    options = dict(
        option.removeprefix("--").split("=") for option in service["command"]
    )
    for name, value in options.items():
        if name.endswith("_file"):
            assert (FOLDER / mounted[value]).is_file()
    assert "/models" in mounted
    assert service["ports"] == ["8500:8500", "8501:8501"]

"""A LiteRT file says what the translator says here."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from ai_edge_litert import interpreter
from tensorflow.lite.python import schema_py_generated as schema

import keras_transformer as kt
from keras_transformer.batches import batches_by_length
from keras_transformer.serving import export_note
from keras_transformer.serving import litert
from keras_transformer.serving import litert_compaction
from keras_transformer.serving import litert_contents
from keras_transformer.serving import litert_file
from keras_transformer.serving import litert_translator
from keras_transformer.serving import litert_workers

ENGLISH = ["the cat sees the dog", "the hen sees the fox", "the dog"] * 9
GERMAN = ["Katze sieht Hund", "Henne sieht Fuchs", "der Hund"] * 9
TEXTS = [
    "the cat sees the dog",
    "",
    "fox",
    "the hen 😀 sees 👩\u200d👧 the fox",
    "مرحبا بالعالم the cat",
    "the dog sees the hen " * 20,
]
SEARCHES = {
    "greedy": kt.GreedySearch(),
    "beam best 2": kt.BeamSearch(width=3, num_hypotheses=2),
}

# A conversion leaves memory behind: it runs in a process of its own.
EXPORT = """
import contextlib, io, json, sys
import keras_transformer as kt
from keras_transformer.serving.litert import export_litert
for folder, path, options in json.load(sys.stdin):
    verbose = int("steps" in options)
    with contextlib.redirect_stderr(io.StringIO()) as stages:
        export_litert(
            kt.Translator.load(folder), path, **options, verbose=verbose
        )
    for stage in ("Tracing", "Converting", "Making"):
        assert (stage in stages.getvalue()) == verbose, stages.getvalue()
"""
WITHOUT_TENSORFLOW = """
import sys
import keras_transformer as kt
translate = kt.LiteRTTranslator(sys.argv[1])
assert len(translate(["the cat", ""])) == 2
assert not {"tensorflow", "keras", "jax"} & set(sys.modules)
"""

FORKED = """
import os, signal, sys, threading
import keras_transformer as kt
translate = kt.LiteRTTranslator(sys.argv[1], num_threads=int(sys.argv[2]))
expected = translate(["the cat"])
has_ended = threading.Event()
def serve():
    while not has_ended.is_set():
        translate(["the cat"] * 20)
thread = threading.Thread(target=serve)
thread.start()
codes = []
for is_used in (True, False) * 3:
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        if is_used:
            assert translate(["the cat"]) == expected
        sys.exit()  # all is freed
    codes.append(os.waitpid(child, 0)[1])
has_ended.set()
thread.join()
assert codes == [0] * 6, codes
"""

COMMAND_WITHOUT_TENSORFLOW = """
import json, sys
for name in ("tensorflow", "keras", "sacrebleu", "safetensors"):
    sys.modules[name] = None
from keras_transformer import cli
lines = json.load(sys.stdin)
sys.argv[1:] += ["--scores", *lines]
cli.main()
"""


def python(code, *arguments, stdin=None):
    process = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        input=json.dumps(stdin),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


def make_translator(
    search, model_type="unigram", corpora=((ENGLISH + GERMAN, 31),), **options
):
    tokenizers = [
        kt.Tokenizer.train(
            lines, vocabulary_size=size, model_type=model_type, verbose=0
        )
        for lines, size in corpora
    ]
    model = kt.Transformer(
        tokenizers[-1].vocabulary_size,
        source_vocabulary_size=tokenizers[0].vocabulary_size,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,  # 1,024 weights are the fewest to be quantised
        intermediate_dim=64,
        **options,
    )
    generator = np.random.default_rng(3)
    for variable in model.trainable_variables:
        if variable.ndim == 2:  # prefers some token clearly
            variable.assign(3 * variable.numpy())
        elif "bias" in variable.name and options.get("output_bias"):
            variable.assign(generator.normal(0, 0.3, variable.shape))
    return kt.Translator(model, *tokenizers, search=search)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Translators and their files."""
    keras.utils.set_random_seed(7)
    folder = tmp_path_factory.mktemp("litert")
    translators = {
        name: make_translator(search) for name, search in SEARCHES.items()
    }
    # All that the others are not. Of mixed_bfloat16, as the README's recipe
    # trains: LiteRT has no products of bfloat16.
    translators["bpe"] = make_translator(
        kt.GreedySearch(),
        "bpe",
        corpora=((ENGLISH, 27), (GERMAN, 30)),
        normalize_first=True,
        tie_output=False,
        num_decoder_layers=1,
        max_length=1000,
        attention_bias=True,
        output_bias=True,
        dtype="mixed_bfloat16",
    )
    translators["sampling"] = make_translator(
        kt.Sampling(
            seed=3,
            top_k=5,
            no_repeat_ngram_size=2,
            forbidden_sequences=[[4], [5, 6], [9, 4, 7]],
        )
    )
    for name, translator in translators.items():
        translator.save(folder / name)
    # Few signatures; each takes seconds. Of several hypotheses there is no
    # text, though asked for.
    exports = [
        ("greedy", "greedy", {}),
        ("beam best 2", "beam best 2", {"steps": False}),
        ("sampling", "sampling", {"text": False, "steps": False}),
        ("bpe", "bpe", {"text": False}),
        ("greedy", "int8", {"quantization": "int8"}),
        ("bpe", "float16", {"text": False, "quantization": "float16"}),
        (
            *("greedy", "float16 tied"),
            {"text": False, "steps": False, "quantization": "float16"},
        ),
        *((name, f"fixed {name}", {"source_length": 64}) for name in SEARCHES),
    ]
    python(
        EXPORT,
        stdin=[
            (str(folder / name), f"{folder / file}.tflite", options)
            for name, file, options in exports
        ],
    )
    return folder, translators


@pytest.mark.parametrize("name", [*SEARCHES, "bpe", "sampling"])
def test_texts_are_translated_as_by_the_translator(exported, name):
    folder, translators = exported
    run = kt.LiteRTTranslator(folder / f"{name}.tflite")
    translations, scores = run(TEXTS, return_scores=True)
    translate = translators[name].with_dtype("float32")
    expected, expected_scores = translate(TEXTS, return_scores=True)
    assert translations == expected
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-3)
    assert run([]) == []


def test_text_inside_the_file_is_the_same(exported, run_program):
    folder, translators = exported
    paths = [folder / f"{name}.tflite" for name in ("greedy", "int8")]
    # Of a quantised file, what its ids say.
    expected = [
        translate(TEXTS)
        for translate in (translators["greedy"], kt.LiteRTTranslator(paths[1]))
    ]
    found = run_program("run_translate_text", *paths, stdin=TEXTS).stdout
    assert json.loads(found) == expected


@pytest.mark.parametrize(
    ("file", "name"),
    [("int8", "greedy"), ("float16", "bpe"), ("float16 tied", "greedy")],
)
def test_smaller_weights_say_nearly_the_same(exported, file, name):
    folder, translators = exported
    translations = kt.LiteRTTranslator(folder / f"{file}.tflite")(TEXTS)
    expected = translators[name].with_dtype("float32")(TEXTS)
    assert np.mean(np.array(translations) == np.array(expected)) >= 0.5


def test_float16_rounds_the_matrices_alone(exported):
    folder, translators = exported
    rounded = translators["bpe"].with_dtype("float32")
    for weight in rounded.model.weights:
        if len(weight.shape) == 2:
            values = keras.ops.convert_to_numpy(weight).astype("float16")
            weight.assign(values.astype("float32"))
    # So long that positions of rounded frequencies would be others.
    texts = [" ".join(TEXTS[1:4] * 40)]
    assert 500 < len(rounded.encode(texts[0])) < 1000
    found, scores = kt.LiteRTTranslator(folder / "float16.tflite")(
        texts, return_scores=True
    )
    expected, expected_scores = rounded(texts, return_scores=True)
    assert found == expected
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4)


@pytest.mark.parametrize(
    ("file", "whole", "kind"),
    [("int8", "greedy", "INT8"), ("float16", "bpe", "FLOAT16")],
)
def test_quantised_file_is_smaller(exported, file, whole, kind):
    """Than that with the same signatures, whose weights are float32."""
    folder, translators = exported
    sizes = [
        (folder / f"{name}.tflite").stat().st_size for name in (whole, file)
    ]
    num_weights = translators[whole].model.count_params()
    assert sizes[0] - sizes[1] > num_weights, (sizes, num_weights)
    content = read_file(folder / f"{file}.tflite")
    stored = {  # by signatures that share them
        tensor.buffer: np.prod(tensor.shape)
        for graph in content.subgraphs
        for tensor in graph.tensors
        if tensor.type == getattr(schema.TensorType, kind)
        and content.buffers[tensor.buffer].data is not None
    }
    assert sum(stored.values()) > num_weights / 2


def read_file(path):
    model = schema.Model.GetRootAsModel(path.read_bytes())
    return schema.ModelT.InitFromObj(model)


def test_matrices_that_float16_has_not_stay_in_float32(exported):
    folder, _ = exported
    file = read_file(folder / "greedy.tflite")
    tensors = [
        x
        for x in file.subgraphs[0].tensors
        if not x.type and x.shape is not None
    ]
    embedding = max(
        (file.buffers[x.buffer] for x in tensors if len(x.shape) == 2),
        key=lambda x: 0 if x.data is None else len(x.data),
    )
    values = np.where(embedding.data.view("float32") < 0, -1e5, 1)
    embedding.data = values.astype("float32").view("uint8")
    litert.store_in_float16(file)
    tensors = [x for graph in file.subgraphs for x in graph.tensors]
    kinds = {x.type for x in tensors if file.buffers[x.buffer] is embedding}
    assert kinds == {schema.TensorType.FLOAT32}
    assert schema.TensorType.FLOAT16 in {x.type for x in tensors}


def test_what_nothing_uses_is_dropped(exported):
    folder, _ = exported
    file = read_file(folder / "greedy.tflite")
    tensor, buffer = schema.TensorT(), schema.BufferT()
    unused = b"not used by any operation"
    buffer.data = np.frombuffer(unused, "uint8")
    tensor.buffer = len(file.buffers)
    file.buffers.append(buffer)
    file.subgraphs[0].tensors.append(tensor)
    content = litert_compaction.compacted(file, "translate_ids")
    assert unused not in content
    assert len(content) <= (folder / "greedy.tflite").stat().st_size


@pytest.mark.parametrize(
    "name", ["greedy", "int8", "float16", "float16 tied", "beam best 2"]
)
def test_a_file_holds_nothing_twice(exported, name):
    folder, _ = exported
    file = read_file(folder / f"{name}.tflite")
    first, *buffers = file.buffers
    assert first.data is None
    assert len({buffer.data.tobytes() for buffer in buffers}) == len(buffers)
    begins = {entry.subgraphIndex for entry in file.signatureDefs}
    loops = [
        sorted(operator.opcodeIndex for operator in graph.operators)
        for index, graph in enumerate(file.subgraphs)
        if index not in begins
    ]
    # Condition and body of a loop of segments and of one of steps.
    assert len(loops) == 4
    for graph in file.subgraphs:
        ends = {*graph.inputs, *graph.outputs}
        named = [n for n, tensor in enumerate(graph.tensors) if tensor.name]
        assert set(named) == ends


def test_weights_are_aligned_in_a_file(exported):
    folder, _ = exported
    content = np.fromfile(folder / "greedy.tflite", "uint8")
    file = schema.Model.GetRootAsModel(content)
    start = content.__array_interface__["data"][0]
    for index in range(file.BuffersLength()):
        if not file.Buffers(index).DataIsNone():
            data = file.Buffers(index).DataAsNumpy()
            assert (data.__array_interface__["data"][0] - start) % 16 == 0


@pytest.mark.slow
def test_tiny_file_is_little_more_than_its_weights(tmp_path, run_program):
    process = run_program("export_tiny", tmp_path / "tiny.tflite")
    assert float(process.stdout) < 1.05


@pytest.mark.parametrize("name", ["bpe", "beam best 2"])
def test_no_step_allocates_anew(exported, name):
    """No operation in it has a size that an earlier one computes.

    LiteRT would arrange the memory of all that follows again, at each step.
    """
    folder, _ = exported
    content = (folder / f"{name}.tflite").read_bytes()
    file = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content))
    names = {
        number: name
        for name, number in vars(schema.BuiltinOperator).items()
        if isinstance(number, int)
    }

    def name_of(operator):
        code = file.operatorCodes[operator.opcodeIndex]
        return names[max(code.builtinCode, code.deprecatedBuiltinCode)]

    def kinds(graph):
        return {name_of(operator) for operator in graph.operators}

    begins = {entry.subgraphIndex for entry in file.signatureDefs}
    (loop,) = [
        graph
        for index, graph in enumerate(file.subgraphs)
        if {"FULLY_CONNECTED", "DYNAMIC_UPDATE_SLICE"} <= kinds(graph)
        and index not in begins  # as `decode_step`
    ]
    assert not {"WHILE", "RANGE", "FILL", "BROADCAST_TO"} & kinds(loop)
    if name == "bpe":  # whose steps have one token of each sentence
        assert "TRANSPOSE" not in kinds(loop)
    made_by = {
        output: name_of(operator)
        for operator in loop.operators
        for output in operator.outputs
    }
    shapes = [
        operator.inputs[1]
        for operator in loop.operators
        if name_of(operator) == "RESHAPE"
    ]
    # Constants, or the shape of another tensor: known before it runs.
    assert len(shapes) > 10
    assert {made_by.get(shape, "") for shape in shapes} <= {"", "SHAPE"}


def test_files_hold_built_in_operations_and_those_on_text(exported):
    folder, _ = exported
    for path in folder.glob("*.tflite"):
        names = litert_contents.operations(path.read_bytes())
        assert all(name.startswith("TFText>") for name in names)
        assert bool(names) == (path.stem in ("greedy", "int8"))


def test_signatures(exported):
    folder, _ = exported
    loaded = interpreter.Interpreter(str(folder / "bpe.tflite"))
    signatures = loaded.get_signature_list()
    assert set(signatures) == {
        "translate_ids",
        "encode",
        "decode_step",
        "tokenizers",
    }
    assert set(signatures["decode_step"]["inputs"]) == {
        *("token_ids", "position", "source_ids", "keys", "values"),
        *("encoded_keys", "encoded_values"),
    }


def test_tokenizers_can_be_read_from_any_byte(exported):
    folder, translators = exported
    loaded = interpreter.Interpreter(str(folder / "bpe.tflite"))
    read = loaded.get_signature_runner("tokenizers")
    found = read(start=np.array([100], "int32"))
    model = translators["bpe"].tokenizer.model
    assert found["source_model"].tobytes() == model[100:]
    assert found["is_fast"].dtype == np.uint8  # no other is
    assert found["longest_source"] == [1000]
    assert found["num_hypotheses"] == [1]


def test_signatures_that_were_left_out(exported):
    folder, _ = exported
    loaded = interpreter.Interpreter(str(folder / "beam best 2.tflite"))
    assert set(loaded.get_signature_list()) == {"translate_ids", "tokenizers"}


@pytest.mark.parametrize("name", SEARCHES)
def test_shapes_may_be_fixed(exported, name):
    folder, translators = exported
    path = folder / f"fixed {name}.tflite"
    content = schema.Model.GetRootAsModel(path.read_bytes())
    model = schema.ModelT.InitFromObj(content)
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            assert tensor.shapeSignature is None, tensor.name
    # Else LiteRT would arrange its weights at each call.
    graph_of = {x.signatureKey: x.subgraphIndex for x in model.signatureDefs}
    assert graph_of[b"translate_ids"] == 0
    # One after another, which workers share.
    run = kt.LiteRTTranslator(path, num_workers=2)
    texts = TEXTS[:-1]
    translations, scores = run(texts, return_scores=True)
    expected, expected_scores = translators[name](texts, return_scores=True)
    assert translations == expected
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-4)


def test_fixed_shapes_run_as_a_compiled_model(exported, run_program):
    folder, _ = exported
    path = folder / "fixed greedy.tflite"
    rows = [[4, 9, 11, 3], [5, 3]]
    process = run_program("run_compiled_model", path, stdin=rows)
    found = json.loads(process.stdout)
    run = interpreter.Interpreter(str(path)).get_signature_runner(
        "translate_ids"
    )
    for row, target_ids in zip(rows, found, strict=True):
        ids = np.zeros((1, 64), "int32")
        ids[0, : len(row)] = row
        expected = run(source_ids=ids)["target_ids"]
        np.testing.assert_array_equal([target_ids], expected)
        assert any(target_ids)


def test_fixed_shapes_have_room_for_so_many_tokens(exported):
    folder, translators = exported
    path = folder / "fixed greedy.tflite"
    run = kt.LiteRTTranslator(path)
    assert run.longest_source == 64
    texts = ["fox " * count for count in range(1, 64)]
    lengths = [len(ids) + 1 for ids in run.encode(texts)]
    num_short = sum(length <= 64 for length in lengths)
    assert run(texts[num_short - 1 : num_short]) != [""]
    with pytest.raises(ValueError, match="than 64 tokens. Received: text 0 w"):
        run(texts[num_short : num_short + 1])
    [ids] = run.encode(texts[-1:])
    runner = interpreter.Interpreter(str(path)).get_signature_runner(
        "translate_ids"
    )
    found = runner(source_ids=np.array([[*ids[:63], 3]], "int32"))
    decode = translators["greedy"].target_tokenizer.decode
    expected = decode(found["target_ids"].tolist())
    assert run(texts[-1:], truncate=True) == expected != [""]


@pytest.mark.parametrize(
    ("length", "error", "message"),
    [
        (0, ValueError, "`source_length` must be at least 1. Received: "),
        (4097, ValueError, "not be over the 4,096 tokens that the model takes"),
        ("64", TypeError, "`source_length` must be an integer. Received: "),
    ],
)
def test_fixed_lengths_are_checked(exported, tmp_path, length, error, message):
    _, translators = exported
    with pytest.raises(error, match=message):
        translators["greedy"].export_litert(
            tmp_path / "x.tflite", source_length=length
        )
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["greedy", "int8"])
def test_a_host_can_drive_the_loop(exported, name):
    folder, translators = exported
    source_ids = np.array([[4, 9, 11, 3], [5, 3, 0, 0]], "int32")
    max_length = 6
    loaded = interpreter.Interpreter(str(folder / f"{name}.tflite"))
    translate = loaded.get_signature_runner("translate_ids")
    expected = translate(source_ids=source_ids)["target_ids"][:, :max_length]
    if name in translators:
        model = translators[name].model
        expected, _ = model.generate(source_ids, max_length=max_length)
    encode = loaded.get_signature_runner("encode")
    step = loaded.get_signature_runner("decode_step")
    state = {
        name: np.zeros((2, 2, 2, max_length, 16), "float32")
        for name in ("keys", "values")
    }
    encoded = encode(source_ids=source_ids)
    token_ids, rows = np.full(2, 2, "int32"), []
    for position in range(max_length):
        state = step(
            token_ids=token_ids,
            position=np.array([position], "int32"),
            source_ids=source_ids,
            **encoded,
            **state,
        )
        logits = state.pop("logits")
        logits[:, [0, 2]] = -np.inf
        token_ids = logits.argmax(axis=1).astype("int32")
        rows.append(token_ids)
    for row, ids in enumerate(np.stack(rows, axis=1)):
        length = (expected[row] != 0).sum()
        assert ids[:length].tolist() == expected[row, :length].tolist()


def test_runner_needs_no_tensorflow(exported):
    folder, _ = exported
    python(WITHOUT_TENSORFLOW, folder / "greedy.tflite")


def test_command_translates_with_a_file_and_no_tensorflow(exported):
    folder, _ = exported
    path = folder / "beam best 2.tflite"
    command = ["translate", path, "--num-threads", "2", "--num-workers", "2"]
    output = python(COMMAND_WITHOUT_TENSORFLOW, *command, stdin=TEXTS)
    expected = kt.LiteRTTranslator(path)(TEXTS, return_scores=True)
    found = [line.split("\t") for line in output.splitlines()]
    texts = [text for hypotheses in expected[0] for text in hypotheses]
    assert [text for _, text in found] == texts
    scores = [float(score) for score, _ in found]
    np.testing.assert_allclose(scores, expected[1].ravel(), atol=1e-3)


def test_command_scores_a_file(exported, tmp_path):
    path = exported[0] / "beam best 2.tflite"
    found, _ = kt.LiteRTTranslator(path)(TEXTS, return_scores=True)
    files = [tmp_path / name for name in ("text.en", "text.de")]
    files[0].write_text("".join(f"{text}\n" for text in TEXTS))
    files[1].write_text("".join(f"{best}\n" for best, _ in found))
    # What a light install, with sacrebleu, lacks.
    code = (
        "import sys\n"
        "for name in ('tensorflow', 'keras', 'safetensors'):\n"
        "    sys.modules[name] = None\n"
        "from keras_transformer import cli\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", code, "evaluate", path]

    def run(*options):
        process = subprocess.run(
            [*command, *files, *options], capture_output=True, text=True
        )
        return process.returncode, process.stdout + process.stderr

    code, output = run("--num-workers", "2")
    assert code == 0, output
    assert "\nchrF 100.00\n" in output  # BLEU wants longer ones
    code, output = run("--width", "2")
    assert code == 2
    assert "`--width` needs a translator's folder, as an export" in output


def test_command_names_what_a_light_install_lacks(exported):
    folder, _ = exported
    code = COMMAND_WITHOUT_TENSORFLOW.replace('"--scores", *lines', "*lines")
    process = subprocess.run(
        [sys.executable, "-c", code, "align"],
        input=json.dumps([str(folder / "greedy"), __file__, __file__]),
        capture_output=True,
        text=True,
    )
    assert process.returncode == 2
    expected = "keras-transformer: This needs keras, which is not installed. `p"
    assert process.stderr.startswith(expected)
    assert process.stderr.count("\n") == 1


def test_runner_splits_texts_as_the_translator_does(exported):
    run = kt.LiteRTTranslator(exported[0] / "greedy.tflite")
    assert run.encode(tuple(TEXTS)) == [run.encode(text) for text in TEXTS]
    for texts in ([3], b"the cat", [b"the cat"]):
        with pytest.raises(TypeError, match="must be a sequence of strings"):
            run.encode(texts)


def test_runner_shows_how_much_is_done(exported, monkeypatch, capsys):
    translate = kt.LiteRTTranslator(exported[0] / "greedy.tflite")
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes a terminal of it
    assert translate(TEXTS, verbose=1) == translate(TEXTS)
    assert re.search("(?s)Translating.*100%", capsys.readouterr().err)


def test_bpe_text_is_refused_with_a_way_out(exported, tmp_path):
    _, translators = exported
    with pytest.raises(ValueError, match=r"unigram models.*`text=False`"):
        translators["bpe"].export_litert(tmp_path / "x.tflite")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "quantization, kinds",
    [("int8", ["INT8"]), ("float16", ["INT16", "FLOAT16"])],
)
def test_file_holds_the_quantised_embedding_once(
    quantization, kinds, run_program
):
    run_program("quantize_embedding", quantization, *kinds)


@pytest.mark.slow
def test_a_model_with_a_past_decodes_as_the_translator(run_program):
    run_program("decode_with_a_past")


@pytest.mark.slow
def test_screened_tokens_are_those_of_the_translator(run_program):
    run_program("screen_tokens")


def test_batches_of_workers_are_about_the_best_and_equal_sizes():
    sizes = litert_translator.sentences_per_batch
    assert [sizes(count, 1, 28) for count in (0, 1, 28, 41, 42)] == [
        1,
        1,
        28,
        41,
        21,
    ]
    counts = (1, 32, 128, 1000)
    assert [sizes(count, 2, 28) for count in counts] == [1, 16, 32, 28]
    assert [sizes(count, 2, 7) for count in (8, 32, 128)] == [4, 8, 8]
    for best in (28, 28 / 3, 1, 28 / 64):
        for count in range(1, 200):
            assert 1 <= sizes(count, 3, best) <= max(1.5 * best, 1)


@pytest.mark.parametrize("best", [14, 28, 56])
@pytest.mark.parametrize("width", [1, 4])
def test_usual_sources_are_in_batches_of_equal_sizes(best, width):
    for count in range(1, 300):
        size = litert_translator.sentences_per_batch(count, 2, best / width)
        batches = batches_by_length(
            [24] * count,
            litert_translator.TOKENS_PER_HYPOTHESIS * best,
            width,
            max_rows=size,
        )
        sizes = [len(batch) for batch in batches]
        assert set(sizes[:-1]) <= {size}


@pytest.mark.parametrize(
    "hidden_dim, quantization, best",
    [
        (256, None, 56),
        (256, "float16", 56),
        (256, "int8", 28),
        (255, None, 28),
        (255, "int8", 14),
    ],
)
def test_models_of_larger_weights_decode_more_at_once(
    hidden_dim, quantization, best
):
    model = SimpleNamespace(hidden_dim=hidden_dim)
    assert litert.hypotheses_per_batch(model, quantization) == best


def test_operations_stand_before_what_needs_them():
    def operator(inputs, outputs):
        return SimpleNamespace(inputs=inputs, outputs=outputs)

    first, second = operator([0], [1]), operator([0, -1], [2])
    third, fourth = operator([1], [3]), operator([2, 3], [4])
    unused = operator([0], [5])
    chain = [operator([n], [n + 1]) for n in range(6, 2000)]
    operators = [second, unused, first, *chain, third, fourth]
    graph = SimpleNamespace(operators=operators, outputs=[3, 0, 4, 2000])
    litert_compaction._order_by_need(graph)
    assert graph.operators == [first, third, second, fourth, *chain, unused]


@pytest.mark.slow
def test_base_size_takes_little_memory(tmp_path, run_program):
    path = tmp_path / "base.tflite"
    # Libraries and what converting takes, beside 0.24 GB of weights.
    assert int(run_program("convert_base", path).stdout) < 3e9
    assert 60e6 < path.stat().st_size < 68e6
    # The weights, once in the file and once as products need them.
    assert int(run_program("run_base", path).stdout) < 220e6


def test_quantization_is_one_of_three(exported, tmp_path):
    _, translators = exported
    with pytest.raises(ValueError, match="`quantization` must be one of None"):
        translators["greedy"].export_litert(tmp_path / "x", "int4")


def test_existing_file_is_left_untouched(exported, tmp_path):
    _, translators = exported
    path = tmp_path / "x.tflite"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="nothing in it was touched"):
        translators["greedy"].export_litert(path)
    assert path.read_text() == "precious"


def test_an_export_that_fails_leaves_nothing(exported, tmp_path, monkeypatch):
    _, translators = exported

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    converter = litert.tf.lite.TFLiteConverter
    monkeypatch.setattr(converter, "from_saved_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        translators["greedy"].export_litert(tmp_path / "x.tflite")
    assert os.listdir(tmp_path) == []


def test_weights_that_float16_has_not_are_named(exported, tmp_path):
    _, translators = exported
    translator = (
        translators["greedy"]
        .with_dtype("float16")
        .with_dtype(
            "float32"  # a copy
        )
    )
    weight, *_, bias = translator.model.weights
    assert len(bias.shape) == 1  # stays in float32
    bias.assign(bias + 1e5)
    litert._check_fits_float16(translator.model)
    weight.assign(weight + 1e5)
    message = "at most 65504 to be written in float16. Received: .*embeddings"
    with pytest.raises(ValueError, match=message):
        translator.export_litert(tmp_path / "x.tflite", quantization="float16")
    assert os.listdir(tmp_path) == []


def test_files_that_cannot_be_run_are_named(exported, tmp_path):
    folder, _ = exported
    with pytest.raises(FileNotFoundError, match="No such file"):
        kt.LiteRTTranslator(tmp_path / "missing.tflite")
    with pytest.raises(FileNotFoundError, match="`Translator.load`"):
        kt.LiteRTTranslator(tmp_path)
    path = tmp_path / "x.tflite"
    for content in (b"", b"not a model at all"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="must be a LiteRT model"):
            kt.LiteRTTranslator(path)
    whole = (folder / "greedy.tflite").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="LiteRT model is damaged"):
        kt.LiteRTTranslator(path)
    start = whole.rindex(b"translate_ids")  # the name of the signature
    path.write_bytes(whole[:start] + b"\xbf" + whole[start + 1 :])
    with pytest.raises(ValueError, match="LiteRT model is damaged.*x.tflite"):
        kt.LiteRTTranslator(path)


def test_damaged_vocabulary_is_named(exported, tmp_path):
    folder, translators = exported
    path = tmp_path / "x.tflite"
    content = (folder / "greedy.tflite").read_bytes()
    model = translators["greedy"].tokenizer.model
    assert content.count(model) == 1
    path.write_bytes(content.replace(model, b"\xff" * len(model)))
    with pytest.raises(ValueError, match="LiteRT model is damaged.*tokenizer"):
        kt.LiteRTTranslator(path)


def test_a_file_without_a_tokenizer_is_named(exported, tmp_path):
    folder, _ = exported
    path = tmp_path / "x.tflite"
    content = (folder / "greedy.tflite").read_bytes()
    path.write_bytes(content.replace(b"source_model", b"sourse_model"))
    message = "must be one that `export_litert` .*outputs source_model"
    with pytest.raises(ValueError, match=message):
        kt.LiteRTTranslator(path)


def test_texts_are_a_sequence_of_strings(exported):
    folder, _ = exported
    run = kt.LiteRTTranslator(folder / "greedy.tflite")
    for texts in ("the cat", [1], [None]):
        with pytest.raises(TypeError, match="must be a sequence of strings"):
            run(texts)
    assert run(iter(TEXTS)) == run(TEXTS)


def test_files_are_verified(exported, tmp_path):
    folder, translators = exported
    path = folder / "greedy.tflite"
    report = kt.verify_export(translators["greedy"], path, TEXTS)
    assert report.passed
    assert report.format == "LiteRT"
    assert report.identical == len(TEXTS)
    assert report.size_bytes == path.stat().st_size
    assert report.foreign_operations == ()

    other = translators["beam best 2"]
    message = (
        r"search that was exported. Received: BeamSearch\(length_penalty=.*"
        r"width=3\), but GreedySearch\(\) in '"
    )
    with pytest.raises(ValueError, match=message):
        kt.verify_export(other, path, TEXTS)

    foreign = tmp_path / "foreign.tflite"
    content = path.read_bytes()
    name = export_note.METADATA.encode()
    assert content.count(name) == 1
    foreign.write_bytes(content.replace(name, name.upper()))
    with pytest.raises(ValueError, match="does not say what it was made from"):
        kt.verify_export(translators["greedy"], foreign, TEXTS)

    # A note without content.
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content))
    [entry] = [entry for entry in model.metadata if entry.name == name]
    model.buffers[entry.buffer].data = None
    builder = litert_compaction._Builder(len(content))
    builder.Finish(model.Pack(builder), litert_file.IDENTIFIER)
    foreign.write_bytes(builder.Output())
    with pytest.raises(ValueError, match="damaged.*made from cannot be read"):
        kt.verify_export(translators["greedy"], foreign, TEXTS)

    # An operation of another name, in a signature that is not run here.
    name = b"TFText>FastSentencepieceDetokenize"
    assert name in content
    foreign.write_bytes(content.replace(name, b"Flex" + name[4:]))
    report = kt.verify_export(translators["greedy"], foreign, TEXTS)
    assert report.foreign_operations == ("Flex" + name[4:].decode(),)
    assert report.identical == len(TEXTS)
    assert not report.passed


def test_files_of_fixed_shapes_are_verified(exported):
    folder, translators = exported
    path = folder / "fixed greedy.tflite"
    report = kt.verify_export(translators["greedy"], path, TEXTS[:-1])
    assert report.passed
    assert report.identical == len(TEXTS) - 1


@pytest.mark.slow
def test_operations_of_other_classes_are_told_as_theirs(tmp_path, run_program):
    translator = make_translator(kt.GreedySearch())
    translator.save(tmp_path / "greedy")
    path = tmp_path / "own.tflite"
    process = run_program("export_own_search", tmp_path / "greedy", path)
    refused, written = process.stdout.splitlines()
    assert re.search(r"Received: \w+. Use other .* in ByArgmax, such", refused)
    assert written == "written"
    translate = kt.LiteRTTranslator(path)
    assert translate(TEXTS) == translator(TEXTS)


def test_other_operations_are_an_error_of_ours(exported, monkeypatch):
    _, translators = exported
    monkeypatch.setattr(litert, "foreign_operations", lambda _: ["BitwiseAnd"])
    with pytest.raises(RuntimeError, match="BitwiseAnd. This is an error of k"):
        litert._check_operations(b"", translators["greedy"])


def test_truncated_file_is_not_verified(exported, tmp_path):
    folder, translators = exported
    content = (folder / "greedy.tflite").read_bytes()
    path = tmp_path / "x.tflite"
    for size in (12, len(content) // 2, len(content) - 1000):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="LiteRT model is damaged"):
            kt.verify_export(translators["greedy"], path, TEXTS)


def test_text_without_end_is_refused(exported):
    folder, translators = exported
    run = kt.LiteRTTranslator(folder / "greedy.tflite")
    assert run.longest_source == 4096
    text = "the dog sees the hen " * 50_000  # 1 MB
    with pytest.raises(ValueError, match="than 4096 tokens.*text 1 with"):
        run(["fox", text])
    run = kt.LiteRTTranslator(folder / "bpe.tflite")
    assert run.longest_source == translators["bpe"].model.max_length == 1000
    with pytest.raises(ValueError, match="than 1000 tokens.*text 0 with"):
        run(["the dog sees the hen " * 500])


@pytest.fixture
def asked(monkeypatch):
    """What is asked of `batches_by_length`, and its batches."""
    calls = []

    def spy(lengths, tokens_per_batch, width, max_rows):
        batches = batches_by_length(
            lengths, tokens_per_batch, width, max_rows=max_rows
        )
        calls.append((tokens_per_batch, [len(batch) for batch in batches]))
        return batches

    monkeypatch.setattr(litert_translator, "batches_by_length", spy)
    return calls


@pytest.mark.parametrize("name, slots", [("greedy", 1), ("beam best 2", 3)])
def test_a_batch_has_about_28_hypotheses(exported, asked, name, slots):
    folder, translators = exported
    assert translators[name].search.num_slots == slots
    run = kt.LiteRTTranslator(folder / f"{name}.tflite")
    most = 28 // slots
    run(["fox"] * (2 * most + 1))
    run(["fox"] * (2 * most + 1), tokens_per_batch=350)
    room = slots * (len(translators[name].tokenizer.encode("fox")) + 51)
    assert [tokens for tokens, _ in asked] == [28 * 111, 350]
    assert asked[0][1] == [most + 1, most]
    assert max(asked[1][1]) == 350 // room


def test_translator_goes_to_other_processes(exported, tmp_path, monkeypatch):
    folder, _ = exported
    monkeypatch.chdir(folder)
    run = kt.LiteRTTranslator("greedy.tflite", num_workers=2)
    monkeypatch.chdir(tmp_path)  # which may be in another folder
    copy = pickle.loads(pickle.dumps(run))
    assert copy.num_workers == 2
    assert copy(TEXTS) == run(TEXTS)


@pytest.mark.parametrize("num_threads", [1, 8])
def test_translator_goes_on_in_a_fork(exported, num_threads):
    """Though a thread of the parent was using the interpreter."""
    folder, _ = exported
    python(FORKED, folder / "greedy.tflite", num_threads)


def test_a_fork_makes_each_interpreter_once(exported, monkeypatch):
    folder, _ = exported
    run = kt.LiteRTTranslator(folder / "greedy.tflite", num_workers=3)
    expected = run(TEXTS)
    made, make = [], interpreter.Interpreter
    monkeypatch.setattr(
        interpreter,
        "Interpreter",
        lambda *args, **options: made.append(args) or make(*args, **options),
    )
    litert_workers.leave_all_to_parent()
    assert run(TEXTS) == expected
    assert len(made) == 3


def test_a_fork_needs_the_file_that_was_loaded(exported, tmp_path):
    folder, _ = exported
    path = tmp_path / "copy.tflite"
    shutil.copy(folder / "greedy.tflite", path)
    run = kt.LiteRTTranslator(path)
    path.unlink()
    shutil.copy(folder / "beam best 2.tflite", path)
    assert run(["the cat"])
    litert_workers.leave_all_to_parent()
    with pytest.raises(RuntimeError, match="has changed since it was loaded"):
        run(["the cat"])


def test_a_file_in_use_is_replaced_but_not_written_to(exported, tmp_path):
    folder, _ = exported
    path, other = tmp_path / "copy.tflite", tmp_path / "other.tflite"
    shutil.copy(folder / "greedy.tflite", path)
    shutil.copy(folder / "beam best 2.tflite", other)
    run = kt.LiteRTTranslator(path)
    expected = run(TEXTS)
    os.replace(other, path)
    assert run(TEXTS) == expected
    run = kt.LiteRTTranslator(path)
    status = path.stat()
    with open(path, "r+b") as file:
        file.write(path.read_bytes()[:4])
    # Whatever the steps of the system's clock are.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(RuntimeError, match="was written to since it was load"):
        run(TEXTS)
    assert kt.LiteRTTranslator(path)(TEXTS)


def test_threads_are_few_enough_for_the_system(exported):
    folder, _ = exported
    message = "`num_threads` times `num_workers` must be at most 1024. Rec"
    for options in (
        {"num_threads": 100_000},
        {"num_threads": 2**40},
        {"num_threads": 40, "num_workers": 40},
    ):
        with pytest.raises(ValueError, match=message):
            kt.LiteRTTranslator(folder / "greedy.tflite", **options)


def test_few_texts_are_shared_among_workers(exported, asked):
    folder, _ = exported
    for num_workers, sizes in ((1, [5]), (2, [3, 2]), (3, [2, 2, 1])):
        run = kt.LiteRTTranslator(
            folder / "greedy.tflite", num_workers=num_workers
        )
        run(["the cat", "the dog", "", "fox", "dog", "hen"])
        assert asked.pop() == (28 * 111, sizes)
    assert run([]) == [] and run([""]) == [""]


def test_workers_translate_side_by_side(exported):
    folder, _ = exported
    texts = [*TEXTS, "", *reversed(TEXTS)] * 3
    one = kt.LiteRTTranslator(folder / "greedy.tflite")
    three = kt.LiteRTTranslator(folder / "greedy.tflite", num_workers=3)
    options = {"return_scores": True, "tokens_per_batch": 64}
    for _ in range(3):
        expected, expected_scores = one(texts, **options)
        translations, scores = three(texts, **options)
        assert translations == expected
        np.testing.assert_array_equal(scores, expected_scores)
    with pytest.raises(ValueError, match="`tokens_per_batch` must be at least"):
        one(texts, tokens_per_batch=0)
    with pytest.raises(ValueError, match="`num_workers` must be at least 1"):
        kt.LiteRTTranslator(folder / "greedy.tflite", num_workers=0)


def test_threads_may_share_a_translator(exported):
    folder, _ = exported
    run = kt.LiteRTTranslator(folder / "greedy.tflite")
    expected = run(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, [TEXTS] * 8)) == [expected] * 8

"""The examples and export scripts run, on little text and one step."""

import importlib.util
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_transformer as kt

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def quickstart():
    folder = ROOT / "examples" / "quickstart"
    sys.path.insert(0, str(folder))
    try:
        specification = importlib.util.spec_from_file_location(
            "quickstart", folder / "quickstart.py"
        )
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def trained(quickstart):
    keras.utils.set_random_seed(1)
    pairs = quickstart.corpus.sentence_pairs(400, seed=1)
    tokenizer = quickstart.make_tokenizer(pairs, vocabulary_size=200)
    model = quickstart.make_model(tokenizer, num_layers=1)
    before = keras.ops.convert_to_numpy(model.weights[0])
    seconds = quickstart.train(model, tokenizer, pairs[:32])
    assert seconds > 0
    assert (keras.ops.convert_to_numpy(model.weights[0]) != before).any()
    return kt.Translator(model, tokenizer), pairs


def test_quickstart_counts_exact_matches(quickstart):
    def translate(texts):
        return [text.upper() for text in texts]

    share, wrong = quickstart.exact_matches(
        translate, [("a", "A"), ("b", "x"), ("c", "C"), ("d", "D")]
    )
    assert share == 0.75
    assert wrong == [("b", "x", "B")]


def test_quickstart_draws_attention(quickstart, trained, tmp_path):
    translator, pairs = trained
    path = tmp_path / "attention.png"
    quickstart.draw_attention(translator, pairs[0][0], path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_saved_model_translates_elsewhere(quickstart, trained, tmp_path):
    translator, pairs = trained
    translator.save(tmp_path / "translator")
    texts = [english for english, _ in pairs[:3]]
    folder = tmp_path / "exported" / "1"
    script = subprocess.run(
        [
            sys.executable,
            ROOT / "export" / "to_saved_model.py",
            tmp_path / "translator",
            folder,
            *texts,
        ],
        capture_output=True,
        text=True,
    )
    assert script.returncode == 0, script.stderr
    assert script.stdout.count("(the same as the translator)") == 3
    assert quickstart.translate_elsewhere(folder, texts) == translator(texts)

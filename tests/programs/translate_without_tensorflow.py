"""Translates, scores and aligns on JAX where TensorFlow is not installed."""

import sys

for name in ("tensorflow", "tensorflow_text"):
    sys.modules[name] = None

import keras

import keras_transformer as kt

# What this model says is not empty.
keras.utils.set_random_seed(1)
lines = ["the cat sees the dog", "the dog sees the cat"] * 10
tokenizer = kt.Tokenizer.train(lines, vocabulary_size=16, verbose=0)
model = kt.Transformer(
    16, num_layers=1, num_heads=1, hidden_dim=8, intermediate_dim=8
)
folder = sys.argv[1]
kt.Translator(model, tokenizer).save(folder)
translator = kt.Translator.load(folder)
found = translator(["the cat", ""], max_length=4)
scores, _ = translator.score(["the cat", ""], found)
assert scores[0] < 0 == scores[1], scores
[alignment] = translator.align(["the cat"], ["the dog"])
assert len(alignment.links()) == len(alignment.target_pieces) - 1
kt.BleuCallback(translator, ["the cat"], ["the dog"])
for refused in (
    lambda: translator.export_saved_model(f"{folder}/1"),
    lambda: translator.export_litert(f"{folder}/1.tflite"),
    lambda: tokenizer.encode_tensor(["the cat"]),
    lambda: kt.BleuCallback(translator, lines, lines, log_dir=folder),
):
    try:
        refused()
    except (ImportError, RuntimeError) as error:
        print(error)
sys.argv[1:] = ["translate", folder, "the cat", "--max-length", "4"]
from keras_transformer import cli

cli.main()

"""Compares the size of a file with that of its weights and tokenizers."""

import sys

from tensorflow.lite.python import schema_py_generated as schema

import keras_transformer as kt

syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
words = [a + b for a in syllables for b in syllables]
lines = [" ".join(words[i : i + 9]) for i in range(0, len(words), 4)]
tokenizer = kt.Tokenizer.train(lines, vocabulary_size=1000, verbose=0)
model = kt.Transformer.from_preset("tiny", tokenizer.vocabulary_size)
kt.Translator(model, tokenizer).export_litert(sys.argv[1])
with open(sys.argv[1], "rb") as file:
    content = file.read()
file = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content))
tokenizers = sum(
    file.buffers[tensor.buffer].data.size
    for graph in file.subgraphs
    for tensor in graph.tensors
    if tensor.type == schema.TensorType.UINT8
    and file.buffers[tensor.buffer].data is not None
)
print(len(content) / (4 * model.count_params() + tokenizers))

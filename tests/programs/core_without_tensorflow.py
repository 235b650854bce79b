"""Trains and generates where TensorFlow is not installed."""

import sys

for name in ("tensorflow", "tensorflow_text", "sentencepiece", "sacrebleu"):
    sys.modules[name] = None

import numpy as np

import keras_transformer as kt

model = kt.Transformer(
    13, num_layers=1, num_heads=1, hidden_dim=8, intermediate_dim=8
)
ids = np.array([[4, 5, 3]])
model.compile("adam", kt.LabelSmoothedCrossentropy(0.1))
model.fit({"source_ids": ids, "target_ids": ids}, ids + 1, verbose=0)
print(model.generate(ids, max_length=4)[0].shape[0])
for name in kt.__all__:
    try:
        getattr(kt, name)
    except ImportError as error:
        print(name, "|", error)

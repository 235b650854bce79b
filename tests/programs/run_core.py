"""Translates, scores and trains a saved model, on any backend of Keras."""

import json
import sys

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.tensors.slices import largest

path, jit_compile = sys.argv[1:]
model = keras.saving.load_model(path, compile=False)
ids = np.array([[5, 6, 7, 3, 0], [8, 9, 10, 11, 3]], "int32")
targets = np.array([[6, 5, 3, 0], [9, 8, 12, 3]], "int32")
batch = {
    "source_ids": ids,
    "target_ids": np.array([[2, 6, 5, 0], [2, 9, 8, 12]], "int32"),
}


def as_lists(*arrays):
    return [keras.ops.convert_to_numpy(x).tolist() for x in arrays]


found = {
    "logits": as_lists(model(batch, training=False)),
    "score": as_lists(*model.score(ids, targets)),
    "align": as_lists(model.align(ids, targets)),
    "largest": as_lists(*largest(keras.ops.zeros((2, 70)), 3)),
}
sources = np.concatenate([ids, np.zeros((1, 5), "int32")])  # one is empty
for name, search in {
    "greedy": kt.GreedySearch(),
    "beam": kt.BeamSearch(width=3, num_hypotheses=2),
}.items():
    found[name] = as_lists(*model.generate(sources, search, max_length=6))
one, other = (
    model.generate(ids, kt.Sampling(seed=1), max_length=6) for _ in range(2)
)
assert as_lists(*one) == as_lists(*other)
assert len({*one[0].ravel()}) > 2, one  # and not the same each time
schedule = kt.WarmupSchedule(peak_learning_rate=0.01, warmup_steps=2)
for name, optimizer, averaging in (
    ("adam", kt.Adam(schedule), kt.WeightAveraging(last=2)),
    ("muon", kt.Muon(0.01), kt.WeightAveraging(decay=0.5)),
):
    model.compile(
        optimizer=optimizer,
        loss=kt.LabelSmoothedCrossentropy(0.1),
        weighted_metrics=[kt.Perplexity(), kt.TokenAccuracy()],
        jit_compile=bool(int(jit_compile)),
    )
    fitted = model.fit(
        batch, targets, epochs=4, verbose=0, callbacks=[averaging]
    )
    found[name] = fitted.history
    found[f"{name}, averaged"] = model.evaluate(batch, targets, verbose=0)
# Or torch would keep all that the mean was made of.
assert not any(getattr(x, "requires_grad", False) for x in averaging._mean)
print(json.dumps(found))

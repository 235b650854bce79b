"""Exports searches of a user's own to LiteRT; prints what is said of each."""

import sys

from keras import ops

import keras_transformer as kt


class ByArgmax(kt.GreedySearch):
    def choose(self, logits, position, problem):
        return ops.argmax(logits, axis=-1)


class ByTopK(kt.GreedySearch):
    def choose(self, logits, position, problem):
        return ops.top_k(logits, 1)[1][:, :, 0]


folder, path = sys.argv[1:]
translator = kt.Translator.load(folder)
for search in (ByArgmax(), ByTopK()):
    translator.search = search
    try:
        translator.export_litert(path, text=False, steps=False)
    except RuntimeError as error:
        print(error)
    else:
        print("written")

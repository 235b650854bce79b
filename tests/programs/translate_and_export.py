"""Translates on this backend, and says why it cannot export."""

import json
import sys

import keras_transformer as kt

translator = kt.Translator.load(sys.argv[1])
try:
    translator.export_saved_model(sys.argv[2])
except RuntimeError as error:
    print(json.dumps([str(error), translator(sys.argv[3:])]))

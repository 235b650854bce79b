"""Translates with a SavedModel, without keras_transformer.

python use_saved_model.py FOLDER "A sentence." ["Another one." ...]
"""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401  its operations are in the graph

if len(sys.argv) < 2:
    sys.exit(__doc__)
folder, *texts = sys.argv[1:]
texts = tf.constant(texts, tf.string)
try:
    translate = tf.saved_model.load(folder).signatures["serving_default"]
except OSError as error:  # such as a missing folder
    sys.exit(f"use_saved_model.py: {error}")
translations = translate(text=texts)["translation"].numpy()
if translations.ndim == 2:  # several for each text, the best first
    translations = translations[:, 0]
for translation in translations:
    print(translation.decode())

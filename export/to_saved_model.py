"""Writes a translator's folder as a SavedModel and shows that it translates.

    python export/to_saved_model.py runs/en-de exported/en-de/1 "A sentence."

The same as `keras-transformer export`, as a program to start from.
"""

import sys

import tensorflow as tf

import keras_transformer as kt


def main(folder, output, *texts):
    """Exports, loads the SavedModel, and compares the translations."""
    translator = kt.Translator.load(folder)
    expected = translator(texts)  # before exporting: it checks the texts
    translator.export_saved_model(output)
    serve = tf.saved_model.load(output).signatures["serving_default"]
    result = serve(text=tf.constant(texts, tf.string))["translation"].numpy()
    if result.ndim == 2:  # several per text, best first
        result, expected = result[:, 0], [best for best, *_ in expected]
    differences = 0
    for text, wanted, exported in zip(texts, expected, result, strict=True):
        same = exported.decode() == wanted
        differences += not same
        print(
            f"{text}\n-> {exported.decode()} "
            f"({'' if same else 'NOT '}the same as the translator)"
        )
    return differences


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        sys.exit(min(main(*sys.argv[1:]), 1))
    except FileExistsError:
        reason = f"{sys.argv[2]} exists already. Remove it first."
        print(f"to_saved_model.py: {reason}", file=sys.stderr)
        sys.exit(2)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"to_saved_model.py: {error}", file=sys.stderr)
        sys.exit(2)

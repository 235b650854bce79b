"""Writes a translator's folder as a LiteRT file and shows that it translates.

    python export/to_litert.py runs/en-de en-de.tflite int8 "A sentence."

The same as `keras-transformer export --format litert --no-text`, as a program
to start from. The third argument is float32, float16 or int8.
"""

import sys

import keras_transformer as kt


def main(folder, output, weights, *texts):
    """Exports, loads the file, and prints both translations."""
    translator = kt.Translator.load(folder)
    translations = translator(texts)  # before exporting: it checks the texts
    translator.export_litert(
        output,
        quantization=None if weights == "float32" else weights,
        text=False,  # `LiteRTTranslator` splits and joins text by itself
    )
    exported = kt.LiteRTTranslator(output)(texts)
    if translator.search.num_hypotheses > 1:  # several per text, best first
        translations = [best for best, *_ in translations]
        exported = [best for best, *_ in exported]
    for text, expected, found in zip(
        texts, translations, exported, strict=True
    ):
        # Smaller weights may choose other words.
        same = "" if found == expected else f" (the translator: {expected})"
        print(f"{text}\n-> {found}{same}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except FileExistsError:
        reason = f"{sys.argv[2]} exists already. Remove it first."
        print(f"to_litert.py: {reason}", file=sys.stderr)
        sys.exit(2)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"to_litert.py: {error}", file=sys.stderr)
        sys.exit(2)

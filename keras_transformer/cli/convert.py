"""`keras-transformer convert`."""

import sys
from pathlib import Path
from typing import Annotated

from keras_transformer.cli.options import Overwrite
from keras_transformer.cli.options import path_argument
from keras_transformer.cli.streams import quiet_start


def convert(
    source: Annotated[
        Path,
        path_argument(
            metavar="PATH",
            help="Marian model: a folder, or its decoder.yml.",
        ),
    ],
    output: Annotated[
        Path, path_argument(help="Folder of the translator, to be written.")
    ],
    overwrite: Overwrite = False,
):
    """Make a translator of a Marian model, such as OPUS-MT's.

    A folder in Hugging Face's format holds config.json, vocab.json, source.spm,
    target.spm, and model.safetensors or pytorch_model.bin, as a download does.
    For pytorch_model.bin, torch must be installed. Marian's own files are a
    decoder.yml, the .npz that it names, and vocabularies: .spm, or .yml with
    source.spm and target.spm beside them, as in a .zip of OPUS-MT.

    \b
    Example:
      keras-transformer convert opus-mt-en-de runs/en-de
      keras-transformer convert model/model.npz.decoder.yml runs/own
      keras-transformer translate runs/en-de "A man rides a bike."
      keras-transformer export runs/en-de en-de.tflite --quantization int8
    """  # noqa: D301
    with quiet_start():
        from keras_transformer.translator import Translator
        from keras_transformer.translator_folder import check_free

    check_free(output, overwrite)
    translator = Translator.from_marian(source)
    translator.save(output, overwrite=overwrite)
    model = translator.model
    print(
        f"Translator in {output}: {len(model.encoder.layers)} + "
        f"{len(model.decoder.layers)} layers, {model.hidden_dim} wide, "
        f"{model.source_vocabulary_size} source and {model.vocabulary_size} "
        "target tokens.",
        file=sys.stderr,
    )

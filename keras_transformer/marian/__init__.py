"""Translators made of Marian models, such as those of OPUS-MT.

[Marian](https://aclanthology.org/P18-4020) has trained the more than a thousand
models of [OPUS-MT](https://aclanthology.org/2020.eamt-1.61). They differ from
the paper in biases of attention and logits, and in their activation.
"""

import os

from keras_transformer.marian.conversion import translator_of
from keras_transformer.marian.hugging_face import CONFIG
from keras_transformer.marian.hugging_face import read_hugging_face
from keras_transformer.marian.own_format import SETTINGS
from keras_transformer.marian.own_format import read_own_format
from keras_transformer.system.paths import check_local
from keras_transformer.translator import Translator


def translator_from_marian(path) -> Translator:
    """Makes what `Translator.from_marian` describes."""
    path = os.fsdecode(path)
    check_local(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"No such file or folder: {path!r}.")
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, CONFIG)):
            return translator_of(read_hugging_face(path), path)
        path = os.path.join(path, _settings_in(path))
    if path.endswith(".npz"):
        raise ValueError(
            f"The path must be that of the {SETTINGS} beside the weights, "
            f"which says what belongs to them. Received: {path!r}."
        )
    return translator_of(read_own_format(path), path)


def _settings_in(folder):
    """The name of the only file of settings in Marian's own format."""
    found = sorted(x for x in os.listdir(folder) if x.endswith(SETTINGS))
    if not found:
        raise FileNotFoundError(
            f"There must be a {CONFIG}, of Hugging Face, or a {SETTINGS}, of "
            f"Marian itself. Received: neither in {folder!r}."
        )
    if len(found) > 1:
        raise ValueError(
            f"One model must be chosen: pass the path of its {SETTINGS}. "
            f"Received: {folder!r} with {', '.join(found)}."
        )
    return found[0]

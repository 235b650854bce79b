"""A note in each export on its search, to compare it with the same search."""

import json
import os

import keras

from keras_transformer.serving.warmup import FOLDER

# The note's file in a SavedModel, and its name in a LiteRT file.
FILE = os.path.join(FOLDER, "keras_transformer_search.json")
METADATA = "keras_transformer_search"


def note_of(search) -> bytes:
    """A search as JSON: its class and its arguments."""
    description = keras.saving.serialize_keras_object(search)
    note = {"class": type(search).__name__, **description["config"]}
    return json.dumps(note, sort_keys=True).encode()


def write_note(search, folder):
    """Writes the note of a search into the folder of a SavedModel."""
    path = os.path.join(folder, FILE)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(note_of(search))


def check_note(search, note: bytes | None, path):
    """Raises `ValueError` unless an export has this search.

    Args:
        search: The search of the translator.
        note: The note in the export, or `None`.
        path: The export.
    """
    if note is None:
        raise ValueError(
            "The export must be one that this version has written. Received: "
            f"{path!r}, which does not say what its search is."
        )
    own = json.loads(note_of(search))
    try:
        exported = dict(json.loads(note))
        words = f"{_words(own, exported)}, but {_words(exported, own)}"
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"The export is damaged. Received: {path!r}, whose search cannot "
            f"be read: {error}."
        ) from error
    if exported != own:
        raise ValueError(
            "The translator must have the search that was exported. Received: "
            f"{words} in {path!r}. Set `translator.search`, or give the "
            "command the options that `export` had."
        )


def _words(note, other):
    """The search in a note, with the arguments that differ from `other`'s."""
    arguments = ", ".join(
        f"{name}={value!r}"
        for name, value in note.items()
        if name != "class" and (name not in other or other[name] != value)
    )
    return f"{note['class']}({arguments})"

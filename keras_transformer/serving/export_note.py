"""A note in each export on what it was made from, to compare it with that."""

import hashlib
import json
import os

import keras
from keras import ops

from keras_transformer.serving.warmup import FOLDER
from keras_transformer.weights import sync_weights

# The note's file in a SavedModel and in a folder of CTranslate2, and its name
# in a LiteRT file.
FILE = os.path.join(FOLDER, "keras_transformer.json")
CTRANSLATE2_FILE = "keras_transformer.json"
METADATA = "keras_transformer"


def note_of(translator, has_search: bool = True) -> bytes:
    """A translator's search and limit, and digests of its parts, as JSON.

    Args:
        translator: The `Translator`.
        has_search: Whether the export searches as the translator does, and not
            as it is told each time.
    """
    note = {"parts": _parts(translator)}
    if has_search:  # such an export has the model's limit too
        note["parts"]["max_length"] = translator.model.max_length
        description = keras.saving.serialize_keras_object(translator.search)
        note["search"] = {
            "class": type(translator.search).__name__,
            **description["config"],
        }
    return json.dumps(note, sort_keys=True).encode()


def write_note(note: bytes, path):
    """Writes a note to a file of its own."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(note)


def read_note(path) -> bytes | None:
    """Reads a note from its file, `None` if there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def compare_note(
    own: bytes, note: bytes | None, path, has_search: bool = True
) -> tuple[str, ...]:
    """Compares the note of a translator with that of an export.

    Args:
        own: The `note_of` the translator.
        note: The note in the export, or `None`.
        path: The export.
        has_search: As for `note_of`.

    Returns:
        What the export was made from and the translator has otherwise:
        `"weights"`, `"source vocabulary"`, `"target vocabulary"`,
        `"max_length"`.

    Raises:
        ValueError: If the export has no note, or one that is damaged, or the
            search that was exported is another.
    """
    if note is None:
        raise ValueError(
            "The export must be one that this version has written. Received: "
            f"{path!r}, which does not say what it was made from."
        )
    own = json.loads(own)
    try:
        exported = dict(json.loads(note))
        searches = [own["search"]] * 2
        if has_search:
            searches[1] = dict(exported["search"])
        parts = dict(exported["parts"])
        words = f"{_words(*searches)}, but {_words(*reversed(searches))}"
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"The export is damaged. Received: {path!r}, whose note on what it "
            f"was made from cannot be read: {error!r}."
        ) from error
    if searches[0] != searches[1]:
        raise ValueError(
            "The translator must have the search that was exported. Received: "
            f"{words} in {path!r}. Set `translator.search`, or give the "
            "command the options that `export` had."
        )
    if own["parts"]["dtypes"] != parts.get("dtypes"):
        parts["weights"] = own["parts"]["weights"]  # rounded: not comparable
    ignored = ("dtypes",) if has_search else ("dtypes", "max_length")
    return tuple(
        name
        for name, part in own["parts"].items()
        if name not in ignored and parts.get(name) != part
    )


def _parts(translator):
    """Digests of a translator's parts, by what a report calls them."""
    weights = hashlib.sha256()
    dtypes = set()
    sync_weights(translator.model)
    for variable in translator.model.weights:
        array = ops.convert_to_numpy(variable)
        weights.update(array.tobytes())
        dtypes.add(str(array.dtype))
    source, target = translator.tokenizer, translator.target_tokenizer
    return {
        "dtypes": sorted(dtypes),
        "weights": weights.hexdigest(),
        "source vocabulary": hashlib.sha256(source.model).hexdigest(),
        "target vocabulary": hashlib.sha256(target.model).hexdigest(),
    }


def _words(note, other):
    """The search in a note, with the arguments that differ from `other`'s."""
    arguments = ", ".join(
        f"{name}={value!r}"
        for name, value in note.items()
        if name != "class" and (name not in other or other[name] != value)
    )
    return f"{note['class']}({arguments})"

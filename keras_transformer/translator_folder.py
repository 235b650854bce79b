"""The folder of a translator: how it is written as a whole, and read.

`translator.json` names the other files, which get new names with each save. It
is written last and renamed into place.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import secrets

from keras_transformer.files import read_json
from keras_transformer.files import read_tensors
from keras_transformer.system.atomic import write_file
from keras_transformer.system.lock import lock
from keras_transformer.system.paths import check_absent
from keras_transformer.system.paths import check_file
from keras_transformer.system.paths import check_folder_to_write
from keras_transformer.system.paths import fingerprint

DESCRIPTION = "translator.json"
TRAINING = "training"  # the folder of the training it is from
FORMAT = 1
# Folders that hold no translator, by a file in them.
EXPORTS = {
    "saved_model.pb": "SavedModel",
    "model.bin": "CTranslate2 model",
}
ROLES = ("weights", "tokenizer", "target_tokenizer")
# The files that a save writes, and those that a killed save leaves behind.
FILE = r"(model|tokenizer|source|target)-[0-9a-f]{16}\.(safetensors|model)"
WRITTEN = re.compile(rf"{FILE}|\.({FILE}|translator\.json)\.[0-9a-f]{{8}}")


def write_folder(path, weights, tokenizers, description, overwrite):
    """Writes a translator; a failure leaves the old one as it was.

    Args:
        path: The folder, made where it is missing.
        weights: The bytes of a safetensors file.
        tokenizers: The bytes of SentencePiece models: of `"tokenizer"`, and of
            `"target_tokenizer"` where the target has its own.
        description: What `translator.json` holds besides the files.
        overwrite: Whether to replace a translator that is there.

    Raises:
        FileExistsError: If the folder is not empty, unless `overwrite`.
        OSError: If the folder may not be written to, or is a file.
    """
    check_free(path, overwrite)
    version = secrets.token_hex(8)  # long enough to be unique
    has_two = "target_tokenizer" in tokenizers
    source, target = ("source", "target") if has_two else ("tokenizer",) * 2
    names = {
        "weights": f"model-{version}.safetensors",
        "tokenizer": f"{source}-{version}.model",
        "target_tokenizer": f"{target}-{version}.model",
    }
    contents = {
        names[role]: content
        for role, content in {"weights": weights, **tokenizers}.items()
    }
    digests = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in contents.items()
    }
    description = {
        "format": FORMAT,
        **description,
        "files": names,
        "sha256": digests,
    }
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    with _one_at_a_time(path):
        check_free(path, overwrite)  # by another, in the meantime
        try:
            for name, content in contents.items():
                write_file(os.path.join(path, name), content)
            write_file(os.path.join(path, DESCRIPTION), text.encode())
        except BaseException:
            if _weights_on_disk(path) not in contents:
                with contextlib.suppress(OSError):  # not in place of the error
                    _remove(path, contents)
            raise
        # Those of the translator before, or of a save that was killed.
        _remove(
            path,
            [
                name
                for name in os.listdir(path)
                if WRITTEN.fullmatch(name) and name not in contents
            ],
        )


def read_folder(path):
    """Reads what `write_folder` has written.

    Args:
        path: The folder.

    Returns:
        What `translator.json` holds; the weights by name; and a list of the
        SentencePiece models, of the source and, if it has its own, the target.

    Raises:
        FileNotFoundError: If there is no such folder, or a file is missing.
        ValueError: If the folder holds no translator, one of another format,
            or files that are not what was saved.
    """
    description = read_description(path)
    path = os.fsdecode(path)
    try:
        return description, *_read_files(path, description)
    except FileNotFoundError:
        if read_description(path) == description:
            raise
        return read_folder(path)  # saved anew in the meantime


def check_free(path, overwrite: bool):
    """Raises `OSError` unless a translator may be written there.

    Args:
        path: The folder, made or not.
        overwrite: Whether a translator, or a training, may be replaced.
    """
    check_folder_to_write(path)
    names = os.listdir(path) if os.path.isdir(path) else []
    is_ours = DESCRIPTION in names or TRAINING in names
    if not is_ours and not all(map(WRITTEN.fullmatch, names)):
        raise FileExistsError(
            f"{os.fspath(path)!r} holds something other than a translator, and "
            "nothing in it was touched. Choose another folder."
        )
    check_absent(path, overwrite)


def _read_files(path, description):
    names, digests = description["files"], description["sha256"]
    paths = {role: os.path.join(path, names[role]) for role in ROLES}
    for role in ROLES:
        _check_digest(paths[role], digests[names[role]])
    weights = read_tensors(paths["weights"])
    tokenizers = [pathlib.Path(paths["tokenizer"]).read_bytes()]
    if paths["target_tokenizer"] != paths["tokenizer"]:
        target = pathlib.Path(paths["target_tokenizer"]).read_bytes()
        tokenizers.append(target)
    return weights, tokenizers


def _check_digest(path, saved):
    _check_is_file(path)
    found = fingerprint(check_file(path))
    if found != saved:
        raise ValueError(
            f"The file must be what was saved. Received: {path!r} of "
            f"{os.path.getsize(path):,} bytes with the SHA-256 {found}, "
            f"{DESCRIPTION} has {saved}. Copy or save the folder again."
        )


def _check_is_file(path):
    """Raises `ValueError` for a pipe, say, which may have no end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(
            f"{path!r} must be a file. Received: a folder, a pipe or a device."
        )


def weights_digest(path) -> str:
    """The SHA-256 of the weights, as a translator's folder states it.

    Raises:
        OSError: If there is no translator.
        ValueError: If it is damaged.
    """
    description = read_description(path)
    return description["sha256"][description["files"]["weights"]]


def read_description(path):
    """Reads `translator.json`; raises what `read_folder` does."""
    path = os.fsdecode(path)
    if not os.path.isdir(path):
        raise _no_folder(path)
    file = os.path.join(path, DESCRIPTION)
    _check_is_file(file)
    try:
        description = read_json(file)
    except FileNotFoundError:
        raise _no_translator(path) from None
    except ValueError as error:  # no UTF-8, or no JSON
        raise ValueError(
            f"{DESCRIPTION} is damaged. Received: {path!r}: {error}."
        ) from error
    is_object = isinstance(description, dict)
    if is_object and description.get("format", FORMAT) != FORMAT:
        raise ValueError(
            f"The translator must be of format {FORMAT}. Received: {path!r} of "
            f"format {description['format']!r}. Was it saved by a newer "
            "keras-transformer?"
        )
    if not _is_complete(description):
        needed = ("format", "model", "search", "files", *ROLES, "sha256")
        raise ValueError(
            f"{DESCRIPTION} is damaged. Received: {path!r}, which lacks one of "
            f"{', '.join(needed)}."
        )
    for role in ROLES:
        name = description["files"][role]
        # What is elsewhere may be a device without an end.
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(
                f"{DESCRIPTION} must name files of its folder. Received: "
                f"{path!r} with {name!r} as {role}."
            )
    return description


def _no_folder(path):
    """The error for a path that is no folder, with advice for some files."""
    if not os.path.exists(path):
        return FileNotFoundError(f"No such folder: {path!r}.")
    advice = ""
    if path.endswith(".keras"):
        advice = (
            " `Translator(keras.saving.load_model(path), tokenizer)` makes a "
            "translator of a model."
        )
    elif path.lower().endswith(".tflite"):
        advice = (
            " A LiteRT file can only translate and be evaluated; this needs "
            "the translator that it was exported from."
        )
    return FileNotFoundError(f"No such folder: {path!r} is a file.{advice}")


def _no_translator(path):
    """The error for a folder without a translator, which may be an export."""
    advice = ""
    for file, kind in EXPORTS.items():
        if os.path.exists(os.path.join(path, file)):
            advice = (
                f" It is a {kind}: give the translator that it was exported "
                "from."
            )
    return ValueError(
        f"The folder must hold a translator. Received: {path!r}, which has no "
        f"{DESCRIPTION}.{advice}"
    )


def _is_complete(description) -> bool:
    """Whether a description has everything that is read from it."""
    try:
        made = [description[name] for name in ("model", "search")]
        names = [description["files"][role] for role in ROLES]
        strings = [
            *(x["class_name"] for x in made),
            *names,
            *(description["sha256"][name] for name in names),
        ]
        configs = [x["config"] for x in made]
    except (AttributeError, KeyError, TypeError):
        return False
    return (
        "format" in description
        and all(isinstance(x, str) for x in strings)
        and all(isinstance(x, dict) for x in configs)
    )


@contextlib.contextmanager
def _one_at_a_time(path):
    """Creates the folder, and waits until nobody else saves to it.

    A save removes files that it did not write itself. On a file system without
    locks, nobody else may save at the same time.
    """
    os.makedirs(os.path.realpath(path), exist_ok=True)  # of a link, its target
    folder = os.open(path, os.O_RDONLY)
    try:
        lock(folder, wait=True)
        yield
    finally:
        os.close(folder)  # and with it the lock


def _remove(path, names):
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(path, name))


def _weights_on_disk(path):
    """The weights file that a translator at `path` names, or `None`."""
    try:
        return read_description(path)["files"]["weights"]
    except (OSError, ValueError):
        return None

"""The folder of a translator: how it is written whole, and read.

`translator.json` names the other files, whose names are new with each save. It
is written last and renamed into place.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets

from keras_transformer.atomic import NO_LOCKS
from keras_transformer.atomic import check_absent
from keras_transformer.atomic import write_file

DESCRIPTION = "translator.json"
FORMAT = 1
ROLES = ("weights", "tokenizer", "target_tokenizer")
# What a save writes, and what a killed one leaves unfinished.
WRITTEN = re.compile(
    r"\.?((model|tokenizer|source|target)-[0-9a-f]{8}\.(safetensors|model)"
    r"|translator\.json)(\.\w{8})?"
)


def write_folder(path, weights, tokenizers, description, overwrite):
    """Writes a translator; what fails leaves the old one as it was.

    Args:
        path: The folder, made where it is missing.
        weights: The bytes of a safetensors file.
        tokenizers: The bytes of SentencePiece models: of `"tokenizer"`, and of
            `"target_tokenizer"` where the target has its own.
        description: What `translator.json` holds besides the files.
        overwrite: Whether to replace a translator that is there.

    Raises:
        FileExistsError: If the folder is not empty, unless `overwrite`.
    """
    check_absent(path, overwrite)
    version = secrets.token_hex(4)
    names = {
        "weights": f"model-{version}.safetensors",
        "tokenizer": f"source-{version}.model",
        "target_tokenizer": f"target-{version}.model",
    }
    if "target_tokenizer" not in tokenizers:
        names["tokenizer"] = f"tokenizer-{version}.model"
        names["target_tokenizer"] = names["tokenizer"]
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
        check_absent(path, overwrite)  # by another, in the meantime
        try:
            for name, content in contents.items():
                write_file(os.path.join(path, name), content)
            write_file(os.path.join(path, DESCRIPTION), text.encode())
        except BaseException:
            if _weights_on_disk(path) not in contents:
                _remove(path, contents)
            raise
        # Those of the translator before, or of a save that was killed.
        _remove(
            path,
            [
                name
                for name in os.listdir(path)
                if WRITTEN.fullmatch(name)
                and name not in (*contents, DESCRIPTION)
            ],
        )


def read_description(path) -> dict:
    """Reads `translator.json`; errors as for `Translator.load`."""
    if not os.path.isdir(path):
        raise FileNotFoundError(f"No such folder: {path!r}.")
    try:
        with open(os.path.join(path, DESCRIPTION), encoding="utf-8") as file:
            description = json.load(file)
    except FileNotFoundError:
        raise ValueError(
            f"The folder must hold a translator. Received: {path!r}, which has "
            f"no {DESCRIPTION}."
        ) from None
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
        needed = ("format", "model", "search", "files", *ROLES)
        raise ValueError(
            f"{DESCRIPTION} is damaged. Received: {path!r}, which lacks one of "
            f"{', '.join(needed)}."
        )
    return description


def _is_complete(description) -> bool:
    """Whether all that is read of a description is there."""
    try:
        parts = [
            description[name]["class_name"] for name in ("model", "search")
        ]
        parts += [description["files"][role] for role in ROLES]
        parts += description.get("sha256", {}).values()
    except (AttributeError, KeyError, TypeError):
        return False
    return "format" in description and all(isinstance(x, str) for x in parts)


def files_of(path, description) -> dict[str, str]:
    """The path of each file of a translator, by its role."""
    return {
        role: os.path.join(path, description["files"][role]) for role in ROLES
    }


def check_unchanged(path, description):
    """Raises `ValueError` if a file is not what was saved.

    After the files are read, whose own errors say more.

    Args:
        path: The folder.
        description: From `read_description`.
    """
    # Folders that were saved by the first versions have no digests.
    for name, saved in description.get("sha256", {}).items():
        file_path = os.path.join(path, name)
        with open(file_path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != saved:
            raise ValueError(
                f"The file must be what was saved. Received: {file_path!r} "
                f"with the SHA-256 {found}, {DESCRIPTION} has {saved}. Copy or "
                "save the folder anew."
            )


@contextlib.contextmanager
def _one_at_a_time(path):
    """Waits until nobody else saves to the folder, which it makes.

    A save removes what it did not write itself. Where the file system has no
    locks, nobody else may.
    """
    os.makedirs(path, exist_ok=True)
    folder = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
    finally:
        os.close(folder)  # and with it the lock


def _remove(path, names):
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(path, name))


def _weights_on_disk(path):
    """The weights that a translator at `path` names, `None` without one."""
    try:
        return read_description(path)["files"]["weights"]
    except (OSError, ValueError):
        return None

"""Text that is read, and results that are written whole or not at all."""

import hashlib
import json

from keras_transformer.lines import read_lines


def read_pairs(paths):
    """The lines of two files of as many, and of some."""
    source, target = ([*read_lines(path)] for path in paths)
    if not source or len(source) != len(target):
        raise ValueError(
            "Two files must have as many lines as each other, and some. "
            f"Received: {paths[0]} with {len(source)}, {paths[1]} with "
            f"{len(target)}."
        )
    return source, target


def begin(options, settings):
    """Notes what is trained, or raises if something else was begun there."""
    path = options.output / "begun.json"
    named = ("case", "recipe", "seed", "dtype")
    begun = {name: vars(options)[name] for name in named}
    for name in ("train", "validation"):
        begun[name] = [digest(path) for path in vars(options)[name]]
    text = as_json({**begun, **settings})
    if not path.exists():
        write(path, text)
    elif path.read_text(encoding="utf-8") != text:
        raise ValueError(
            f"What goes on must be what was begun, which {path} says. Pass the "
            "same, or name another folder."
        )


def digest(path):
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_json(values):
    """Text of values, with what JSON lacks as strings."""
    return json.dumps(values, indent=2, default=str, allow_nan=False)


def write(path, text):
    """Writes beside the file first: a killed process leaves no half of it."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)

"""Checks of the text, and results that are written whole or not at all."""

import json

from keras_transformer.system.atomic import write_file
from keras_transformer.system.paths import fingerprint


def begin(options, settings):
    """Records what is trained; raises if something else was begun there."""
    path = options.output / "begun.json"
    named = ("case", "recipe", "seed", "dtype")
    begun = {name: vars(options)[name] for name in named}
    for name in ("train", "validation"):
        begun[name] = [fingerprint(path) for path in vars(options)[name]]
    text = as_json({**begun, **settings})
    if not path.exists():
        write(path, text)
    elif path.read_text(encoding="utf-8") != text:
        raise ValueError(
            f"What goes on must be what was begun, which {path} says. Pass the "
            "same, or name another folder."
        )


def as_json(values):
    """Values as JSON, with strings for what JSON lacks."""
    return json.dumps(values, indent=2, default=str, allow_nan=False)


def write(path, text):
    """Writes a text, whole or not at all."""
    write_file(path, text.encode())

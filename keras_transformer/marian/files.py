"""Files of a Marian model that hold names and what belongs to them."""

from keras_transformer.files import damaged
from keras_transformer.files import read_json
from keras_transformer.quoting import quoted
from keras_transformer.system.paths import check_file


class NamedValues(dict):
    """The object in a file. A missing name raises, and null is missing.

    Args:
        path: The file, for messages.
        content: What it holds.

    Raises:
        ValueError: If it holds anything but an object.
    """

    def __init__(self, path, content):
        self.path = path
        if not isinstance(content, dict):
            raise ValueError(
                f"{path} must hold names and values. Received: one "
                f"{type(content).__name__}."
            )
        super().__init__(
            (name, x) for name, x in content.items() if x is not None
        )

    def __missing__(self, name):
        raise ValueError(
            f"{self.path} must be that of a Marian model. Received: no {name} "
            "in it."
        )

    def size(self, name) -> int:
        """A whole number of at least 1, or raises `ValueError`."""
        value = self[name]
        if type(value) is not int or value < 1:
            raise ValueError(
                f"{self.path} must have a whole number of at least 1 as "
                f"{name}. Received: {quoted(value)}."
            )
        return value

    def flag(self, name, default: bool | None = None) -> bool:
        """`True` or `False`, or raises `ValueError`; needed by default."""
        value = self[name] if default is None else self.get(name, default)
        if type(value) is not bool:
            raise ValueError(
                f"{self.path} must have true or false as {name}. Received: "
                f"{quoted(value)}."
            )
        return value

    def choice(self, name, choices: dict):
        """What a value stands for, or raises `ValueError`."""
        value = self[name]
        if not isinstance(value, str) or value not in choices:
            listed = ", ".join(map(repr, choices))
            raise ValueError(
                f"{self.path} must have one of {listed} as {name}. Received: "
                f"{quoted(value)}."
            )
        return choices[value]

    def check_fixed(self, wanted: dict):
        """Raises `ValueError` unless what is there has the wanted values."""
        for name, value in wanted.items():
            if self.get(name, value) != value:
                raise ValueError(
                    f"{self.path} must have {name}={value}. Received: "
                    f"{name}={quoted(self[name])}."
                )


def read_named_values(path) -> NamedValues:
    """Reads the object in a JSON file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or holds anything else.
    """
    path = check_file(path)
    try:
        content = read_json(path)
    except ValueError as error:
        raise damaged(path, error) from error
    return NamedValues(path, content)

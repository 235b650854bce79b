"""Files of a Marian model that hold names and what belongs to them."""


def damaged(path, error) -> ValueError:
    """The error to raise for a file that cannot be read, for its reason."""
    return ValueError(f"{path} is damaged: {' '.join(str(error).split())}")


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
                f"{path} must hold names and values. Received: {content!r:.200}"
            )
        super().__init__(
            (name, x) for name, x in content.items() if x is not None
        )

    def __missing__(self, name):
        raise ValueError(
            f"{self.path} must be that of a Marian model. Received: no {name} "
            "in it."
        )

    def check_fixed(self, wanted: dict):
        """Raises `ValueError` unless what is there has the wanted values."""
        for name, value in wanted.items():
            if self.get(name, value) != value:
                raise ValueError(
                    f"{self.path} must have {name}={value}. Received: "
                    f"{name}={self[name]}."
                )

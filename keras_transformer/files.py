"""What is in files that others may have written, or that may be damaged."""

import json

import numpy as np


def damaged(path, error) -> ValueError:
    """The error to raise for a file that cannot be read, for its reason."""
    return ValueError(f"{path} is damaged: {' '.join(str(error).split())}")


def read_json(path):
    """What a JSON file holds.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it holds no JSON, or is nested too deeply.
    """
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def read_tensors(path) -> dict[str, np.ndarray]:
    """The arrays in a file of safetensors, by name.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is damaged, or has numbers that NumPy has not.
    """
    # Imported here, so that a wrong path is named where that is not installed.
    import safetensors.numpy

    try:
        return safetensors.numpy.load_file(path)
    except safetensors.SafetensorError as error:
        raise damaged(path, error) from error
    except (AttributeError, TypeError) as error:  # such as of float8
        raise ValueError(
            f"{path} must have numbers of a type that NumPy has. Received: "
            f"{error}."
        ) from error

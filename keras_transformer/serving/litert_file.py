"""The format of a translator's LiteRT file, for its writer and its reader.

Nothing here imports TensorFlow or Keras.
"""

import dataclasses
import os

import numpy as np

from keras_transformer.system.paths import check_file

# Bytes 4 to 8 of a LiteRT file.
IDENTIFIER = b"TFL3"

# The converter merges outputs that are equal, and a browser then finds only one
# of their names: so `is_fast`, which the page reads, has a type of its own.
DTYPES = {bool: "uint8", int: "int32"}


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a program that runs a file has to know about its translator.

    The signature `tokenizers` has outputs of these names.

    Attributes:
        is_fast: Whether the target's pieces are joined to text as
            tensorflow-text's fast operation does.
        longest_source: Most tokens of a source, with the end token.
        num_slots: Hypotheses that the search decodes for each source.
        num_hypotheses: Hypotheses that it returns for each source.
        hypotheses_per_batch: Hypotheses that are best decoded at once.
    """

    is_fast: bool
    longest_source: int
    num_slots: int
    num_hypotheses: int
    hypotheses_per_batch: int

    @classmethod
    def of(cls, outputs):
        """Reads the facts from the outputs of the signature."""
        return cls(
            **{
                field.name: field.type(outputs[field.name][0])
                for field in dataclasses.fields(cls)
            }
        )

    def outputs(self) -> dict[str, np.ndarray]:
        """The facts as outputs of the signature."""
        return {
            field.name: np.array(
                [getattr(self, field.name)], DTYPES[field.type]
            )
            for field in dataclasses.fields(self)
        }


def check_litert_file(path) -> str:
    """Returns `path` as a string, or raises unless it is a LiteRT file."""
    path = os.fsdecode(path)
    if os.path.isdir(path):
        raise FileNotFoundError(
            f"No such file: {path!r} is a folder. A translator's is read by "
            "`Translator.load`; `export_litert` makes a file of it."
        )
    path = check_file(path)
    with open(path, "rb") as file:
        start = file.read(8)
    if start[4:] != IDENTIFIER:
        raise ValueError(
            f"The file must be a LiteRT model. Received: {path!r}, of "
            f"{os.path.getsize(path):,} bytes."
        )
    return path


def damaged(path, error) -> ValueError:
    """Makes the error that names a damaged file."""
    return ValueError(
        f"The LiteRT model is damaged. Received: {os.fspath(path)!r}: {error}."
    )

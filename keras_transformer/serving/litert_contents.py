"""What is in a LiteRT file, read without running it."""

import struct

from tensorflow.lite.python import schema_py_generated as schema

from keras_transformer.serving.export_note import METADATA
from keras_transformer.serving.litert_file import check_litert_file
from keras_transformer.serving.litert_file import damaged

# What the names of tensorflow-text's operations begin with.
TEXT = "TFText>"


def read(path) -> tuple[list[str], bytes | None]:
    """Inspects a LiteRT file.

    Returns:
        Its `foreign_operations` and `export_note`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a LiteRT model, or damaged.
    """
    with open(check_litert_file(path), "rb") as file:
        content = file.read()
    try:
        return foreign_operations(content), export_note(content)
    except (struct.error, ValueError, TypeError, IndexError) as error:
        raise damaged(path, error) from error


def operations(content: bytes) -> list[str]:
    """Lists the operations of a LiteRT file that are not built in."""
    model = schema.Model.GetRootAsModel(content)
    names = [
        model.OperatorCodes(index).CustomCode()
        for index in range(model.OperatorCodesLength())
    ]
    return sorted({name.decode() for name in names if name})


def foreign_operations(content: bytes) -> list[str]:
    """Lists the operations that are neither built in nor tensorflow-text's.

    Not every LiteRT runtime has them.
    """
    return [name for name in operations(content) if not name.startswith(TEXT)]


def export_note(content: bytes) -> bytes | None:
    """The note in a LiteRT file on what it was made from, or `None`."""
    model = schema.Model.GetRootAsModel(content)
    for index in range(model.MetadataLength()):
        entry = model.Metadata(index)
        if entry.Name() == METADATA.encode():
            buffer = model.Buffers(entry.Buffer())
            is_empty = buffer.DataIsNone()
            return b"" if is_empty else buffer.DataAsNumpy().tobytes()
    return None

"""Pictures that matplotlib draws, where it is installed."""

import io
import os

from keras_transformer.system.atomic import write_file
from keras_transformer.system.extras import not_installed


def can_draw() -> bool:
    """Whether matplotlib is installed and can be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def check_picture(path) -> str:
    """Returns the format of a picture, which its ending says.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If matplotlib cannot write that format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(not_installed("A picture", "matplotlib")) from error
    path = os.fsdecode(path)
    ending = os.path.splitext(path)[1].removeprefix(".").lower() or "png"
    formats = Figure().canvas.get_supported_filetypes()
    if ending not in formats:
        raise ValueError(
            f"A picture must end in one of {', '.join(sorted(formats))}. "
            f"Received: {path!r}."
        )
    return ending


def write_figure(figure, path, format: str, **options):
    """Writes a figure of matplotlib, whole or not at all.

    Args:
        figure: The figure.
        path: The file.
        format: Such as `"png"`.
        **options: For `Figure.savefig`.
    """
    content = io.BytesIO()
    figure.savefig(content, format=format, dpi=120, **options)
    write_file(path, content.getvalue())

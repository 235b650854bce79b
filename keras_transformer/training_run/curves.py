"""The curves of a training, as a picture."""

import math

from keras_transformer.system.picture import write_figure


def draw_curves(path: str, history: list):
    """Draws the results of each epoch; training and validation together.

    Args:
        path: The PNG to write.
        history: For each epoch its number from 0, as `"epoch"`, and values by
            name; names of validation values begin with `"val_"`.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    names = (name for row in history for name in row if name != "epoch")
    panels = list(dict.fromkeys(name.removeprefix("val_") for name in names))
    figure = Figure(figsize=(4 * len(panels), 3), layout="constrained")
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        for name, label, color in (
            (panel, "training", "C0"),
            (f"val_{panel}", "validation", "C1"),
        ):
            points = [
                (row["epoch"] + 1, row[name])
                for row in history
                if not math.isnan(row.get(name, math.nan))
            ]
            if points:
                epochs, values = zip(*points, strict=True)
                axes.plot(epochs, values, ".-", label=label, color=color)
                axes.legend()
        axes.set_title(panel)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    write_figure(figure, path, "png")

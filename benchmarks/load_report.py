"""The table, the samples and the plot of `load.py`."""

from pathlib import Path

import load_case
import report
from matplotlib import pyplot as plt

HEADER = (
    "export",
    "calls",
    "other answers",
    "errors",
    "memory, first third",
    "memory, last third",
    "traced",
    "compiled",
    "verdict",
)


def write(results: dict, folder: Path):
    """Writes `load.md`, `.json` and `.png`."""
    options = results["options"]
    about = (
        f"{options['threads']} threads for {options['seconds']:g} seconds over "
        f"{options['text']}, requests of 1 to {max(load_case.SENTENCES)} "
        "sentences. Most resident memory of the first and of the last third "
        "after the warm-up; what was traced and compiled after it."
    )
    rows = [_row(*item) for item in results["engines"].items()]
    lines = ["# Under load", "", about, "", *report.table(HEADER, rows)]
    report.write(folder / "load", lines, results)
    _draw(results["engines"], folder / "load.png")


def _row(name, measured):
    return [
        load_case.ENGINES[name].title,
        f"{measured['calls']:,}",
        measured["different"],
        len(measured["errors"]),
        f"{measured['first_third_bytes'] / 1e6:,.0f} MB",
        f"{measured['last_third_bytes'] / 1e6:,.0f} MB",
        measured["new_traces"],
        measured["new_compilations"],
        "good" if load_case.is_good(measured) else "NOT GOOD",
    ]


def _draw(engines, path):
    figure, (above, below) = plt.subplots(
        2, figsize=(7, 5), sharex=True, layout="constrained"
    )
    for name, measured in engines.items():
        samples = measured["samples"]
        seconds = [sample["second"] for sample in samples]
        title = load_case.ENGINES[name].title
        above.plot(seconds, [x["bytes"] / 1e6 for x in samples], label=title)
        below.plot(seconds, [x["sentences_per_second"] for x in samples])
        warm = seconds[round(load_case.WARM_UP * len(samples))]
    for axes in (above, below):
        axes.axvspan(0, warm, color="0.93", linewidth=0)
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
        axes.grid(color="0.9")
    above.set_ylabel("resident memory, MB")
    below.set_ylabel("sentences a second")
    below.set_xlabel("seconds (grey: warm-up)")
    above.legend(loc="center right")
    figure.savefig(path, dpi=100)
    plt.close(figure)

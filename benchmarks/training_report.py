"""The table, the raw numbers and the plot of `training.py`."""

import textwrap
from pathlib import Path

import numpy as np
import report
import trainers

HEADER = (
    "size",
    "engine",
    "target tokens/s",
    "ratio",
    "ms a step",
    "floor, ms",
    "share of peak",
    "peak MiB",
    "ready, s",
)

# What has a process of its own, by the backend of Keras.
PROCESSES = {
    "tensorflow": "run in a new process",
    "jax": "engine in a process of its own",
}
OPERATIONS = 15  # with a line of their own in a profile

NOTES = """\
Each {process}, the engines by turns: median (least–most) of {runs}
runs of {what}. The ratio is to
{baseline}: the median of the ratios round by round; above 1
is faster. The floor is the time of a step's matrix products at the best rate
measured on this machine in that dtype, and the share how much of the median
step that is. Peak memory is {memory}. Ready is when the
warm-up is done, {warm_up}, with loading and all that is compiled.
"""


def write(results: dict, folder: Path):
    """Writes `training.md`, `.json` and `.png`."""
    options = results["options"]
    backend = options["backend"]
    engines = trainers.ENGINES[backend]
    baseline = trainers.BASELINES[backend]
    titles = {name: engine.title for name, engine in engines.items()}
    what, warm_up = f"{options['steps']} steps", f"{trainers.WARM_UP} steps"
    if options["batch"]:
        what += f" of {options['batch']} sentences"
    if options["text"]:
        what = f"an epoch of {' and '.join(options['text'])}"
        warm_up = "an epoch before"
    is_on_gpu = results["ceilings"].get("device", "cpu") != "cpu"
    lines = [
        f"# Training speed, Keras on {backend}",
        "",
        NOTES.format(
            process=PROCESSES[backend],
            runs=options["runs"],
            what=what,
            baseline=titles[baseline],
            memory="that of the GPU" if is_on_gpu else "resident",
            warm_up=warm_up,
        ),
        *report.about(results),
        *table(results),
        *_profiles(results),
    ]
    report.write(folder / "training", lines, results)
    groups = [(case["size"], case["engines"]) for case in results["cases"]]
    report.draw_ratios(
        {"Target tokens a second": groups},
        folder / "training.png",
        titles,
        baseline,
    )


def table(results: dict) -> list[str]:
    """The table in Markdown; an engine without times has a row saying why."""
    backend = results["options"]["backend"]
    rows = []
    for case in results["cases"]:
        for name in results["options"]["engines"]:
            engine = trainers.ENGINES[backend][name]
            if name in case["engines"]:
                cells = _cells(
                    case,
                    name,
                    results["ceilings"][f"{engine.dtype}_per_second"],
                    trainers.BASELINES[backend],
                )
            else:
                reason = results["skipped"][engine.title].replace("|", "/")
                reason = textwrap.shorten(f"not measured: {reason}", 100)
                cells = [reason, *[""] * (len(HEADER) - 3)]
            rows.append([case["size"], engine.title, *cells])
    return report.table(HEADER, rows)


def _profiles(results):
    """Tables of the time of our steps by operation."""
    engines = trainers.ENGINES[results["options"]["backend"]]
    lines = []
    for case in results["cases"]:
        for name, milliseconds in case["profiles"].items():
            engine = engines[name]
            rate = results["ceilings"][f"{engine.dtype}_per_second"]
            floor = 1000 * case["flops"] / rate / case["steps"]
            rows = list(milliseconds.items())[:OPERATIONS]
            rest = list(milliseconds.values())[OPERATIONS:]
            rows = [("floor", floor), *rows, ("all others", sum(rest))]
            lines += [
                f"## {engine.title}, {case['size']}: a step by operation",
                "",
                "Milliseconds of all threads together.",
                "",
                *report.table(
                    ["operation", "ms a step"],
                    ([name, report.number(value)] for name, value in rows),
                ),
            ]
    return lines


def _cells(case, name, rate, baseline):
    measured = case["engines"][name]
    seconds = np.array(measured["seconds"])
    floor = case["flops"] / rate
    return [
        report.spread(case["target_tokens"] / seconds),
        report.ratio_cell(case["engines"], name, baseline),
        report.number(1000 * np.median(seconds) / case["steps"]),
        report.number(1000 * floor / case["steps"]),
        f"{floor / np.median(seconds):.0%}",
        f"{np.median(measured['peak_bytes']) / 2**20:,.0f}",
        report.number(np.median(measured["ready_seconds"])),
    ]

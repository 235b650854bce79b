"""Tables, raw numbers and plots of what was measured."""

import json
from pathlib import Path

import matplotlib
import numpy as np
from machine import DTYPES

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

CASE_COLUMNS = ("size", "search", "batch", "tokens")

GRID_NOTES = """\
Milliseconds for each decoding step: one token for all sentences of the batch,
and its share of the encoder. Median (least–most) of {runs} runs, and the ratio
to CTranslate2 float32, the median of the ratios round by round: above 1 is
faster. Every target has the same forced number of tokens, the source {source}
tokens. The floor is what an engine with all of its products in float32 cannot
beat on this machine: the weights and caches read once, or the products at the
best measured rate. "ours, LiteRT float32" screens tokens from 4 million weights
of the logits on: most logits are computed in 8 bits, and those that can be the
largest exactly.
"ours, XLA" is `generate`, which fills lengths up to multiples of 16. keras-hub
and MarianMT have random weights of the same sizes, all others the same weights.
"""

TEXT_NOTES = """\
Text to text, {sentences} sentences in one call. Each engine in a new process
for each of {runs} runs: seconds of the second call, median (least–most);
seconds until the first result, with loading and all that is compiled; peak
resident memory. "Same" is the share of translations that are those of the
Translator. Both libraries search without length penalty, as their formulas
differ by default, and CTranslate2 sorts by length and batches by tokens, with
the fastest setting of those tried.
"""


def write_grid(
    results: dict, folder: Path, titles: dict, baseline: str, peers: dict
):
    """Writes `decoding.md`, `.json` and `.png`.

    Args:
        results: The measurements, in seconds, by case and engine.
        folder: Folder to write to.
        titles: Title of each engine.
        baseline: The engine to which ratios are computed.
        peers: Other engines -> those of ours to compare with each.
    """
    names = [name for name in titles if _is_in_a_case(name, results)]
    lines = [
        "# Decoding speed",
        "",
        GRID_NOTES.format(
            runs=results["options"]["runs"],
            source=results["options"]["source_length"],
        ),
        *about(results),
        "## Milliseconds a step",
        "",
        *table(
            [*CASE_COLUMNS, "floor", *(titles[name] for name in names)],
            (
                [
                    *_case_cells(case),
                    number(case["floor"]["floor_ms"]),
                    *(_speed(case, name, baseline) for name in names),
                ]
                for case in results["cases"]
            ),
        ),
        *_beside_others(results, titles, peers),
        "## Settings, and targets that are those of our graph",
        "",
        "A setting is the fastest of those tried; float32 sums in another "
        "order, and so may choose other tokens.",
        "",
        *table(
            [*CASE_COLUMNS, *(titles[name] for name in names)],
            (
                [
                    *_case_cells(case),
                    *(_setting_cell(case, name) for name in names),
                ]
                for case in results["cases"]
            ),
        ),
    ]
    write(folder / "decoding", lines, results)
    panels = {}
    for case in results["cases"]:
        panels.setdefault(f"{case['size']}, {case['search']}", []).append(
            (f"batch {case['batch']}\n{case['length']} tokens", case["engines"])
        )
    draw_ratios(panels, folder / "decoding.png", titles, baseline)


def write_text(results: dict, folder: Path, titles: dict, baseline: str):
    """Writes `text.md`, `.json` and `.png`; arguments as `write_grid`."""
    cells = []
    for case in results["cases"]:
        for name, engine in case["engines"].items():
            seconds = np.array(engine["seconds"])
            same = engine["same"]
            cells.append(
                [
                    case["search"],
                    titles[name],
                    spread(seconds),
                    number(results["num_sentences"] / np.median(seconds)),
                    ratio_cell(case["engines"], name, baseline),
                    number(np.median(engine["first_result_seconds"])),
                    f"{np.median(engine['peak_bytes']) / 2**20:,.0f}",
                    "" if same is None else f"{same:.1%}",
                    _setting(engine["setting"]),
                ]
            )
    lines = [
        "# Translating text",
        "",
        TEXT_NOTES.format(
            runs=results["options"]["runs"],
            sentences=f"{results['num_sentences']:,}",
        ),
        *about(results),
        *table(
            [
                "search",
                "engine",
                "seconds",
                "sentences/s",
                "ratio",
                "first result, s",
                "peak MiB",
                "same",
                "setting",
            ],
            cells,
        ),
    ]
    write(folder / "text", lines, results)
    groups = [(case["search"], case["engines"]) for case in results["cases"]]
    panels = {f"{results['num_sentences']:,} sentences": groups}
    draw_ratios(panels, folder / "text.png", titles, baseline)


def write_steps(results: dict, folder: Path):
    """Writes `steps.md`, `.json` and `.png`: a step's time by its position."""
    title = (
        f"Greedy search, {results['batch']} sentences, room for "
        f"{results['capacity']:,} tokens"
    )
    rows = [
        [curve["size"], curve["title"], round(position), spread(ms)]
        for curve in results["curves"]
        for position, *ms in zip(
            curve["positions"], *curve["ms_per_step"], strict=True
        )
    ]
    lines = [
        "# Steps by position",
        "",
        f"{title}. Milliseconds a step, median (least–most) of "
        f"{results['options']['runs']} runs.",
        "",
        *about(results),
        *table(["size", "engine", "position", "ms a step"], rows),
    ]
    write(folder / "steps", lines, results)
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for curve in results["curves"]:
        x = np.array(curve["positions"])
        ms = np.array(curve["ms_per_step"])  # (runs, positions)
        label = f"{curve['size']}, {curve['title']}"
        (line,) = axes.plot(x, np.median(ms, axis=0), marker="o", label=label)
        axes.fill_between(
            x, ms.min(axis=0), ms.max(axis=0), alpha=0.2, color=line.get_color()
        )
    axes.set_xlabel("position in the target, tokens")
    axes.set_ylabel("milliseconds a step")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.legend()
    _save(figure, folder / "steps.png")


def draw_ratios(panels: dict, path: Path, titles: dict, baseline: str):
    """Draws how fast each engine is relative to the baseline.

    Whiskers reach from the slowest round to the fastest.

    Args:
        panels: Title of each panel -> label and engines of each group of bars.
        path: The PNG to write.
        titles: Title of each engine.
        baseline: The engine to which ratios are computed.
    """
    figure, all_axes = plt.subplots(
        len(panels),
        figsize=(12, 3.6 * len(panels)),
        squeeze=False,
        layout="constrained",
    )
    for axes, (title, groups) in zip(
        all_axes[:, 0], panels.items(), strict=True
    ):
        _draw_bars(axes, groups, titles, baseline)
        axes.set_title(title)
        axes.axhline(1, color="black", linewidth=1)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel(f"{titles[baseline]} = 1")
        if axes.containers:  # something besides the baseline
            # Below the axes, where it covers no bar.
            axes.legend(
                fontsize="small",
                ncols=4,
                loc="upper center",
                bbox_to_anchor=(0.5, -0.18),
            )
    _save(figure, path)


def about(results: dict) -> list[str]:
    """Lines on the machine, the versions and what was left out."""
    machine = results["machine"]
    flags = [name for name, has in machine["flags"].items() if has]
    lines = [
        f"- {machine['cpu']}, {machine['cores']} cores "
        f"({', '.join(flags) or 'none of AVX-512, VNNI, bfloat16'}), "
        f"{machine['memory_gib']} GiB memory, {machine['system']}",
        "- " + ", ".join(f"{k} {v}" for k, v in results["versions"].items()),
    ]
    if "ceilings" in results:
        lines.append(f"- measured ceilings: {_ceilings(results['ceilings'])}")
    for name, reason in results["skipped"].items():
        lines.append(f"- left out: {name}, {reason}")
    return [*lines, ""]


def table(header, rows) -> list[str]:
    """A table in Markdown, followed by an empty line."""
    return [
        f"| {' | '.join(map(str, cells))} |"
        for cells in (header, ["---"] * len(header), *rows)
    ] + [""]


def write(path: Path, lines: list[str], results: dict):
    """Writes the lines as `.md` and the results as `.json`."""
    text = "\n".join(lines).rstrip() + "\n"
    path.with_suffix(".md").write_text(text, "utf-8")
    text = json.dumps(results, indent=1, ensure_ascii=False)
    path.with_suffix(".json").write_text(text + "\n", "utf-8")


def ratio_cell(engines: dict, name: str, baseline: str) -> str:
    """The baseline's time divided by the engine's, median over rounds."""
    ratios = _ratios(engines, name, baseline)
    return f"{np.median(ratios):.2f}" if ratios else ""


def fastest_cell(engines: dict, names, other: str, titles: dict) -> str:
    """The fastest of some engines, and its ratio to another."""
    ratios = {name: _ratios(engines, name, other) for name in names}
    ratios = {name: found for name, found in ratios.items() if found}
    if not ratios:
        return ""
    best = max(ratios, key=lambda name: np.median(ratios[name]))
    return f"{titles[best]} {spread(ratios[best])}"


def spread(values) -> str:
    """Median (least–most)."""
    return (
        f"{number(np.median(values))} "
        f"({number(np.min(values))}–{number(np.max(values))})"
    )


def number(value) -> str:
    """A number with three significant digits and no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    digits = 2 - int(np.floor(np.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 6)}f}"


def _draw_bars(axes, groups, titles, baseline):
    names = [
        name
        for name in titles
        if name != baseline and any(name in engines for _, engines in groups)
    ]
    width = 0.8 / max(len(names), 1)
    axes.set_prop_cycle(color=plt.colormaps["tab20"].colors)
    for place, name in enumerate(names):
        # Where the engine or the baseline has no times, there is no bar.
        ratios = [
            _ratios(engines, name, baseline) or [np.nan]
            for _, engines in groups
        ]
        medians = np.array([np.median(x) for x in ratios])
        spread = [
            medians - [min(x) for x in ratios],
            [max(x) for x in ratios] - medians,
        ]
        x = np.arange(len(groups)) + (place - (len(names) - 1) / 2) * width
        axes.bar(
            x,
            medians - 1,
            width,
            bottom=1,  # faster goes up, slower goes down
            yerr=spread,
            capsize=2,
            label=titles[name],
        )
    axes.set_xticks(np.arange(len(groups)), [label for label, _ in groups])


def _case_cells(case):
    return [case["size"], case["search"], case["batch"], case["length"]]


def _is_in_a_case(name, results):
    return any(name in case["engines"] for case in results["cases"])


def _ratios(engines, name, baseline):
    """The baseline's time over the engine's, for each round."""
    if name not in engines or baseline not in engines:
        return []
    return [
        theirs / ours
        for theirs, ours in zip(
            engines[baseline]["seconds"], engines[name]["seconds"], strict=True
        )
    ]


def _speed(case, name, baseline):
    if name not in case["engines"]:
        return ""
    seconds = np.array(case["engines"][name]["seconds"])
    ratio = ratio_cell(case["engines"], name, baseline)
    milliseconds = spread(1000 * seconds / case["length"])
    return f"{milliseconds} **{ratio}**" if ratio else milliseconds


def _beside_others(results, titles, peers):
    others = [name for name in peers if _is_in_a_case(name, results)]
    if not others:
        return []
    return [
        "## Ours beside each of the others",
        "",
        "The fastest of ours with the same kind of weights, float32 or int8: "
        "how many times as fast it is, median (least–most) of the rounds.",
        "",
        *table(
            [*CASE_COLUMNS, *(titles[name] for name in others)],
            (
                [
                    *_case_cells(case),
                    *(
                        fastest_cell(case["engines"], peers[name], name, titles)
                        for name in others
                    ),
                ]
                for case in results["cases"]
            ),
        ),
    ]


def _setting_cell(case, name):
    if name not in case["engines"]:
        return ""
    engine = case["engines"][name]
    parts = [_setting(engine["setting"])]
    if engine["same"] is not None:
        parts.append(f"{engine['same']:.0%}")
    return ", ".join(part for part in parts if part)


def _setting(setting):
    """A setting in words, such as `inter threads 2, intra threads 1`."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in setting.items()
    )


def _ceilings(ceilings):
    parts = [
        f"{dtype} matrix product "
        f"{ceilings[f'{dtype}_per_second'] / 1e9:,.0f} GFLOP/s"
        for dtype in DTYPES
    ]
    if "bytes_per_second" in ceilings:
        bytes_per_second = ceilings["bytes_per_second"]
        parts.append(f"memory read {bytes_per_second / 1e9:,.0f} GB/s")
    if "device" in ceilings:
        parts.append(f"of {ceilings['device']}")
    return ", ".join(parts)


def _save(figure, path):
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)

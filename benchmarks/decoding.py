"""Measures decoding: ours and other engines, side by side in one run.

    python benchmarks/decoding.py --output runs/decoding

`pip install '.[benchmarks]'` installs what it compares with; an engine that is
not there is left out. Leave the machine alone while it runs.

Nothing heavy is imported here: every engine runs in a process of its own,
which reads this file too.
"""

import itertools
import re
from pathlib import Path
from typing import Annotated

import command
import engines
import text_case
import typer
from cases import SOURCE_LENGTH
from cases import VOCABULARY_SIZES
from cases import Case
from run import Run

SEARCH = re.compile(r"greedy|beam([2-9]|[1-9]\d+)")

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def measure(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the results.")
    ] = Path("runs/decoding"),
    sizes: Annotated[
        str, typer.Option(help="Of test, tiny, base; with commas.")
    ] = "tiny,base",
    batch: Annotated[str, typer.Option(help="Numbers of sentences.")] = (
        "1,8,32,128"
    ),
    search: Annotated[str, typer.Option(help="greedy, beam4 and so on.")] = (
        "greedy,beam4"
    ),
    length: Annotated[str, typer.Option(help="Target tokens, forced.")] = (
        "24,100"
    ),
    engine: Annotated[
        str, typer.Option("--engines", help="Which engines; all by default.")
    ] = "all",
    runs: Annotated[int, typer.Option(min=1, help="Rounds to measure.")] = 5,
    text: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a translator: measure it text to text instead."
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Sentences for --text, one a line.")
    ] = None,
    step_plot: Annotated[
        bool,
        typer.Option(
            "--step-plot", help="Measure steps up to position 1,000 instead."
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is there.")
    ] = False,
):
    """Measure decoding: ours and other engines in turn, on the same weights.

    Writes a table, raw times and a plot.

    \b
    Engines:
      graph, xla, litert, litert-int8, ct2-float32, ct2-int8, keras-hub, marian
    Engines of --text:
      translator, translator-xla, saved-model, saved-model-xla,
      litert-float32, litert-int8, ct2-float32, ct2-int8

    \b
    Example:
      python benchmarks/decoding.py -o runs/decoding --sizes tiny --batch 1,32
      python benchmarks/decoding.py -o runs/text --text runs/en-de \\
        --source test.en
      python benchmarks/decoding.py -o runs/steps --step-plot
    """  # noqa: D301
    chosen_sizes = command.listed("--sizes", sizes, VOCABULARY_SIZES)
    searches = command.listed("--search", search)
    for name in searches:
        if not SEARCH.fullmatch(name):
            raise ValueError(
                "`--search` must be greedy, or beam with its width, such as "
                f"beam4. Received: {name!r}."
            )
    batches, lengths = _numbers("--batch", batch), _numbers("--length", length)
    if (text is None) != (source is None):
        raise ValueError("Give `--text` and `--source` together, or neither.")
    if text and step_plot:
        raise ValueError("Give `--text` or `--step-plot`, not both.")
    registry = text_case.ENGINES if text else engines.ENGINES
    names = command.listed(
        "--engines", ",".join(registry) if engine == "all" else engine, registry
    )
    command.make_folder(output, overwrite)
    if step_plot:
        names = []
    run = Run(output, registry, names, runs, source_length=SOURCE_LENGTH)
    if text:
        run.measure_text(text, source, searches)
    elif step_plot:
        run.measure_steps(chosen_sizes)
    else:
        cases = [
            Case(*values)
            for values in itertools.product(
                chosen_sizes, searches, batches, lengths
            )
        ]
        run.measure_grid(cases)
    if run.has_failed:
        raise typer.Exit(1)


def _numbers(option, text):
    names = command.listed(option, text)
    for name in names:
        if not name.isdecimal() or int(name) < 1:
            raise ValueError(
                f"`{option}` must be whole numbers of at least 1, with commas. "
                f"Received: {name!r}."
            )
    return [int(name) for name in names]


if __name__ == "__main__":
    command.run(app)

"""Measures decoding: ours and other engines, side by side in one run.

    python benchmarks/decoding.py --output runs/decoding

`pip install '.[benchmarks]'` installs the other engines; those that are missing
are left out. Leave the machine alone while it runs.

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

app = command.make_app()


@app.command()
def measure(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the results.")
    ] = Path("runs/decoding"),
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Of test, tiny, base; with commas.",
            show_default="tiny,base",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(help="Numbers of sentences.", show_default="1,8,32,128"),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="greedy, beam4 and so on.", show_default="greedy,beam4"
        ),
    ] = None,
    length: Annotated[
        str | None,
        typer.Option(help="Target tokens, forced.", show_default="24,100"),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engines", help="Which engines; all by default."),
    ] = None,
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
    """Measure decoding: ours and other engines in turn, on the same cases.

    Writes a table, the raw times and a plot.

    \b
    Engines:
      graph, xla, litert, litert-int8, litert-unscreened,
      ct2-float32, ct2-int8, keras-hub, marian
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
    if (text is None) != (source is None):
        raise ValueError("Give `--text` and `--source` together, or neither.")
    if text and step_plot:
        raise ValueError("Give `--text` or `--step-plot`, not both.")
    options = {
        "--sizes": sizes,
        "--batch": batch,
        "--search": search,
        "--length": length,
        "--engines": engine,
    }
    if text:
        command.check_unused("--text", options, "--search", "--engines")
    if step_plot:
        command.check_unused("--step-plot", options, "--sizes")
    chosen_sizes = command.listed(
        "--sizes", sizes, VOCABULARY_SIZES, default="tiny,base"
    )
    searches = command.listed("--search", search, default="greedy,beam4")
    for name in searches:
        if not SEARCH.fullmatch(name):
            raise ValueError(
                "`--search` must be greedy, or beam with its width, such as "
                f"beam4. Received: {name!r}."
            )
    batches = _numbers("--batch", batch, "1,8,32,128")
    lengths = _numbers("--length", length, "24,100")
    registry = text_case.ENGINES if text else engines.ENGINES
    names = command.listed(
        "--engines", engine, registry, default=",".join(registry)
    )
    if text and not (text / "translator.json").is_file():
        raise FileNotFoundError(f"No translator in {text}.")
    if source and not source.is_file():
        raise FileNotFoundError(f"No such file: {source}.")
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


def _numbers(option, text, default):
    names = command.listed(option, text, default=default)
    for name in names:
        if not name.isdecimal() or int(name) < 1:
            raise ValueError(
                f"`{option}` must be whole numbers of at least 1, with commas. "
                f"Received: {name!r}."
            )
    return [int(name) for name in names]


if __name__ == "__main__":
    command.run(app)

"""Measures training: ours and other libraries, side by side in one run.

    python benchmarks/training.py --output runs/training

`pip install '.[benchmarks]'` installs the other engines; those that are missing
are left out. Leave the machine alone while it runs.

Nothing heavy is imported here: every engine runs in a process of its own,
which reads this file too.
"""

import os
from pathlib import Path
from typing import Annotated

import command
import engines
import trainers
import typer
from run import Run
from training_case import CASES
from training_case import Text

app = command.make_app()


@app.command()
def measure(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the results.")
    ] = Path("runs/training"),
    backend: Annotated[
        str, typer.Option(help="Keras's: tensorflow, or jax for a GPU.")
    ] = "tensorflow",
    sizes: Annotated[
        str,
        typer.Option(
            help="Of test, tiny, base, on jax test, base, big; with commas."
        ),
    ] = "",
    engine: Annotated[
        str, typer.Option("--engines", help="Which engines; all by default.")
    ] = "",
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Sentences of a batch on each side.",
            show_default="the size's",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Batches of a run.", show_default="10"),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Rounds to measure.")] = 5,
    text: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="SOURCE TARGET",
            help="Two files, line by line: measure an epoch of them instead.",
        ),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Also say where our steps spend their time."
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is there.")
    ] = False,
):
    """Measure training: ours and other libraries in turn.

    All have the same sizes, batches, loss and optimizer, and each run has a new
    process; on jax, each engine. Prints a table, and writes it with the raw
    times and a plot.

    Engines: ours and keras-hub, each -float32, -float32-thread (one thread per
    operation; ours computes a part of the batch on each core), -float32-xla,
    -bfloat16, -bfloat16-thread and -bfloat16-xla; ours-float32-deterministic;
    ours-float32-rematerialized; torch-float32, torch-float32-compiled,
    torch-bfloat16, torch-bfloat16-compiled; marian-float32, marian-bfloat16. On
    jax, only those in bfloat16, with Keras compiled: 25,000 tokens on each
    side, for a GPU.

    \b
    Example:
      python benchmarks/training.py -o runs/training --sizes tiny
      python benchmarks/training.py -o runs/epochs --sizes tiny \\
        --text train.en train.de
      python benchmarks/training.py -o runs/gpu --backend jax
    """  # noqa: D301
    if backend not in CASES:
        raise ValueError(
            f"`--backend` must be one of {', '.join(CASES)}. Received: "
            f"{backend!r}."
        )
    cases, registry = CASES[backend], trainers.ENGINES[backend]
    all_sizes = ",".join(size for size in cases if size != "test")
    chosen_sizes = command.listed("--sizes", sizes or all_sizes, cases)
    names = command.listed("--engines", engine or ",".join(registry), registry)
    for file in text or ():
        if not file.is_file():
            raise FileNotFoundError(f"No such file: {file}.")
    if text:
        command.check_unused("--text", {"--steps": steps, "--batch": batch})
    steps = steps or 10
    profiled = [name for name in trainers.PROFILED if name in names]
    if profile and (text or not profiled):
        raise ValueError(
            "`--profile` is for random ids, and needs one of "
            f"{', '.join(trainers.PROFILED)} in `--engines`."
        )
    if backend == "jax" and engines.missing(["jax"]):
        raise ImportError(
            "`--backend jax` needs jax. `pip install jax` installs it."
        )
    command.make_folder(output, overwrite)
    os.environ["KERAS_BACKEND"] = backend  # of the processes started here
    # Else JAX takes most of the GPU's memory at once, also from the others.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    chosen = []
    for size in chosen_sizes:
        case = cases[size]._replace(steps=steps)
        case = case._replace(batch=batch or case.batch)
        if text:
            made = output / f"{size}.model", output / f"{size}.pickle"
            case = case._replace(text=Text(*map(os.fspath, (*text, *made))))
        chosen.append(case)
    run = Run(
        output,
        registry,
        names,
        runs,
        backend=backend,
        engines=names,
        steps=steps,
        batch=batch,
        xla_flags=os.environ.get("XLA_FLAGS", ""),
        text=[file.name for file in text or ()],
    )
    run.measure_training(chosen, backend, profiled if profile else ())
    print((output / "training.md").read_text("utf-8"), end="")
    if run.has_failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    command.run(app)

"""Checks many threads at once: the same answers, and memory that stays flat.

    python benchmarks/load.py runs/en-de test.en --output runs/load

Each export has a process of its own. Needs Linux, and matplotlib for the plot.
"""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import command
import engines
import load_case
import machine
import typer

from keras_transformer.text.lines import read_lines

app = command.make_app()


@app.command()
def measure(
    model: Annotated[
        Path,
        typer.Argument(
            help="Folder of a translator or a SavedModel, or a LiteRT file."
        ),
    ],
    text: Annotated[Path, typer.Argument(help="Sentences, one a line.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the results.")
    ] = Path("runs/load"),
    threads: Annotated[
        int, typer.Option(min=1, help="Threads that translate.")
    ] = 8,
    seconds: Annotated[
        float, typer.Option(min=1, help="How long, for each export.")
    ] = 60,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is there.")
    ] = False,
):
    """Translate with many threads; exit code 1 if something is amiss.

    All threads share one SavedModel, but each has its own LiteRT runner. They
    send requests of one to eight sentences. Answers must be those that the same
    requests get one at a time. After the warm-up, a sixth of the time, memory
    must stay flat, and nothing may be traced or compiled.

    \b
    Example:
      python benchmarks/load.py runs/en-de test.en -o runs/load
      python benchmarks/load.py exported/en-de/1 test.en --threads 4
    """  # noqa: D301
    if not os.path.exists("/proc/self/statm"):
        raise OSError("Memory is read from /proc, which only Linux has.")
    texts = list(read_lines(text))
    if not texts:
        raise ValueError(f"Text must not be empty. Received: {text}.")
    if not model.exists():
        raise FileNotFoundError(f"No such file or folder: {model}.")
    needs = ["matplotlib"]
    if not (model / "saved_model.pb").is_file():
        needs.append("ai-edge-litert")
    absent = engines.missing(needs)
    if absent:
        raise ImportError(
            f"This needs {' and '.join(absent)}. `pip install "
            f"{' '.join(absent)}` installs it."
        )
    command.make_folder(output, overwrite)
    import load_report

    results = {
        "options": {"threads": threads, "seconds": seconds, "text": text.name},
        "machine": machine.describe(),
        "versions": machine.versions(),
        "engines": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, path in _exports(model, folder).items():
            measured = load_case.measure_elsewhere(
                output / f"{name}.log",
                name=name,
                path=os.fspath(path),
                texts=texts,
                threads=threads,
                seconds=seconds,
            )
            measured |= load_case.judge(measured)
            results["engines"][name] = measured
            load_report.write(results, output)
    print((output / "load.md").read_text("utf-8"), end="")
    if not all(map(load_case.is_good, results["engines"].values())):
        raise typer.Exit(1)


def _exports(model, folder):
    """The exports to measure, by engine; a translator is exported first."""
    if model.is_file():
        return {"litert": model}
    if (model / "saved_model.pb").is_file():
        return {"saved-model": model}
    import keras_transformer as kt

    # In float32, as a LiteRT file computes, whatever the translator's dtype.
    translator = kt.Translator.load(model).with_dtype("float32")
    paths = {
        "saved-model": Path(folder, "saved_model"),
        "litert": Path(folder, "model.tflite"),
    }
    translator.export_saved_model(paths["saved-model"])
    translator.export_litert(paths["litert"], text=False)
    return paths


if __name__ == "__main__":
    command.run(app)

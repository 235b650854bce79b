"""`keras-transformer train`."""

import atexit
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.option_file import OptionFile
from keras_transformer.cli.options import Overwrite
from keras_transformer.cli.options import path_argument
from keras_transformer.cli.options import path_option
from keras_transformer.cli.options import with_options
from keras_transformer.cli.streams import quiet_start
from keras_transformer.cli.watcher import end_at_once
from keras_transformer.cli.watcher import start_watcher
from keras_transformer.system.paths import check_file
from keras_transformer.training_run.options import TrainingOptions


@with_options(TrainingOptions, "options")
def train(
    source: Annotated[
        Path, path_argument(help="Text file, one sentence per line.")
    ],
    target: Annotated[
        Path, path_argument(help="Its translation, line by line.")
    ],
    validation: Annotated[
        tuple[Path, Path] | None,
        path_option(
            metavar="<source target>",
            help="Source and target files to validate with.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Fail if there is no training to resume.",
        ),
    ] = False,
    overwrite: Overwrite = False,
    config: OptionFile = None,  # its options are already among the others
    *,
    options,
):
    """Train a translator from two text files.

    Each epoch ends with the validation loss, a sample translation, and a
    checkpoint. After training was stopped or killed, the same command, without
    --overwrite, goes on from the last checkpoint, and ends with the same result
    as an uninterrupted run. More epochs, or updates, extend a training that has
    ended, except with --decay.

    The folder holds the translator and, in "training", the settings, the
    command lines, checkpoints, log.csv, curves.png and a log for TensorBoard.

    \b
    Example:
      keras-transformer train train.en train.de -o runs/en-de \\
        --validation val.en val.de --epochs 20
      keras-transformer train train.en train.de -o runs/best \\
        --validation val.en val.de --epochs 100 --average-last 5 \\
        --monitor val_bleu --patience 5 --keep-best
      keras-transformer train law.en law.de -o runs/law \\
        --start-from runs/en-de --learning-rate 1e-4 --warmup-steps 100
      keras-transformer train train.en train.de -o runs/en-de \\
        --config recipe.yml
    """  # noqa: D301
    if options.get("distribute") == "multihost":
        watcher = start_watcher()
    else:  # several processes find out together: the others would wait
        for path in (source, target, *(validation or ())):
            check_file(path)  # raises now, not after seconds of imports
    with quiet_start():
        from keras_transformer.training_run.distribution import leave_processes
        from keras_transformer.training_run.interrupt import Stopped
        from keras_transformer.training_run.run import TrainingRun

    run = TrainingRun(TrainingOptions(**options))

    def say_stopped():
        arguments = sys.argv[1:]
        if run.history is not None:  # the old training is already replaced
            arguments = [a for a in arguments if a != "--overwrite"]
        print(
            f"\nStopped. {run.state()} Resume with:\n  {_as_typed(arguments)}",
            file=sys.stderr,
        )

    try:
        run.train(
            source,
            target,
            validation,
            command=_as_typed(sys.argv[1:]),
            resume=resume,
            overwrite=overwrite,
        )
    except Stopped as stop:
        say_stopped()
        raise typer.Exit(128 + stop.number) from None
    except (Exception, KeyboardInterrupt) as error:
        is_interrupt = isinstance(error, KeyboardInterrupt)
        # `main` reports errors, but then jax would wait at exit for the other
        # processes. Python calls the handler registered last first.
        if run.distribution.num_processes > 1:
            atexit.register(end_at_once, watcher, 130 if is_interrupt else 2)
        if is_interrupt or isinstance(error, BrokenPipeError):  # of `| head`
            say_stopped()
        if is_interrupt:
            raise typer.Exit(130) from None
        raise
    if run.distribution.num_processes > 1:
        leave_processes()
    if not run.distribution.is_chief:
        return  # only the first process writes the folder
    if not run.has_translator():  # removed after the last epoch
        raise FileNotFoundError(
            f"{run.state()} Train for more epochs, or pass `--overwrite` to "
            "start again."
        )
    print(
        f"{run.state()}\n{run.warning()}Try it with:\n"
        f"  keras-transformer translate {shlex.quote(run.options.output)} "
        "'A sentence.'",
        file=sys.stderr,
    )


def _as_typed(arguments):
    """The command line, with the backend if the environment names one."""
    command = shlex.join(["keras-transformer", *arguments])
    backend = os.environ.get("KERAS_BACKEND")
    return f"KERAS_BACKEND={backend} {command}" if backend else command

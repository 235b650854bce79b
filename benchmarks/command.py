"""What the commands in this folder have in common."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import typer


def make_app() -> typer.Typer:
    """Makes what commands are declared with."""
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def run(app):
    """Runs a command; user errors are one line and exit code 2."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        sys.exit(app(standalone_mode=False))
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        message = str(error)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's have it
            raise
        message = error.format_message()
    name = Path(sys.argv[0]).name
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def listed(
    option: str, text: str | None, choices=None, default: str = ""
) -> list[str]:
    """The names in a comma-separated option, each once."""
    text = default if text is None else text
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"`{option}` must not be empty.")
    for name in names:
        if choices is not None and name not in choices:
            raise ValueError(
                f"`{option}` must be of {', '.join(choices)}. Received: "
                f"{name!r}."
            )
    return list(dict.fromkeys(names))


def check_unused(mode: str, options: dict, *used: str):
    """Raises `ValueError` if an option is given that has no effect.

    Args:
        mode: The option that makes others have no effect.
        options: Values by option, `None` for one that is not given.
        *used: The options that still have an effect.
    """
    for option, value in options.items():
        if value is not None and option not in used:
            raise ValueError(
                f"`{option}` does nothing with `{mode}`; leave it out."
            )


def run_elsewhere(program, job: dict, log, environment=None):
    """Runs a program in a new process.

    Args:
        program: File that reads a job as JSON from standard input, and writes
            its result as JSON to the file that its argument names.
        job: The job.
        log: File object that receives what it prints.
        environment: Environment variables to add.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        process = subprocess.run(
            [sys.executable, program, result],
            input=json.dumps(job),
            env={**os.environ, **(environment or {})},
            stdout=log,
            stderr=log,
            text=True,
        )
        if process.returncode:
            raise RuntimeError(
                f"{Path(program).name} ended with code {process.returncode}; "
                f"{log.name} has what it said."
            )
        return json.loads(result.read_text("utf-8"))


def make_folder(path, overwrite):
    """Makes the folder for the results, or refuses one that is in use."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{os.fspath(path)!r} must be a folder.")
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise FileExistsError(
            f"{os.fspath(path)!r} is not empty, and nothing in it was touched. "
            "Pass `--overwrite` to replace earlier results."
        )
    path.mkdir(parents=True, exist_ok=True)

"""The command, and how it reports errors to the user."""

import functools
import importlib.util
import os
import re
import sys
from typing import Annotated

import typer

from keras_transformer.cli.align import align
from keras_transformer.cli.convert import convert
from keras_transformer.cli.evaluate import evaluate
from keras_transformer.cli.export import export
from keras_transformer.cli.options import CommandWithHeadings
from keras_transformer.cli.options import UsageError
from keras_transformer.cli.options import with_search_options
from keras_transformer.cli.score import score
from keras_transformer.cli.streams import forget_output
from keras_transformer.cli.streams import messages_may_be_lost
from keras_transformer.cli.streams import open_closed_streams
from keras_transformer.cli.streams import write_utf_8
from keras_transformer.cli.train import train
from keras_transformer.cli.translate import translate
from keras_transformer.cli.verify import verify
from keras_transformer.cli.vocabulary import vocabulary
from keras_transformer.system.extras import not_installed
from keras_transformer.version import __version__

# Lines of a TensorFlow error that say where it occurred, not what it is; stack
# frames are indented.
GRAPH_PLACE = re.compile(
    r"\s|Graph execution error:|Detected at node |Node: |<stack traces"
)

# Modules that may be missing: backends, and what a light install, which just
# translates, lacks.
MAY_BE_MISSING = (
    "jax",
    "keras",
    "rich",
    "sacrebleu",
    "safetensors",
    "tensorflow",
    "tensorflow_text",
    "torch",
    "yaml",
)

# Commands that need no tensorflow on the backend of JAX.
WITHOUT_TENSORFLOW = ("translate", "evaluate", "score", "align", "convert")

# Errors that a user sees as one line.
ERRORS = (
    ImportError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)

app = typer.Typer(
    name="keras-transformer",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main():
    """Runs the command; user errors are one line and exit code 2."""
    open_closed_streams()
    write_utf_8()
    with messages_may_be_lost():
        _run_and_report()


def _run_and_report():
    if "--traceback" in sys.argv:
        sys.argv.remove("--traceback")
        return app()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        code = _run()
    except UsageError as error:
        _end_with(_with_hint(error))
    except ModuleNotFoundError as error:
        package, *_ = (error.name or "").split(".")
        # A package that is there may be broken.
        is_known = package in MAY_BE_MISSING
        if is_known and not importlib.util.find_spec(package):
            error = not_installed("This", package)
            if package == "tensorflow" and _may_use_jax():
                error += " Or set KERAS_BACKEND=jax."
        _end_with(error)
    except ERRORS as error:
        _end_with(error)
    except Exception as error:
        # TensorFlow's derive from none of Python's above, and their messages
        # begin with the place in the graph.
        tensorflow = sys.modules.get("tensorflow")
        if not tensorflow or not isinstance(error, tensorflow.errors.OpError):
            raise
        _end_with(_reason(error.message) or type(error).__name__)
    sys.exit(code)


def _run():
    """Runs the command and returns its exit code; `None` is 0."""
    try:
        return app(standalone_mode=False)
    finally:
        sys.stdout.flush()  # else Python does on exit, with a traceback


def _may_use_jax():
    """Whether the backend of JAX would do, but was not chosen."""
    return (
        sys.argv[1] in WITHOUT_TENSORFLOW
        and os.environ.get("KERAS_BACKEND") != "jax"
        and bool(importlib.util.find_spec("jax"))
    )


def _with_hint(error):
    """The message of a `UsageError`, and where help is."""
    if error.ctx:
        command = error.ctx.command_path
    else:  # where an option lacks a value
        given = [name for name in sys.argv[1:2] if not name.startswith("-")]
        command = " ".join([app.info.name, *given])
    message = error.format_message()
    end = "" if message.endswith((".", "?")) else "."
    return f"{message}{end} See `{command} --help`."


def _reason(message):
    """The first line of TensorFlow's message that says what is wrong.

    In a graph, the nodes and where they were defined come before it; outside
    one, the operation does, on the same line.
    """
    message = re.sub(r"^\{\{.*?\}\}\s*", "", message)
    lines = (line for line in message.splitlines() if line.strip())
    return next((line for line in lines if not GRAPH_PLACE.match(line)), "")


def _with_options_named(message):
    """A message about arguments with the options that set them."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    command = typer.main.get_command(app).commands.get(name)
    options = {
        parameter.name: parameter.opts[0]
        for parameter in (command.params if command else ())
        if parameter.param_type_name == "option"
    }
    # What was received may be in a file, and of other arguments.
    rule, *received = message.partition(" Received: ")
    rule = re.sub(
        r"(?<=`)\w+(?=`)", lambda name: options.get(name[0], name[0]), rule
    )
    return "".join([rule, *received])


def _end_with(error):
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Keras prints bold
    message = " ".join(message.split()) or type(error).__name__
    message = _with_options_named(message)
    print(f"keras-transformer: {message}", file=sys.stderr)
    forget_output()
    sys.exit(2)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
):
    """Train, use, score, export and verify Transformers that translate text.

    COMMAND --help shows examples. --traceback after any command shows where an
    error came from.
    """
    if version:
        print(f"keras-transformer {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


command = functools.partial(app.command, cls=CommandWithHeadings)
command()(train)
command()(with_search_options(translate))
command()(with_search_options(evaluate))
command()(score)
command()(align)
command()(with_search_options(export))
command()(with_search_options(verify))
command()(convert)
command()(vocabulary)

"""Options that several commands share, most of them for the search."""

import functools
import inspect
from pathlib import Path
from typing import Annotated
from typing import Literal

import typer
from typer.core import TyperCommand

from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID
from keras_transformer.training_run.options import DtypePolicy

# What the parser of the command line raises; typer exports this class of it.
UsageError = typer.BadParameter.__base__

# Paths are checked where they are used: typer would refuse to write what may
# not be read.
path_argument = functools.partial(typer.Argument, readable=False)
path_option = functools.partial(typer.Option, readable=False)

Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace existing output.")
]

TranslatorFolder = Annotated[
    Path, path_argument(help="Folder of a trained translator.")
]

TranslatorOrFile = Annotated[
    Path,
    path_argument(help="Folder of a trained translator, or .tflite file."),
]

Dtype = Annotated[
    DtypePolicy | None,
    typer.Option(help="Keras dtype policy; by default the translator's own."),
]

MinLength = Annotated[
    int | None,
    typer.Option(
        help="Fewest tokens of a translation, as far as --max-length goes."
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        help="Most tokens of a translation; by default those of the source "
        "+ 50."
    ),
]
TokensPerBatch = Annotated[
    int | None,
    typer.Option(
        help="Most tokens to decode at once; fewer need less memory. 8192 by "
        "default; with a .tflite file, 1554 to 6216, as suits its model."
    ),
]
Truncate = Annotated[
    bool,
    typer.Option(
        "--truncate",
        help="Translate the beginning of lines that are too long, and say "
        "which; by default they are an error.",
    ),
]

# Options grouped under headings of `--help`.
of_exported = functools.partial(
    typer.Option, rich_help_panel="With a .tflite file"
)
of_search = functools.partial(typer.Option, rich_help_panel="Search")


NumThreads = Annotated[
    int | None,
    of_exported(help="Threads per batch; 1 by default."),
]
NumWorkers = Annotated[
    int | None,
    of_exported(help="Batches to decode in parallel; 1 by default."),
]


class CommandWithHeadings(TyperCommand):
    """A command whose `--help` groups options under their panels' names."""

    def format_options(self, ctx, formatter):
        sections = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = f"{parameter.param_type_name.capitalize()}s"
                # In some versions of typer, `--help` itself has none.
                panel = getattr(parameter, "rich_help_panel", None)
                heading = panel or kind
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _search_options(
    search: Annotated[
        Literal["greedy", "beam", "sampling"] | None,
        of_search(
            help="Kind of search, with its defaults; by default the "
            "translator's own search."
        ),
    ] = None,
    width: Annotated[
        int | None,
        of_search(help="Beam: hypotheses kept; 4 with --search beam."),
    ] = None,
    length_penalty: Annotated[
        float | None,
        of_search(
            help="Beam: above 0 favours longer translations; 0.6 with "
            "--search beam."
        ),
    ] = None,
    length_penalty_form: Annotated[
        Literal["gnmt", "power"] | None,
        of_search(
            help="Beam: divide scores by ((5 + length) / 6)^penalty (gnmt) or "
            "by length^penalty (power); gnmt with --search beam."
        ),
    ] = None,
    patience: Annotated[
        float | None,
        of_search(
            help="Beam: stop when width times this many hypotheses have "
            "ended; by default when no unfinished one can win."
        ),
    ] = None,
    num_hypotheses: Annotated[
        int | None,
        of_search(
            help="Beam and sampling: translations per sentence; a beam's best "
            "come first."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        of_search(
            help="Sampling: below 1 favours probable tokens; 1 by default."
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        of_search(
            help="Sampling: choose from this many most probable tokens; by "
            "default from all."
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        of_search(
            help="Sampling: choose from the most probable tokens that together "
            "have this probability; by default from all."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        of_search(
            help="Sampling: seed of the random choices; 0 with --search "
            "sampling, so that each run draws the same."
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        of_search(help="Above 1 discourages tokens that were already used."),
    ] = None,
    no_repeat_ngram_size: Annotated[
        int | None,
        of_search(help="Let no sequence of this many tokens occur twice."),
    ] = None,
    forbid_unknown: Annotated[
        bool | None,
        of_search("--forbid-unknown", help="Never choose the unknown token."),
    ] = None,
):
    """Declares once the options of every command that searches."""


def with_options(declared, name):
    """Makes a decorator that adds options to those of a command.

    Args:
        declared: A function or class whose arguments declare the options.
        name: The argument of the command that is not on the command line: it
            gets a dictionary of the added options that have a value.
    """
    added = inspect.signature(declared).parameters

    def decorate(command):
        own = dict(inspect.signature(command).parameters)
        del own[name]

        @functools.wraps(command)
        def decorated(**arguments):
            options = {option: arguments.pop(option) for option in added}
            return command(**arguments, **{name: given(**options)})

        parameters = [
            parameter.replace(kind=parameter.KEYWORD_ONLY)
            for parameter in [*own.values(), *added.values()]
        ]
        # Required ones first.
        parameters.sort(key=lambda p: p.default is not p.empty)
        decorated.__signature__ = inspect.Signature(parameters)
        decorated.__annotations__ = {p.name: p.annotation for p in parameters}
        return decorated

    return decorate


with_search_options = with_options(_search_options, "search_options")


def set_search(translator, options):
    """Gives the translator the search that the command line asks for.

    Args:
        translator: The translator, which keeps its own search by default.
        options: The `search_options` of a command.
    """
    from keras_transformer import search

    kinds = {
        "greedy": search.GreedySearch,
        "beam": search.BeamSearch,
        "sampling": search.Sampling,
    }
    options = dict(options)
    name = options.pop("search", None)
    if name:
        translator.search = kinds[name]()
    config = translator.search.get_config()
    if options.pop("forbid_unknown", False):
        forbidden = config["forbidden_token_ids"]
        if UNKNOWN_TOKEN_ID not in forbidden:
            options["forbidden_token_ids"] = [*forbidden, UNKNOWN_TOKEN_ID]
    for option in sorted(options.keys() - config.keys()):
        needed = " or ".join(
            f"--search {other}"
            for other, kind in kinds.items()
            if option in kind().get_config()
        )
        refuse([option], needed, type(translator.search).__name__)
    if options:
        kind = type(translator.search)
        translator.search = kind.from_config({**config, **options})


def given(**options):
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def refuse(options, needed, received):
    """Raises if any options are given: they need something else.

    Args:
        options: Their names, or a dictionary of them with their values.
        needed: What they need.
        received: What there is instead.
    """
    if options:
        name = next(iter(options))
        option = name.replace("_", "-")
        if isinstance(options, dict) and options[name] is False:
            option = f"no-{option}"
        raise ValueError(f"`--{option}` needs {needed}. Received: {received}.")

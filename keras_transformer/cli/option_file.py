"""Options of a command that are in a file instead of on its line."""

import difflib
from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.options import UsageError
from keras_transformer.cli.options import path_option
from keras_transformer.quoting import quoted

# The same command is to go on with a training that was stopped: with these in
# the file, it would remove it, or fail at the start.
TYPED_ONLY = ("overwrite", "resume", "config", "help")

# How YAML spells that there is no value.
NULL = ("", "~", "null", "Null", "NULL")


def take_options(context: typer.Context, path: Path | None):
    """Makes the options in a YAML file the defaults of the command.

    All of YAML's scalars are read as strings, which is what they are on the
    command line; what is empty or null is not given.

    Raises:
        FileNotFoundError: If there is no such file.
        UsageError: If the command cannot take an option in it.
        ValueError: If the file is not YAML, or does not hold options, each
            once.
    """
    if path is None:
        return None
    parameters = {
        parameter.name: parameter
        for parameter in context.command.get_params(context)
        if parameter.name not in TYPED_ONLY
    }
    context.default_map = {}
    for key, value in _named_values(path):
        name = key.replace("-", "_")
        if name not in parameters:
            raise _unknown(key, path, context, parameters)
        if name in context.default_map:
            raise ValueError(
                f"{str(path)!r} must have each option once. Received: {key!r} "
                "twice."
            )
        if value is None:
            context.default_map[name] = None
            continue
        parameter = parameters[name]
        wanted, values = "a single value", [value]
        if parameter.nargs > 1:
            wanted, values = f"a list of {parameter.nargs} values", value
        is_list = isinstance(values, list)
        if not is_list or not all(isinstance(x, str) for x in values):
            raise ValueError(
                f"{key!r} in {str(path)!r} must be {wanted}. Received: "
                f"{quoted(value)}."
            )
        try:
            parameter.process_value(context, value)
        except UsageError as error:
            error.message = f"{value!r} in {str(path)!r}: {error.message}"
            raise
        context.default_map[name] = value
    return path


def _named_values(path):
    """Yields names and values in a YAML file, also those that repeat."""
    import yaml

    from keras_transformer.system.paths import check_file

    with open(check_file(path), "rb") as file:
        try:
            loader = yaml.BaseLoader(file)  # libyaml's is not everywhere
            node = loader.get_single_node()
            if not isinstance(node, yaml.MappingNode):
                raise ValueError(
                    f"{str(path)!r} must hold options by their names, such as "
                    f"'epochs: 20'. Received: {node.id if node else 'nothing'}."
                )
            for name, value in node.value:
                if not isinstance(name, yaml.ScalarNode):
                    raise ValueError(
                        f"{str(path)!r} must hold options by their names. "
                        f"Received: {name.id} for a name."
                    )
                is_plain = (
                    isinstance(value, yaml.ScalarNode) and not value.style
                )
                value = loader.construct_object(value, deep=True)
                yield name.value, None if is_plain and value in NULL else value
        except (RecursionError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{str(path)!r} must be YAML: {reason}") from error


def _unknown(key, path, context, parameters):
    """The error for a name that is no option, with the nearest that is one."""
    name = key.replace("-", "_")
    if name in TYPED_ONLY:
        reason = f"--{key} must be on the command line, not in a file"
    else:
        near = difflib.get_close_matches(name, parameters, 1)
        hint = f" Did you mean {near[0].replace('_', '-')!r}?" if near else ""
        reason = f"there is no option {key!r}.{hint}"
    return typer.BadParameter(f"in {str(path)!r}, {reason}", ctx=context)


OptionFile = Annotated[
    Path | None,
    path_option(
        "--config",
        metavar="<path>",
        callback=take_options,
        is_eager=True,
        help="YAML file of options by their names, such as 'epochs: 20'. The "
        "command line has precedence.",
    ),
]

"""What is not installed, and what installs it."""


def not_installed(
    what: str, module: str | None, extra: str | None = None
) -> str:
    """Says that a module is missing, and how to install it.

    Args:
        what: What needs it.
        module: The name of the module; `None` if the error has none, as of
            what keeps modules from being imported.
        extra: The extra of `setup.cfg` that brings it; none if all installs do.
    """
    module, *_ = (module or "a module").split(".")
    place = "." if extra is None else f"'.[{extra}]'"
    return (
        f"{what} needs {module}, which is not installed. `pip install {place}`,"
        " in a checkout of this library, installs it."
    )

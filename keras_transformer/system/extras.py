"""What is not installed, and what installs it."""

# Modules that an extra of `setup.cfg` brings; others, all installs do.
EXTRAS = {"jax": "jax", "matplotlib": "plot", "torch": "marian"}

# Modules whose package has another name.
PACKAGES = {
    "ai_edge_litert": "ai-edge-litert",
    "google": "protobuf",
    "tensorflow_text": "tensorflow-text",
    "yaml": "pyyaml",
}

# Modules that a light install may add by themselves: the newest will do.
ALONE = ("ai_edge_litert", "numpy", "rich", "sacrebleu", "sentencepiece")


def not_installed(
    what: str, module: str | None, extra: str | None = None
) -> str:
    """Says that a module is missing, and how to install it.

    Args:
        what: What needs it.
        module: The name of the module; `None` if the error has none, as of
            what keeps modules from being imported.
        extra: The extra that brings it; by default as `EXTRAS` has it.
    """
    module, *_ = (module or "a module").split(".")
    package = PACKAGES.get(module, module)
    extra = extra or EXTRAS.get(module)
    place = "." if extra is None else f"'.[{extra}]'"
    alone = f", or `pip install {package}` that alone"
    return (
        f"{what} needs {package}, which is not installed. `pip install "
        f"{place}`, in a checkout of this library, installs it"
        f"{alone if module in ALONE else ''}."
    )

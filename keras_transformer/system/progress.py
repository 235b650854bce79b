"""Progress: bars, on standard error and only in a terminal, and samples."""

import sys


def print_sample(source, translation):
    """Prints a translation, with `?` for what standard output has no code."""
    text = f"\n  {source}\n  -> {translation}"
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


def with_progress(found, description, lengths, verbose):
    """Yields results that come batch by batch, and shows progress.

    Args:
        found: Iterable of tuples, of which the first is a batch: the indices
            of its texts.
        description: What the progress bar says.
        lengths: Tokens of each text.
        verbose: 0 is silent, 1 shows a bar where there is a terminal.
    """
    if not verbose:
        yield from found
        return
    # Late: a LiteRT file can be run without rich.
    import rich.console
    import rich.progress

    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(
        console=console, disable=not console.is_terminal, transient=True
    ) as progress:
        task = progress.add_task(description, total=sum(lengths))
        for batch, *others in found:
            yield batch, *others
            done = sum(lengths[index] for index in batch)
            progress.advance(task, done)


def tracked(lines, description: str, verbose):
    """Yields lines whose number is unknown, and shows how many there were.

    Args:
        lines: An iterable.
        description: What the progress bar says.
        verbose: 0 is silent, 1 shows the number where there is a terminal.
    """
    if not verbose:
        yield from lines
        return
    import rich.console
    import rich.progress

    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.TextColumn("{task.completed:,.0f} lines"),
        rich.progress.TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        yield from progress.track(lines, description=description)


def batch_bar(is_shown: bool):
    """Makes a bar for training, whose tasks have a field `results`.

    Args:
        is_shown: Whether to show it where there is a terminal.

    Returns:
        A `rich.progress.Progress`.
    """
    import rich.console
    import rich.progress

    console = rich.console.Console(stderr=True)
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(bar_width=16),  # leaves room for results
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeRemainingColumn(compact=True),
        rich.progress.TextColumn("{task.fields[results]}"),
        console=console,
        disable=not is_shown or not console.is_terminal,
        refresh_per_second=4,
        transient=True,
    )

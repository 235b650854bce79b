"""How long sources and targets may be, in tokens, without a backend."""

from keras_transformer.checks import check_not_negative
from keras_transformer.checks import check_positive

# Longest source if the model has no limit of its own: far longer than any
# sentence, and still within the memory of an ordinary machine.
LONGEST_SOURCE = 4096

# Most tokens of a target that may be asked for, as memory for all of them may
# be allocated at the first step.
MOST_LENGTH = 2**20


def default_max_length(source_length):
    """Most tokens of a target, by default: those of the source + 50.

    Section 6.1. The length is an integer, an array or a tensor.
    """
    return source_length + 50


def within_model(max_length, model):
    """Most tokens of a target, `None` if not given, in a model's limit."""
    if None in (max_length, model.max_length):
        return max_length
    return min(max_length, model.max_length)


def check_limits(min_length, max_length):
    """Checks the least and the most tokens of targets."""
    check_not_negative(min_length=min_length)
    lengths = {"min_length": min_length}
    if max_length is not None:
        check_positive(max_length=max_length)
        lengths["max_length"] = max_length
    for name, length in lengths.items():
        if length > MOST_LENGTH:
            raise ValueError(
                f"`{name}` must be at most {MOST_LENGTH:,} tokens. Received: "
                f"{name}={length}."
            )
    if max_length is not None and min_length > max_length:
        raise ValueError(
            "`min_length` must not be more than `max_length`. Received: "
            f"min_length={min_length}, max_length={max_length}."
        )


def rows_to_translate(rows, limit: int, truncate: bool):
    """Returns the rows of ids of texts, each with its end token.

    Args:
        rows: Lists of ids.
        limit: Most ids of a row.
        truncate: Whether to keep only the first ids of a longer row, and its
            end token; otherwise it is an error.
    """
    if truncate:
        return [
            row if len(row) <= limit else [*row[: limit - 1], row[-1]]
            for row in rows
        ]
    advice = "Split it into sentences, or pass `truncate=True`."
    check_row_lengths("texts", rows, limit, advice)
    return rows


def check_row_lengths(
    name, rows, limit: int, advice: str = "Split it into sentences."
):
    """Raises `ValueError` if the ids of a text are more than `limit`."""
    for index, row in enumerate(rows):
        if len(row) > limit:
            raise ValueError(
                f"`{name}` must not be longer than {limit} tokens. Received: "
                f"text {index} with {len(row)}. {advice}"
            )


def check_prefix_lengths(lengths, source_lengths, max_length, model, describe):
    """Checks that prefixes are no longer than their targets may be.

    Args:
        lengths: Tokens of each prefix.
        source_lengths: Tokens of each source. An empty one has an empty
            target, whatever its prefix.
        max_length: Most tokens of a target, or `None`.
        model: The `Transformer`.
        describe: Function of the index of a prefix to what a message calls it.
    """
    for index, (length, source_length) in enumerate(
        zip(lengths, source_lengths, strict=True)
    ):
        limit = max_length or default_max_length(source_length)
        limit = within_model(limit, model)
        if source_length and length > limit:
            raise ValueError(
                "A prefix must not be longer than the target may be. Received: "
                f"{describe(index)} of {length} tokens, max_length={limit}."
            )


def check_length(name: str, ids, max_length: int | None):
    """Raises `ValueError` if ids `(B, T)` are longer than a model takes."""
    length = ids.shape[1]
    if max_length is not None and length > max_length:
        raise ValueError(
            f"`{name}` must not be longer than `max_length`. Received: "
            f"{name} of {length} tokens, max_length={max_length}."
        )

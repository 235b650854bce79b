"""Checks of arguments, each with an error that says what to change."""

import fractions
import math
import numbers
from collections.abc import Iterable
from collections.abc import Mapping

import numpy as np

from keras_transformer.special_tokens import PAD_TOKEN_ID


def check_positive(**sizes: int):
    """Raises unless every named size is an integer of at least 1."""
    _check_fits_int64(**sizes)
    _check_each(sizes, lambda size: size >= 1, "be at least 1")


def check_not_negative(**sizes: int):
    """Raises unless every named size is an integer of at least 0."""
    _check_fits_int64(**sizes)
    _check_each(sizes, lambda size: size >= 0, "not be negative")


def check_integer(**values: int):
    """Raises unless every named value is an integer."""
    _check_types(
        values,
        lambda x: isinstance(x, numbers.Integral) and not isinstance(x, bool),
        "an integer",
    )


def check_number(**values: float):
    """Raises unless every named value is a number."""
    # Backends know no fractions, nor does JSON.
    refused = bool, fractions.Fraction
    _check_types(
        values,
        lambda x: isinstance(x, numbers.Real) and not isinstance(x, refused),
        "a number",
    )


def check_flag(**flags: bool):
    """Raises unless every named flag is `True` or `False`."""
    _check_types(flags, lambda x: isinstance(x, bool), "True or False")


def check_share(**shares: float):
    """Raises unless every named share is a number in `[0, 1)`."""
    check_number(**shares)
    _check_each(shares, lambda share: 0 <= share < 1, "be in [0, 1)")


def check_positive_share(**shares: float):
    """Raises unless every named share is a number in `(0, 1]`."""
    check_number(**shares)
    _check_each(shares, lambda share: 0 < share <= 1, "be in (0, 1]")


def check_positive_number(**values: float):
    """Raises unless every named value is a finite number greater than 0."""
    check_finite(**values)
    _check_each(values, lambda number: number > 0, "be greater than 0")


def check_not_negative_number(**values: float):
    """Raises unless every named value is a finite number of at least 0."""
    check_finite(**values)
    _check_each(values, lambda number: number >= 0, "not be negative")


def check_finite(**values: float):
    """Raises unless every named value is a finite number."""
    check_number(**values)
    _check_each(values, _is_finite, "be finite")


def _is_finite(number):
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer that no float holds
        return False


def _check_each(values, is_right, rule):
    for name, value in values.items():
        if not is_right(value):
            raise ValueError(f"`{name}` must {rule}. Received: {name}={value}.")


def _check_types(values, is_right, described):
    for name, value in values.items():
        if not is_right(value):
            raise TypeError(
                f"`{name}` must be {described}. Received: {name}={value!r} of "
                f"type {type(value).__name__}."
            )


def check_choice(choices, **values):
    """Raises unless every named value is one of `choices`."""
    for name, value in values.items():
        if value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise ValueError(
                f"`{name}` must be one of {listed}. Received: {name}={value!r}."
            )


def check_width(name: str, shape, hidden_dim: int):
    """Raises unless the last axis of `shape` has `hidden_dim` units."""
    if shape[-1] != hidden_dim:
        raise ValueError(
            f"`{name}` must be `hidden_dim` wide. Received: "
            f"{name}.shape={tuple(shape)}, hidden_dim={hidden_dim}."
        )


def check_known_width(name: str, shape, hidden_dim: int):
    """Like `check_width`, for a width that a graph need not know."""
    if shape[-1] is not None:
        check_width(name, shape, hidden_dim)


def check_axes(name: str, x, allowed, described: str):
    """Raises unless `x` is a tensor with one of the allowed numbers of axes.

    Args:
        name: What the message calls it.
        x: A tensor or an array.
        allowed: The numbers.
        described: What the message says that the shape must be.
    """
    if not hasattr(x, "shape"):
        raise TypeError(
            f"`{name}` must be a tensor or an array. Received: {name} of type "
            f"{type(x).__name__}."
        )
    shape = known_shape(x.shape)
    if shape is None or len(shape) not in allowed:
        found = f"{name}.shape={shape}."
        if shape is None:
            found = (
                f"{name} of a shape that TensorFlow does not know, as after "
                "`tf.py_function`. Set it with `tf.ensure_shape`."
            )
        raise ValueError(
            f"`{name}` must have shape {described}. Received: {found}"
        )


def check_sizes(name: str, shape, wanted):
    """Raises unless `shape` fits `wanted`, in all sizes that are known.

    It may lack the last axes, and a size may be 1, which broadcasts;
    `check_same_sizes` allows neither.
    """
    shape, wanted = known_shape(shape), known_shape(wanted)
    if None in (shape, wanted):
        return
    fits = len(shape) <= len(wanted) and all(
        size in (1, None, other) or other is None
        for size, other in zip(shape, wanted, strict=False)
    )
    if not fits:
        raise _wrong_shape(name, shape, wanted)


def check_same_sizes(name: str, shape, wanted):
    """Raises unless `shape` is as wanted, in all sizes that are known."""
    shape, wanted = known_shape(shape), known_shape(wanted)
    if None in (shape, wanted):
        return
    fits = len(shape) == len(wanted) and all(
        None in (size, other) or size == other
        for size, other in zip(shape, wanted, strict=True)
    )
    if not fits:
        raise _wrong_shape(name, shape, wanted)


def known_shape(shape) -> tuple | None:
    """A shape, `None` if TensorFlow does not know how many axes it has."""
    try:
        return tuple(shape)
    except ValueError:
        return None


def _wrong_shape(name, shape, wanted):
    return ValueError(
        f"`{name}` must have shape {wanted}. Received: {name}.shape={shape}."
    )


def check_ids(name: str, ids, vocabulary_size: int) -> np.ndarray:
    """Returns `ids` as an int32 array of shape `(B, T)`, or raises.

    It may be the same array, which belongs to whoever called.

    Args:
        name: What the message calls the ids.
        ids: Token ids as an array or nested list, shape `(B, T)`.
        vocabulary_size: Size `V` of the vocabulary the ids come from.

    Raises:
        TypeError: If the ids are not integers, or a ragged tensor, a dataset,
            or a tensor that has no values that NumPy can read.
        ValueError: If `ids` is not a rectangle, or an id not in `[0, V)`.
    """
    if hasattr(ids, "ragged_rank"):
        raise TypeError(
            f"`{name}` must be padded with 0. Received: a ragged tensor. Pass "
            "its `to_tensor()`."
        )
    try:
        array = np.asarray(ids)
    except ValueError:  # rows of unequal length
        array = np.asarray(ids, dtype=object)
    # A tensor of a function that is traced, or one on another device.
    except (NotImplementedError, TypeError) as error:
        reason, *_ = str(error).splitlines() or [""]
        raise TypeError(
            f"`{name}` must be an array whose values can be read. Received: "
            f"{name} of type {type(ids).__name__}. {reason} In a function that "
            "is traced, `Transformer.search` takes tensors."
        ) from error
    if array.dtype == object and array.ndim == 0:
        raise TypeError(
            f"`{name}` must be an array of ids. Received: {name} of type "
            f"{type(ids).__name__}."
        )
    if array.ndim != 2:
        received = f"{name}.shape={array.shape}"
        if array.dtype == object and all(hasattr(x, "__len__") for x in array):
            received = f"{name} with rows of several lengths"
        raise ValueError(
            f"`{name}` must have shape (B, T), shorter rows padded with 0. "
            f"Received: {received}."
        )
    whole = array.size == 0 or np.issubdtype(array.dtype, np.integer)
    if not whole:
        raise TypeError(
            f"`{name}` must hold integers. Received: {name}.dtype="
            f"{array.dtype}."
        )
    check_ids_in_range(name, array, vocabulary_size)
    return array.astype("int32", copy=False)


def check_token_ids(name: str, token_ids) -> tuple[int, ...]:
    """Returns a sequence of ids as a tuple, or raises."""
    if not _is_iterable(token_ids):
        raise TypeError(
            f"`{name}` must be a sequence of ids. Received: {name}="
            f"{token_ids!r}."
        )
    token_ids = tuple(token_ids)
    for token_id in token_ids:
        check_not_negative(**{name: token_id})
    return tuple(map(int, token_ids))


def check_token_sequences(name: str, sequences) -> tuple[tuple[int, ...], ...]:
    """Returns sequences of ids, none of them empty, as tuples, or raises."""
    if not _is_iterable(sequences):
        raise TypeError(
            f"`{name}` must be a sequence of sequences of ids. Received: "
            f"{name}={sequences!r}."
        )
    checked = []
    for index, ids in enumerate(sequences):
        if not _is_iterable(ids):
            raise TypeError(
                f"`{name}` must be a sequence of sequences of ids. Received: "
                f"{name}[{index}]={ids!r}."
            )
        checked.append(check_token_ids(f"{name}[{index}]", ids))
        if not checked[-1]:
            raise ValueError(
                f"`{name}` must not have an empty sequence. Received: one at "
                f"{index}."
            )
    return tuple(checked)


def check_ids_in_range(name: str, ids, vocabulary_size: int):
    """Raises `ValueError` unless every id of the array is in `[0, V)`."""
    if np.size(ids) == 0:
        return
    for extreme in (np.min(ids), np.max(ids)):
        if not 0 <= extreme < vocabulary_size:
            raise ValueError(
                f"`{name}` must be in [0, {vocabulary_size}), the ids of the "
                f"vocabulary. Received: {name} with id {extreme}. Were the ids "
                "made with another tokenizer?"
            )


def check_kind(name: str, value, kind: type, advice: str = ""):
    """Raises `TypeError` unless a value is of a class."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        message = (
            f"`{name}` must be {article} {kind.__name__}. Received: {name} of "
            f"type {type(value).__name__}. {advice}"
        )
        raise TypeError(message.rstrip())


def check_texts(name: str, texts) -> list[str]:
    """Returns an ordered iterable of strings as a list, or raises."""
    if isinstance(texts, str):
        raise TypeError(
            f"`{name}` must be a sequence of strings. Received: one string. "
            "Pass `[text]`; the result is a sequence too."
        )
    check_in_order(name, texts, f"`{name}` must be a sequence of strings.")
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            advice = ""
            if isinstance(text, bytes):
                advice = " Decode it: `text.decode()`."
            elif hasattr(text, "numpy"):
                advice = " Decode it: `text.numpy().decode()`."
            raise TypeError(
                f"`{name}` must be a sequence of strings. Received: {text!r} "
                f"of type {type(text).__name__} at index {index}.{advice}"
            )
    return texts


def check_as_many(**sequences):
    """Raises `ValueError` unless two sequences have the same length."""
    (one, first), (other, second) = sequences.items()
    if len(first) != len(second):
        raise ValueError(
            f"`{one}` and `{other}` must have the same length. Received: "
            f"{len(first)} and {len(second)}."
        )


def is_sequence(values) -> bool:
    """Whether a value is a list, a tuple, or an array of one axis."""
    is_array = len(getattr(values, "shape", ())) == 1  # or a column of a table
    return is_array or isinstance(values, (list, tuple))


def check_in_order(name: str, values, rule: str):
    """Raises `TypeError` unless a value is iterable, in a defined order.

    Args:
        name: What the message calls the value.
        values: The value. A table, which gives its columns' names or its rows,
            has more than one axis.
        rule: What the message says that it must be.
    """
    shape = getattr(values, "shape", (None,))
    is_bag = isinstance(values, (Mapping, set, frozenset, bytes))
    if isinstance(values, Iterable) and not is_bag and len(shape) == 1:
        return
    advice = "."
    if len(shape) > 1:
        advice = f" and shape {tuple(shape)}. Pass one column."
    raise TypeError(
        f"{rule} Received: {name} of type {type(values).__name__}{advice}"
    )


def check_padding_last(name: str, ids: np.ndarray):
    """Raises `ValueError` if padding precedes a token in a row of `(B, T)`."""
    is_padding = ids == PAD_TOKEN_ID
    precedes = np.any(is_padding[:, :-1] & ~is_padding[:, 1:], axis=1)
    if np.any(precedes):
        raise ValueError(
            f"`{name}` must have padding, id {PAD_TOKEN_ID}, only after the "
            f"tokens of a row. Received: {name} with padding before a token in "
            f"row {np.argmax(precedes)}. With Keras's `pad_sequences`, pass "
            "`padding='post'`."
        )


def _check_fits_int64(**sizes: int):
    """Raises unless every named size is an integer that backends hold."""
    check_integer(**sizes)
    _check_each(sizes, lambda size: size < 2**63, "be less than 2^63")


def _is_iterable(x):
    """Whether it has items, and is no string."""
    is_scalar = getattr(x, "shape", None) == ()  # which has `__iter__` too
    has_items = hasattr(x, "__iter__") and not is_scalar
    return has_items and not isinstance(x, (str, bytes))

"""Masks of attention, section 3.2.3. `True` means: may be attended to."""

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_axes
from keras_transformer.checks import check_sizes
from keras_transformer.special_tokens import PAD_TOKEN_ID


def padding_mask(ids):
    """Marks the ids that are not padding, `(B, S)` bool from `(B, S)`."""
    return ops.not_equal(ids, PAD_TOKEN_ID)


def causal_mask(target_length, source_length):
    """Lets a query attend to keys up to its own position, `(1, T, S)` bool."""
    allowed = ops.greater_equal(
        ops.expand_dims(ops.arange(target_length, dtype="int32"), 1),
        ops.expand_dims(ops.arange(source_length, dtype="int32"), 0),
    )
    return ops.expand_dims(allowed, 0)


def combine_masks(sizes, attention_mask=None, causal=None, **padding_masks):
    """Combines all masks given: a key is visible if every one allows it.

    Args:
        sizes: `(B, T, S)`, `None` where one is not known.
        attention_mask: Bool tensor `(B, T, S)` or `(T, S)`.
        causal: Bool tensor `(1, T, S)`.
        **padding_masks: Bool tensors `(B, S)`, `True` for keys that are not
            padding, or `None`, by the names that error messages use.

    Returns:
        Bool tensor that broadcasts to `(B, T, S)`, `None` without any mask.

    Raises:
        TypeError: If a mask is not a tensor.
        ValueError: If a mask has another shape or, outside of a graph, numbers
            other than 0 and 1.
    """
    masks = [] if causal is None else [causal]
    for name, mask in padding_masks.items():
        mask = as_padding_mask(name, mask, (sizes[0], sizes[2]))
        if mask is not None:
            masks.append(ops.expand_dims(mask, 1))
    attention_mask = as_attention_mask(attention_mask, sizes)
    if attention_mask is not None:
        if len(attention_mask.shape) == 2:
            attention_mask = ops.expand_dims(attention_mask, 0)
        masks.append(attention_mask)
    if not masks:
        return None
    combined = masks[0]
    for mask in masks[1:]:
        combined = ops.logical_and(combined, mask)
    return combined


def _as_bool(name, mask):
    """A mask as bools; raises `ValueError` unless of bools, or of 0 and 1.

    A mask that is added to scores has 0 where `True` should be. In a graph the
    values are unknown.
    """
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype != "bool":
        try:
            values = np.asarray(mask)
        # TensorFlow's and JAX's errors for a tensor of a graph, JAX's for one
        # of several processes, and PyTorch's for one of a GPU or with a
        # gradient: its values cannot be read here.
        except (NotImplementedError, RuntimeError, TypeError):
            values = np.zeros(0)
        others = values[(values != 0) & (values != 1)]
        if len(others):
            advice = "Of ids or counts, pass `ids != 0`."
            if np.any(others < 0):
                advice = "Of a mask that is added to scores, pass `mask == 0`."
            raise ValueError(
                f"`{name}` must be True where a key may be attended to. "
                f"Received: {name} of {dtype} with {others[0]}. {advice}"
            )
    return ops.cast(mask, "bool")


def first_given(*masks):
    """Returns the first mask that is not `None`, `None` if there is none."""
    return next((mask for mask in masks if mask is not None), None)


def as_padding_mask(name, mask, sizes):
    """A mask as bools, `None` if there is none; raises unless `(B, S)`.

    Args:
        name: What a message calls it.
        mask: Tensor, or `None`.
        sizes: `(B, S)`, `None` where one is not known.

    Raises:
        TypeError: As `combine_masks`.
        ValueError: As `combine_masks`.
    """
    if mask is None:
        return None
    check_axes(name, mask, (2,), "(B, S)")
    check_sizes(name, mask.shape, sizes)
    return _as_bool(name, mask)


def as_attention_mask(mask, sizes):
    """A mask as bools, `None` if there is none; raises unless it fits.

    Args:
        mask: Tensor `(B, T, S)` or `(T, S)`, or `None`.
        sizes: `(B, T, S)`, `None` where one is not known.

    Raises:
        TypeError: As `combine_masks`.
        ValueError: As `combine_masks`.
    """
    if mask is None:
        return None
    check_axes("attention_mask", mask, (2, 3), "(B, T, S) or (T, S)")
    check_sizes("attention_mask", mask.shape, sizes[-len(mask.shape) :])
    return _as_bool("attention_mask", mask)

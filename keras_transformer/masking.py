"""Masks of attention, section 3.2.3. `True` means: may be attended."""

from keras import ops

PAD_TOKEN_ID = 0


def padding_mask(ids):
    """Marks the ids that are not padding, `(B, S)` bool from `(B, S)`."""
    return ops.not_equal(ids, PAD_TOKEN_ID)


def causal_mask(target_length):
    """Lets each position attend itself and those before, `(1, T, T)` bool."""
    positions = ops.arange(target_length)
    allowed = ops.greater_equal(
        ops.expand_dims(positions, 1), ops.expand_dims(positions, 0)
    )
    return ops.expand_dims(allowed, 0)


def combine_masks(padding_mask=None, attention_mask=None, causal_length=None):
    """Joins what a query may attend by every mask given.

    Args:
        padding_mask: Bool tensor `(B, S)`, the keys that are not padding.
        attention_mask: Bool tensor `(B, T, S)` or `(T, S)`.
        causal_length: Length `T` to mask the future of, in tokens.

    Returns:
        Bool tensor that broadcasts to `(B, T, S)`, `None` without any mask.

    Raises:
        ValueError: If a mask has another number of axes.
    """
    masks = []
    if padding_mask is not None:
        _check_axes("padding_mask", padding_mask, (2,), "(B, S)")
        masks.append(ops.expand_dims(ops.cast(padding_mask, "bool"), 1))
    if attention_mask is not None:
        _check_axes(
            "attention_mask", attention_mask, (2, 3), "(B, T, S) or (T, S)"
        )
        attention_mask = ops.cast(attention_mask, "bool")
        if len(attention_mask.shape) == 2:
            attention_mask = ops.expand_dims(attention_mask, 0)
        masks.append(attention_mask)
    if causal_length is not None:
        masks.append(causal_mask(causal_length))
    if not masks:
        return None
    combined = masks[0]
    for mask in masks[1:]:
        combined = ops.logical_and(combined, mask)
    return combined


def first_given(*masks):
    """Returns the first mask that is not `None`, `None` if there is none."""
    return next((mask for mask in masks if mask is not None), None)


def _check_axes(name, mask, allowed, shape):
    if len(mask.shape) not in allowed:
        raise ValueError(
            f"`{name}` must have shape {shape}. Received: "
            f"{name}.shape={tuple(mask.shape)}."
        )

"""A look at what a model is given, before it trains for hours."""

import inspect
import warnings

import keras
import numpy as np

from keras_transformer.checks import check_axes
from keras_transformer.checks import check_ids
from keras_transformer.checks import check_padding_last
from keras_transformer.checks import check_sizes
from keras_transformer.lengths import check_length

# What a model takes the ids of.
SIDES = ("source_ids", "target_ids")

# Training data that can be checked without using it up. Only a dictionary is
# right; the others are refused by name.
ARRAYS = (dict, list, tuple, np.ndarray)


def check_training_data(
    model, x, y=None, sample_weight=None, needs_labels=False
):
    """Raises unless ids are in the vocabularies, and lengths and padding right.

    Args:
        model: A `Transformer`.
        x: What Keras takes; of a dataset the first batch is looked at.
        y: The labels, where they are not in `x`.
        sample_weight: Their weights, likewise.
        needs_labels: Whether something compares them with logits.
    """
    if is_dataset(x):
        # One of `tf.distribute` has no beginning to take.
        batches = list(x.take(1)) if hasattr(x, "take") else []
        if not batches:
            return
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batches[0])
    if not isinstance(x, ARRAYS):
        return  # such as a generator, which a look would use up
    check_keys("x", x)
    sizes = {
        "source_ids": model.source_vocabulary_size,
        "target_ids": model.vocabulary_size,
    }
    checked = {}
    for name, size in sizes.items():
        ids = check_ids(name, x[name], size)
        if not len(ids):
            raise ValueError(
                f"`{name}` must have at least one row. Received: {name}.shape="
                f"{ids.shape}."
            )
        check_length(name, ids, model.max_length)
        check_padding_last(name, ids)
        checked[name] = ids
    if _is_for_several_outputs(y, model.loss):
        return  # a subclass has them
    if y is not None:
        labels = check_ids("y", y, model.vocabulary_size)
        _check_shifted(checked["target_ids"], labels)
        if needs_labels and sample_weight is not None:
            check_sizes("sample_weight", np.shape(sample_weight), labels.shape)
    elif needs_labels:
        check_has_labels(y)


def _is_for_several_outputs(y, loss):
    if isinstance(y, dict) and isinstance(loss, dict):
        return True
    are_several = isinstance(y, (list, tuple)) and isinstance(
        loss, (list, tuple)
    )
    # Keras also takes several losses for one output, whose ids may be lists.
    return are_several and all(hasattr(labels, "shape") for labels in y)


def _check_shifted(target_ids, labels):
    """Raises, or warns, if labels are not what follows each token."""
    if labels.shape != target_ids.shape:
        rows, length = labels.shape
        advice = ""
        if target_ids.shape == (rows, length + 1):
            advice = " Drop the last token of 'target_ids'."
        raise ValueError(
            "`y` must have an id for each of 'target_ids'. Received: "
            f"y.shape={labels.shape}, target_ids.shape={target_ids.shape}."
            f"{advice}"
        )
    if np.any(labels) and np.array_equal(labels, target_ids):
        warnings.warn(  # no error: the `call` of a subclass may shift them
            "`y` should be the ids that follow those of 'target_ids', which "
            "begin with the start token. They are equal, from which a model "
            "learns only to copy.",
            stacklevel=4,
        )


def warn_of_probabilities(loss):
    """Warns if a loss of Keras would take logits for probabilities."""
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    if isinstance(loss, keras.losses.Loss):
        from_logits = loss.get_config().get("from_logits")
    elif inspect.isfunction(loss):
        option = inspect.signature(loss).parameters.get("from_logits")
        from_logits = option and option.default
    else:
        return
    if from_logits is False:  # no error: a subclass may give probabilities
        warnings.warn(
            "`loss` should be of logits, which a `Transformer` gives. "
            "Received: one of probabilities. Use `LabelSmoothedCrossentropy()` "
            "or `from_logits=True`.",
            stacklevel=3,
        )


def check_not_of_rows(loss, vocabulary_size):
    """Raises if a loss of one's own gives a number for each row, `(B,)`.

    Keras would multiply the numbers by the weights of tokens, `(B, T)`, along
    the wrong axis where `B` is `T`.
    """
    if isinstance(loss, keras.losses.Loss):
        if type(loss).__call__ is not keras.losses.Loss.__call__:
            return  # it reduces by itself
        # Not itself, which may keep something of its first call; and not by
        # `copy`, for which Keras would make it anew from its configuration.
        twin = object.__new__(type(loss))
        vars(twin).update(vars(loss))
        loss = twin.call
    if isinstance(loss, str) or not callable(loss):
        return  # a name of Keras's, none, or several
    home, *_ = (getattr(loss, "__module__", None) or "").split(".")
    if home in ("keras", "keras_transformer"):
        return
    labels = keras.KerasTensor((2, 3), "float32")
    logits = keras.KerasTensor((2, 3, vocabulary_size), "float32")
    try:
        values = _Function(loss).compute_output_spec(labels, logits)
    # It is the user's own, and may raise anything: of these shapes alone, and
    # then it trains, or of all, and then training ends with that error.
    except Exception:
        return
    if getattr(values, "shape", None) == (2,):
        raise ValueError(
            "`loss` must give a number for each token, `(B, T)`, or one for "
            "the batch. Received: one that gives a number for each row, "
            "`(B,)`. Return their mean, or override `compute_loss`."
        )


class _Function(keras.Operation):
    """A function of tensors, which Keras can trace."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, *args):
        return self.function(*args)


def check_has_labels(y):
    """Raises if there is nothing for a loss to compare with logits."""
    if y is None:
        raise ValueError(
            "`y` must be the labels `(B, T)`, the targets through the end "
            "token. Received: y=None."
        )


def check_no_class_weight(class_weight):
    """Raises if there is one: Keras expects one class per row for it."""
    if class_weight is not None:
        raise ValueError(
            "`class_weight` must be `None`: a row has many labels, and Keras "
            "would weigh the row by one of them. Received: class_weight of "
            f"type {type(class_weight).__name__}. Weigh tokens with "
            "`sample_weight` `(B, T)`."
        )


def check_keys(name, inputs):
    """Raises unless `inputs` is a dictionary with the ids of both sides."""
    message = (
        f"`{name}` must be a dictionary with 'source_ids' and 'target_ids'. "
        f"Received: {name} of "
    )
    if not isinstance(inputs, dict):
        advice = ""
        if isinstance(inputs, (tuple, list)) and len(inputs) == 2:
            advice = (
                " Of a pair make {'source_ids': source, 'target_ids': target}; "
                "`map` does it for a dataset."
            )
        raise TypeError(f"{message}type {type(inputs).__name__}.{advice}")
    if not set(SIDES) <= set(inputs):
        raise ValueError(f"{message}keys {sorted(inputs)}.")


def check_pairs(inputs):
    """Raises unless both sides are matrices with the same number of rows."""
    sources, targets = inputs["source_ids"], inputs["target_ids"]
    check_axes("source_ids", sources, (2,), "(B, S)")
    check_axes("target_ids", targets, (2,), "(B, T)")
    sizes = sources.shape[0], targets.shape[0]
    # Not those of a program that is being traced.
    rows = {size for size in sizes if isinstance(size, int)}
    if len(rows) > 1:
        raise ValueError(
            "'source_ids' and 'target_ids' must have the same number of rows. "
            "Received: "
            f"source_ids.shape={tuple(sources.shape)}, target_ids.shape="
            f"{tuple(targets.shape)}."
        )


def is_dataset(x):
    """Whether it is a `tf.data.Dataset`, or one of `tf.distribute`."""
    return hasattr(x, "element_spec")

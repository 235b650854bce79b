"""The weights of a model by name."""

import keras
import numpy as np
from keras import ops

from keras_transformer.layer import parts_in


def sync_weights(model):
    """Brings the weights back into the model.

    Within an epoch, `fit` on JAX keeps them outside of it.
    """
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def named_variables(model) -> dict:
    """The weights of a model, as variables, by the path of their layers.

    Raises:
        ValueError: If two weights have the same path.
    """
    of_parts = {}
    for name, part, _ in parts_in(model):
        for variable in (
            *part._trainable_variables,
            *part._non_trainable_variables,
        ):
            # A part may have other owners, which come later.
            of_parts.setdefault(id(variable), f"{name}/{variable.name}")
    variables = {}
    for variable in model.weights:
        # A model may be part of another layer: its name is not all of its path.
        path = variable.path.removeprefix(f"{model.path}/")
        name = of_parts.get(id(variable), path)
        if name in variables:
            raise ValueError(
                "Layers must have names of their own, to tell their weights "
                f"apart. Received: {name} twice."
            )
        variables[name] = variable
    return variables


def named_weights(model) -> dict[str, np.ndarray]:
    """The weights of a model by the path of their layers.

    Raises:
        ValueError: If two weights have the same path.
    """
    sync_weights(model)
    return {
        name: np.asarray(ops.convert_to_numpy(variable), order="C")
        for name, variable in named_variables(model).items()
    }


def check_finite_weights(weights):
    """Raises `ValueError` if a weight holds NaN or infinity.

    Args:
        weights: Pairs of a name and an array.
    """
    for name, array in weights:
        if not np.all(np.isfinite(array)):
            raise ValueError(
                "Weights must be finite numbers to be written. Received: "
                f"{name}, which has others. If training has diverged, train "
                "again with a lower `learning_rate`, more `warmup_steps` or "
                "`clip_norm`."
            )


def check_finite_model(model):
    """Raises `ValueError` unless all weights of a model are finite numbers.

    Args:
        model: The model, in which two weights may have the same path.
    """
    sync_weights(model)
    check_finite_weights(
        (variable.path, ops.convert_to_numpy(variable))
        for variable in model.weights
    )


def check_arrays(variables: dict, arrays: dict, subject: str):
    """Raises `ValueError` unless arrays are such as those of variables.

    They have the same names and shapes, and are floats where those are.

    Args:
        variables: Those of a model by name.
        arrays: Arrays by name.
        subject: What a message calls them.
    """
    for name, variable in variables.items():
        if name not in arrays:
            raise ValueError(
                f"{subject} must be those of the model. Received: none for "
                f"{name}, which the model has."
            )
        shape, found = tuple(variable.shape), arrays[name].shape
        if found != shape:
            raise ValueError(
                f"{subject} must be those of the model. Received: {name} of "
                f"shape {found}, the model has {shape}."
            )
        dtype = arrays[name].dtype.name
        is_float = keras.backend.is_float_dtype
        if is_float(dtype) != is_float(variable.dtype):
            raise ValueError(
                f"{subject} must be those of the model. Received: {name} of "
                f"{dtype}, the model has {variable.dtype}."
            )
    strange = arrays.keys() - variables.keys()
    if strange:
        raise ValueError(
            f"{subject} must be those of the model. Received: {min(strange)}, "
            "which the model does not have."
        )


def assign_named_weights(model, values: dict, origin: str):
    """Gives the weights of a model the values of `named_weights`.

    Args:
        model: The model.
        values: Arrays by name.
        origin: What a message calls the place they come from.

    Raises:
        ValueError: Before any is assigned, unless they are those of the
            model. The message names the first that differs, and both shapes.
    """
    variables = named_variables(model)
    check_arrays(variables, values, f"The weights in {origin}")
    for name, variable in variables.items():
        variable.assign(values[name])

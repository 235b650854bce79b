"""Models and searches as Keras describes and recreates them."""

import inspect

import keras

from keras_transformer.layer import check_not_quantized
from keras_transformer.search import Search
from keras_transformer.transformer import Transformer

# Values that are compared as they are.
PLAIN = (bool, int, float, str, tuple, list, type(None))


def check_describable(model):
    """Raises `ValueError` unless configuration and weights describe all."""
    check_not_quantized(model)
    if type(model) is not Transformer:
        # Fails where it would fail to be loaded: layers may be built by now
        # that nothing will build then.
        type(model).from_config(model.get_config())
    for layer in model._flatten_layers():
        if not _can_be_read(getattr(layer, "activation", None)):
            raise ValueError(
                "The model must have activations that Keras can load. "
                f"Received: {layer.path} with {layer.activation}. Register a "
                "function with "
                "`keras.saving.register_keras_serializable`."
            )
        if getattr(layer, "lora_enabled", False):
            raise ValueError(
                "The model must be without LoRA, which its configuration does "
                f"not record. Received: {layer.path} with LoRA. To merge it, "
                "call `model.save('merged.keras')`, and make a `Translator` of "
                "`keras.saving.load_model('merged.keras')`."
            )


def check_registered(**objects):
    """Raises `ValueError` unless Keras can find the class of each."""
    for name, value in objects.items():
        kind = type(value)
        registered_name = keras.saving.get_registered_name(kind)
        if keras.saving.get_registered_object(registered_name) is not kind:
            raise ValueError(
                f"`{name}` must be of a class that Keras can find again. "
                f"Received: a {kind.__name__}. Decorate the class with "
                "`@keras.saving.register_keras_serializable()`."
            )


def deserialized(kind: type, description: dict, origin: str):
    """Recreates a model or a search from its Keras description.

    Args:
        kind: The class that it must be of.
        description: The description.
        origin: What a message calls the place it comes from.

    Raises:
        ValueError: If Keras cannot make it, or it is of another class.
    """
    try:
        made = keras.saving.deserialize_keras_object(description)
    # Keras raises these for a damaged description.
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{origin} must describe what can be recreated. Received: "
            f"{description['class_name']}: {error}"
        ) from error
    if not isinstance(made, kind):
        raise ValueError(
            f"{origin} must describe a {kind.__name__}. Received: "
            f"{description['class_name']}."
        )
    return made


def check_comes_back(search, description):
    """Raises `ValueError` unless a search is recreated with its arguments.

    Those are compared that are attributes of plain values.

    Args:
        search: The `Search`.
        description: As Keras has serialised it.
    """
    made = deserialized(Search, description, "`search`")
    names = {
        name
        for kind in type(search).__mro__
        for name in inspect.signature(kind.__init__).parameters
    }
    for name in sorted(names & {*vars(search)}):
        value, found = vars(search)[name], vars(made).get(name)
        if isinstance(value, PLAIN) and repr(value) != repr(found):
            raise ValueError(
                "`search` must have a `get_config` with all its arguments. "
                f"Received: a {type(search).__name__} with {name}={value!r}, "
                f"which would be loaded with {name}={found!r}."
            )


def _can_be_read(activation) -> bool:
    """Whether Keras can load the activation that it writes."""
    if activation is None or isinstance(activation, keras.layers.Layer):
        return True
    if getattr(activation, "__name__", None) == "<lambda>":
        return False  # Keras would warn
    try:
        described = keras.activations.serialize(activation)
        return keras.activations.get(described) is activation
    except (TypeError, ValueError):
        return False

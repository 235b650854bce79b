"""What the layers and the model have in common."""

import inspect
import re

import keras


class Freezable:
    """A Keras layer that saves which of its parts are frozen.

    Setting `trainable` also sets it for the parts of a layer, but Keras saves
    only the flag of the layer itself, and a loaded layer has new parts. So the
    configuration names, as `frozen`, the parts whose flag is not that of their
    parent. Each is set once: by `from_config` if the part exists by then,
    otherwise by `build`. What a user sets in between stays.

    Args:
        frozen: Names of parts that are frozen although the layer around them
            is not, or the other way round, such as `"encoder/layer_0"`, as
            in the configuration of a saved layer.
        **kwargs: For `keras.layers.Layer`.

    Raises:
        ValueError: If `dtype` is a policy of quantised layers.
    """

    def __init__(self, *, frozen=(), **kwargs):
        dtype = kwargs.get("dtype")
        if isinstance(dtype, keras.dtype_policies.DTypePolicyMap):
            # A copy, as Keras saves no policy of a map without a default.
            kwargs["dtype"] = keras.dtype_policies.DTypePolicyMap(
                dtype.default_policy.name, dict(dtype)
            )
        super().__init__(**kwargs)
        if self.dtype_policy.quantization_mode:
            raise ValueError(
                "`dtype` must be a policy to compute in, such as "
                f"'mixed_bfloat16'. Received: dtype={self.dtype_policy.name}. "
                "To quantise, call `quantize('int8')` once it is built."
            )
        self._pending_names = tuple(frozen)  # of parts to be set yet
        self._configured_ids = frozenset()  # of parts set by `from_config`

    def build(self, inputs_shape=None):
        super().build(inputs_shape)
        if self._configured_ids:
            for _, part, owner in parts_in(self):
                is_new = id(part) not in self._configured_ids
                if is_new and not owner.trainable:
                    part.trainable = False
            self._flip_pending()
        elif self._is_untouched():
            self._set_new_parts()
        # What `build` makes is trainable, also in a part that is frozen.
        for part in (self, *(part for _, part, _ in parts_in(self))):
            if not part.trainable:
                for weight in part._trainable_variables:
                    weight.trainable = False

    def compute_output_spec(self, *args, **kwargs):
        if not self.built:  # nothing to trace `call` with
            return super().compute_output_spec(*args, **kwargs)
        # By tracing, as if there were no `compute_output_shape`: that finds the
        # errors of `call`.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    @classmethod
    def from_config(cls, config, *args, **kwargs):
        layer = super().from_config(config, *args, **kwargs)
        if layer._is_untouched():
            layer._set_new_parts()
            layer._configured_ids = frozenset(
                id(part) for _, part, _ in parts_in(layer)
            )
        else:  # `__init__` has built or frozen parts, and may have made others
            layer._flip_pending()
        return layer

    def _is_untouched(self):
        """Whether no part has been frozen yet, alone or with the layer."""
        return all(part.trainable for _, part, _ in parts_in(self))

    def _set_new_parts(self):
        """Sets the flags of parts that have just been made."""
        if not self.trainable:
            # Keras ignores a flag that does not change: the parts made since
            # it was set would stay trainable.
            self.trainable = True
            self.trainable = False
        self._flip_pending()

    def _flip_pending(self):
        """Sets pending parts that exist to the opposite of their parents."""
        found = set()
        for name, part, owner in parts_in(self):
            if name in self._pending_names:
                part.trainable = not owner.trainable
                found.add(name)
        self._pending_names = tuple(
            name for name in self._pending_names if name not in found
        )

    def get_config(self):
        """Returns the arguments.

        Raises:
            ValueError: If a part is quantised, which they cannot express.
        """
        check_not_quantized(self)
        config = super().get_config()
        frozen = []
        if self.built or not self._is_untouched():
            frozen = [
                name
                for name, part, owner in parts_in(self)
                if part.trainable != owner.trainable
            ]
        if not self.built:  # there will be more parts
            frozen += [x for x in self._pending_names if x not in frozen]
        if frozen:
            config["frozen"] = frozen
        return config


class Layer(Freezable, keras.layers.Layer):
    """A layer whose output has the shape of its first input by default.

    Takes the arguments of `Freezable`.
    """

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        """The shape of the first input."""
        return tuple(inputs_shape)


def check_takes_training(layers):
    """Raises `TypeError` unless the `call` of each layer names `training`.

    Keras drops the argument where it is not named: dropout would stay off.
    """
    for layer in layers:
        if "training" not in inspect.signature(layer.call).parameters:
            raise TypeError(
                "`call` of a layer within another must name the argument "
                "`training`, which Keras hands on by its name. Received: that "
                f"of {type(layer).__name__}, which does not."
            )


def check_decodes_as_trained(layers, trained=("call",), step="step"):
    """Raises `TypeError` if a class changes how it trains, not how it decodes.

    Args:
        layers: A decoder and its layers, or their attentions.
        trained: The methods that compute whole targets.
        step: The method that computes one position.
    """
    for layer in layers:
        kinds = type(layer).__mro__

        def owner(name, kinds=kinds):
            return next((kind for kind in kinds if name in vars(kind)), None)

        of_step = owner(step)
        if of_step is None:
            raise TypeError(
                f"A part of a decoder must have the method `{step}`, which "
                f"decodes. Received: {type(layer).__name__}, which has none."
            )
        for kind, name in ((owner(name), name) for name in trained):
            if kind and kinds.index(kind) < kinds.index(of_step):
                raise TypeError(
                    f"A part of a decoder that overrides `{name}` must "
                    f"override `{step}` too, which decodes. Received: "
                    f"{kind.__name__}, which does not. If that changes nothing "
                    f"in decoding, say so with `{step} = "
                    f"{of_step.__name__}.{step}`."
                )


def builds_weights(layer) -> bool:
    """Whether a class has a `build` of its own, which may make weights."""
    return type(layer).build is not keras.layers.Layer.build


def check_not_quantized(layer):
    """Raises `ValueError` if Keras has quantised a part of a layer.

    Keras could not load it again.
    """
    for name, part, _ in parts_in(layer):
        if part.quantization_mode:
            raise ValueError(
                "A quantised layer cannot be saved, recreated, or exported to "
                f"LiteRT or CTranslate2. Received: {name} of {layer.name} in "
                f"{part.quantization_mode}. Do that before `quantize`; "
                "`Translator.export_litert(quantization='int8')` quantises."
            )


def parts_in(layer, prefix=""):
    """Yields each layer in a layer: its name, itself and its parent."""
    for part in layer._layers:
        name = prefix + _name_in(layer, part)
        yield name, part, layer
        yield from parts_in(part, f"{name}/")


def frozen_parts(layer) -> list[str]:
    """Names the parts that are frozen, but not those within them."""
    return [
        name
        for name, part, owner in parts_in(layer)
        if owner.trainable and not part.trainable
    ]


def _name_in(layer, part):
    """The name of a part, numbered within its owner if Keras chose the name.

    Keras's own number, as in `dense_7`, depends on what else was made before.
    """

    def default_name(part):
        name = re.sub(r"_\d+$", "", part.name)
        kind = type(part).__name__.replace("_", "").lower()
        return name if name.replace("_", "") == kind else None

    name = default_name(part)
    if name is None:
        return part.name
    alike = [x for x in layer._layers if default_name(x) == name]
    number = next(n for n, x in enumerate(alike) if x is part)
    return f"{name}_{number}" if number else name

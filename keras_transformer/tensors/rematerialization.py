"""Layers that are computed again, where others keep what they compute.

The gradient of a layer needs what the layer computed on its way to its output,
which is many times as large as that. A step of training keeps it for all layers
at once. Instead, it can keep only what went into each layer, and compute one
layer after another anew when their gradients are due
([Chen et al., 2016](https://arxiv.org/abs/1604.06174)).
"""

import contextlib
import itertools

import keras
from keras import ops


def rematerialized(layer):
    """Makes a function of a layer, which computes it again for its gradient.

    With the same dropout both times: `keras.remat` alone would draw it anew on
    TensorFlow, and fails with it on JAX.

    Args:
        layer: A layer that neither adds losses nor updates variables. On
            TensorFlow their gradients and updates would be wrong.

    Returns:
        A function of what the layer is called with: float tensors by their
        place, masks and flags by name. It raises `ValueError` if the layer adds
        a loss.
    """
    generators = [
        generator
        for part in layer._flatten_layers()
        for generator in part._seed_generators
    ]

    def call(*inputs, **kwargs):
        seeds = [generator.next() for generator in generators]

        def compute(*inputs):
            num_losses = len(layer.losses)
            with _giving(generators, seeds):
                outputs = layer(*inputs, **kwargs)
            if len(layer.losses) > num_losses:
                raise ValueError(
                    "A layer that is computed again must not add losses, as "
                    "they would have no gradient. Received: one that does, "
                    f"{layer.name}. Leave out `rematerialize`."
                )
            return outputs

        return keras.remat(compute)(*inputs)

    return call


@contextlib.contextmanager
def _giving(generators, seeds):
    """Has generators give seeds that were drawn before, or follow from them."""
    for generator, seed in zip(generators, seeds, strict=True):
        generator.next = _Repeated(seed)
    try:
        yield
    finally:
        for generator in generators:
            del generator.next


class _Repeated:
    """The method `next` of a generator that draws the same again each time.

    Args:
        seed: Integer tensor `(2,)`, the first of the seeds.
    """

    def __init__(self, seed):
        self.seed = seed
        self.calls = itertools.count()

    def __call__(self, ordered=True):
        call = next(self.calls)
        # The second number counts what the generator itself has drawn.
        return self.seed + ops.array([call, 0], self.seed.dtype)

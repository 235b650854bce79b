"""Layers that are computed again, where others keep what they compute.

The gradient of a layer needs what the layer computed on its way to its output,
which is many times as large as that. A step of training keeps it for all layers
at once. Instead, it can keep only what went into each layer, and compute one
layer after another anew when their gradients are due
([Chen et al., 2016](https://arxiv.org/abs/1604.06174)).
"""

import contextlib

import keras

from keras_transformer.layer import parts_in


def rematerialized(layer):
    """Makes a function of a layer, which computes it again for its gradient.

    With the same dropout both times, where `keras.remat` alone draws it anew.

    Args:
        layer: A layer.

    Returns:
        A function of what the layer is called with: float tensors by their
        place, masks and flags by name.
    """
    generators = [
        part.seed_generator
        for _, part, _ in parts_in(layer)
        if hasattr(part, "seed_generator")
    ]

    def call(*inputs, **kwargs):
        seeds = [generator.next() for generator in generators]

        def compute(*inputs):
            with _giving(generators, seeds):
                return layer(*inputs, **kwargs)

        return keras.remat(compute)(*inputs)

    return call


@contextlib.contextmanager
def _giving(generators, seeds):
    """Has generators give seeds that they have drawn before."""
    for generator, seed in zip(generators, seeds, strict=True):
        generator.next = lambda ordered=True, seed=seed: seed
    try:
        yield
    finally:
        for generator in generators:
            del generator.next

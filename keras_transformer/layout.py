"""How weights are split among devices, for models too big for one."""

import keras

from keras_transformer.checks import check_kind


def layout_map(
    device_mesh: keras.distribution.DeviceMesh, axis: str = "model"
) -> keras.distribution.LayoutMap:
    """Splits the weights of a `Transformer` among devices, with JAX.

    As [Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053): each device
    has some heads of every attention, some inner units of every feed-forward
    network and some rows of the vocabulary, so that devices add up their
    results once for each sublayer. Every device has all small weights.

    Args:
        device_mesh: The devices. Their number on `axis` must divide the
            vocabulary sizes, the number of heads and `intermediate_dim`.
        axis: The axis of `device_mesh` to split weights along; batches are
            split along the first.

    Returns:
        What `keras.distribution.ModelParallel` takes.

    Raises:
        TypeError: If `device_mesh` is not a `DeviceMesh`.
        ValueError: If `device_mesh` has no such axis.

    Example:
    >>> mesh = keras.distribution.DeviceMesh(
    ...     shape=(1, 1), axis_names=("batch", "model"), devices=["cpu:0"]
    ... )
    >>> len(layout_map(mesh))
    7
    """
    check_kind("device_mesh", device_mesh, keras.distribution.DeviceMesh)
    if axis not in device_mesh.axis_names:
        raise ValueError(
            "`axis` must be one of `device_mesh`. Received: axis="
            f"{axis!r}, device_mesh.axis_names={device_mesh.axis_names}."
        )
    layouts = keras.distribution.LayoutMap(device_mesh)
    layouts[r".*embedding/embeddings"] = (axis, None)
    layouts[r".*/output_projection/kernel"] = (None, axis)
    layouts[r".*attention/(query|key|value)/kernel"] = (None, axis)
    layouts[r".*attention/output/kernel"] = (axis, None)
    layouts[r".*feed_forward/inner/kernel"] = (None, axis)
    layouts[r".*feed_forward/inner/bias"] = (axis,)
    layouts[r".*feed_forward/outer/kernel"] = (axis, None)
    return layouts

"""The numbers of places, where sizes are known and where they are not."""

import numpy as np
import pytest

from keras_transformer.slices import numbered

from .compiled import of_any_size


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_places_of_any_tensor_are_numbered(dtype, axis):
    x = np.zeros((3, 4, 5), dtype)
    if dtype == "float32":
        x[...] = np.nan
    numbers = of_any_size(lambda x: numbered(x, axis), 3, dtype)
    np.testing.assert_array_equal(numbers(x), np.arange(x.shape[axis]))
    np.testing.assert_array_equal(numbered(x, axis), np.arange(x.shape[axis]))

"""Places of tensors, in every kind of graph."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.tensorflow_only import graphs
from keras_transformer.tensorflow_only import products
from keras_transformer.tensors.rows import join_rows
from keras_transformer.tensors.rows import split_rows
from keras_transformer.tensors.slices import at_least
from keras_transformer.tensors.slices import at_most
from keras_transformer.tensors.slices import numbered
from keras_transformer.tensors.slices import pick
from keras_transformer.tensors.slices import take
from keras_transformer.tensors.slices import write_slice

from .compiled import of_any_size
from .compiled import xla


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_places_of_any_tensor_are_numbered(dtype, axis):
    x = np.zeros((3, 4, 5), dtype)
    if dtype == "float32":
        x[...] = np.nan
    numbers = of_any_size(lambda x: numbered(x, axis), 3, dtype)
    np.testing.assert_array_equal(numbers(x), np.arange(x.shape[axis]))
    np.testing.assert_array_equal(numbered(x, axis), np.arange(x.shape[axis]))


@pytest.mark.skipif(
    keras.backend.backend() != "jax",
    reason="TensorFlow and PyTorch raise an error on a CPU",
)
def test_places_are_not_counted_from_the_end():
    x = np.arange(12, dtype="float32").reshape(3, 4)
    places = ops.convert_to_tensor(np.array([0, -1, 9], "int32"))
    assert np.isnan(pick(x, places)).tolist() == [False, True, True]
    found = np.isnan(take(x, places, axis=1))
    assert found.tolist() == [[False, True, True]] * 3


@pytest.mark.parametrize("size", ["bfloat16", "float16", "float32"])
def test_limits_of_integers_are_integers(floatx, size):
    floatx(size)
    places = ops.arange(-1, 3, dtype="int32")
    for found, expected in (
        (at_least(places, 0), [0, 0, 1, 2]),
        (at_most(places, 1), [-1, 0, 1, 1]),
        (at_most(3, ops.max(places)), 2),
    ):
        assert keras.backend.standardize_dtype(found.dtype) == "int32"
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_places_are_taken(axis):
    x = np.arange(60, dtype="int32").reshape((3, 4, 5))
    places = np.array([[2, 0], [1, 1]], "int32")

    def taken(x):
        return take(x, places, axis)

    for function in (taken, xla(taken), of_any_size(taken, 3, "int32")):
        np.testing.assert_array_equal(function(x), np.take(x, places, axis))


@pytest.mark.parametrize("rank", [2, 3])
def test_one_entry_of_each_row_is_picked(rank):
    x = np.arange(60, dtype="int32").reshape((3, 4, 5)[-rank:-1] + (-1,))
    places = np.arange(x[..., 0].size, dtype="int32") % x.shape[-1]
    places = places.reshape(x.shape[:-1])
    expected = np.take_along_axis(x, places[..., None], axis=-1)[..., 0]

    def picked(x):
        return pick(x, places)

    for function in (picked, xla(picked), of_any_size(picked, rank, "int32")):
        np.testing.assert_array_equal(function(x), expected)


@pytest.mark.parametrize("rows", [0, 1, 7, 8])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_are_split_evenly_and_joined(rows, count):
    x = np.arange(rows * 5, dtype="int32").reshape((rows, 5))

    def again(x):
        parts = split_rows(x, count)
        assert len(parts) == count
        return join_rows(parts)

    for function in (again, of_any_size(again, 2, "int32")):
        np.testing.assert_array_equal(function(x), x)
    sizes = [len(part) for part in split_rows(x, count)]
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 7, 5)])
@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16"])
@pytest.mark.parametrize("num_written", [1, 2])
def test_slices_are_written(shape, dtype, num_written):
    x = ops.cast(np.arange(np.prod(shape)).reshape(shape), dtype)
    expected = np.array(ops.cast(x, "float32"))
    expected[:, :, 4 : 4 + num_written] *= -1

    def negated(x, position):
        return write_slice(x, position, -x[:, :, 4:][:, :, :num_written])

    for function in (negated, xla(negated)):
        written = function(x, np.int32(4))
        assert keras.backend.standardize_dtype(written.dtype) == dtype
        np.testing.assert_array_equal(ops.cast(written, "float32"), expected)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="on JAX there is no graph that XLA does not compile",
)
@pytest.mark.parametrize("rank", [3, 4])
def test_a_graph_writes_slices_without_xla(rank):
    """Else XLA would compile, and keep, a function for each shape."""
    traced = []

    def written(inputs):
        x, update = inputs["x"], -inputs["x"][:, :, :1]
        traced.append(write_slice(x, inputs["position"], update))
        compiled = graphs.jit(write_slice)
        return traced[0], compiled(x, inputs["position"], update)

    x = np.ones((2, 3, 7, 5)[:rank], "float32")
    inputs = {"x": x, "position": np.int32(4)}
    expected = x.copy()
    expected[:, :, 4] = -1
    for result in graphs.graph(written, inputs)(inputs):
        np.testing.assert_array_equal(result, expected)
    assert not [
        operation.type
        for operation in traced[0].graph.get_operations()
        if operation.type.startswith("Xla")
    ]
    assert not graphs.is_plain_graph()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [0, 1, 70])
@pytest.mark.parametrize("queries", [1, 3])
def test_products_of_a_step_are_those_of_any(dtype, rows, queries):
    """Which TensorFlow computes in other ways in a graph, and for LiteRT."""
    generator = np.random.default_rng(3)
    shapes = {"x": (queries, 4), "y": (5, 4), "z": (5, 6)}
    inputs = {
        name: ops.cast(generator.normal(size=(rows, 2, *shape)), dtype)
        for name, shape in shapes.items()
    }
    bias = np.array([0, 0, -1e9, 0, 0], "float32")

    def attended(inputs):
        x, y, z = inputs["x"], inputs["y"], inputs["z"]
        scores = products.small_product(x, y, transpose_y=True)
        weights = products.small_softmax(ops.cast(scores, "float32") + bias)
        return products.small_product(ops.cast(weights, dtype), z)

    def for_litert(inputs):
        with graphs.graph_for("litert"):
            return attended(inputs)

    functions = [attended, xla(attended), for_litert]
    if keras.backend.backend() == "tensorflow":
        functions.append(graphs.graph(attended, inputs))
    # In float32: each way rounds bfloat16 where the processor has it round.
    x, y, z = (ops.cast(inputs[name], "float32") for name in "xyz")
    scores = ops.matmul(x, ops.transpose(y, (0, 1, 3, 2)))
    expected = ops.matmul(ops.softmax(scores + bias), z)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    for function in functions:
        found = ops.cast(function(inputs), "float32")
        np.testing.assert_allclose(found, expected, tolerance, tolerance)

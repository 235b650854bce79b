"""The same numbers on every backend of Keras."""

import json

import keras
import numpy as np
import pytest

import keras_transformer as kt

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def on_backend(run_program, tmp_path_factory):
    """Gives a function of a backend, to what `run_core` finds there."""
    path = tmp_path_factory.mktemp("backends") / "model.keras"
    kt.Transformer(
        13,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        dropout=0.0,
        rematerialize=True,
    ).save(path)

    def run(backend, **environment):
        process = run_program(
            "run_core",
            path,
            int(backend == "jax"),  # whether to compile
            KERAS_BACKEND=backend,
            JAX_DISABLE_MOST_OPTIMIZATIONS="1",
            **environment,
        )
        return json.loads(process.stdout)

    return run


@pytest.fixture(scope="module")
def expected(on_backend):
    return on_backend("tensorflow")


@pytest.mark.parametrize(
    ("backend", "environment"),
    [("jax", {}), ("jax", {"JAX_ENABLE_X64": "1"}), ("torch", {})],
)
def test_searches_scores_and_trainings_are_the_same(
    on_backend, expected, backend, environment
):
    pytest.importorskip(backend)
    found = on_backend(backend, **environment)
    assert len(expected) == 10
    keras.tree.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
        found,
        expected,
    )
    losses = expected["adam"]["loss"]
    assert losses[-1] < losses[0] - 0.05


def test_pytorch_finds_the_same_by_itself(run_program):
    """Second derivatives, and what it alone would take for something else."""
    pytest.importorskip("torch")
    process = run_program(
        "differentiate_on_torch", KERAS_BACKEND="torch", CUDA_VISIBLE_DEVICES=""
    )
    pairs = json.loads(process.stdout)
    assert len(pairs) == 8
    for found, expected in pairs:
        keras.tree.map_structure(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
            found,
            expected,
        )

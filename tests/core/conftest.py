"""What is collected, and a model that has learnt something."""

import keras
import pytest

import keras_transformer as kt

from .copying import copy_task
from .layers import D
from .layers import F
from .layers import N
from .layers import V

if keras.backend.backend() != "tensorflow":
    collect_ignore = ["test_datasets.py"]


@pytest.fixture(scope="session")
def training():
    """Trains a model to copy and returns it with what `fit` returned."""
    keras.utils.set_random_seed(3)
    model = kt.Transformer(
        V,
        num_layers=1,
        num_heads=N,
        hidden_dim=D,
        intermediate_dim=F,
        dropout=0.0,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(
            kt.WarmupSchedule(peak_learning_rate=0.01, warmup_steps=20)
        ),
        loss=kt.LabelSmoothedCrossentropy(0.1),
        weighted_metrics=[kt.TokenAccuracy(), kt.Perplexity()],
        jit_compile=keras.backend.backend() == "jax",
    )
    inputs, labels = copy_task(512)
    history = model.fit(
        inputs,
        labels,
        sample_weight=(labels != 0).astype("float32"),
        batch_size=64,
        epochs=30,
        verbose=0,
    )
    return model, history.history


@pytest.fixture
def copying_model(training):
    return training[0]


@pytest.fixture
def floatx():
    """Sets what Keras makes of Python's floats, for one test."""
    before = keras.config.floatx()
    yield keras.config.set_floatx
    keras.config.set_floatx(before)

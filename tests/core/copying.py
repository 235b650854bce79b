"""A task that a tiny model learns in seconds: the target is the source."""

import numpy as np

from .layers import S
from .layers import V

START, END = 2, 3


def copy_task(num_rows):
    """Makes sources of 1 to S - 1 tokens, targets and labels to copy them."""
    generator = np.random.default_rng(11)
    inputs = {
        "source_ids": np.zeros((num_rows, S), "int32"),
        "target_ids": np.zeros((num_rows, S), "int32"),
    }
    labels = np.zeros((num_rows, S), "int32")
    for row in range(num_rows):
        length = generator.integers(1, S)
        tokens = generator.integers(END + 1, V, length)
        ended = [*tokens, END]
        inputs["source_ids"][row, : length + 1] = ended
        inputs["target_ids"][row, : length + 1] = [START, *tokens]
        labels[row, : length + 1] = ended
    return inputs, labels

"""Computes with PyTorch itself what layers and loss compute on it.

Prints, as JSON, pairs of what was found and what is expected.
"""

import json

import keras
import numpy as np
import torch

import keras_transformer as kt
from keras_transformer.layer_norm import normalize

assert keras.backend.backend() == "torch"
generator = torch.Generator().manual_seed(0)


def random(*shape):
    x = torch.randn(shape, generator=generator)
    return x.requires_grad_()


def second_derivative(function, *inputs):
    """Differentiates the squared norm of the gradient of a function."""
    gradients = torch.autograd.grad(
        function(*inputs), inputs, create_graph=True
    )
    norm = sum((gradient**2).sum() for gradient in gradients)
    found = torch.autograd.grad(norm, inputs, materialize_grads=True)
    return [x.tolist() for x in found]


labels = torch.tensor([[1, 4, 0], [6, 2, 3]])
logits = random(2, 3, 7)
loss = kt.LabelSmoothedCrossentropy(0.1)
pairs = [
    (
        second_derivative(lambda z: loss(labels, z), logits),
        second_derivative(
            lambda z: torch.nn.functional.cross_entropy(
                z.reshape(-1, 7), labels.reshape(-1), label_smoothing=0.1
            ),
            logits,
        ),
    )
]

weights = random(5, 8)
inputs = random(5, 8), random(8), random(8)
pairs.append(
    [
        second_derivative(
            lambda *inputs, norm=norm: (norm(*inputs) * weights).sum(),
            *inputs,
        )
        for norm in (
            lambda x, gamma, beta: normalize(x, gamma, beta, 1e-6),
            lambda x, gamma, beta: torch.nn.functional.layer_norm(
                x, (8,), gamma, beta, 1e-6
            ),
        )
    ]
)

refused = []
for label in (-1, -100, 7, 100):
    try:
        loss(torch.full((2, 3), label), logits.detach())
    except (IndexError, RuntimeError):
        refused.append(label)
pairs.append((refused, [-1, -100, 7, 100]))

mask = torch.tril(torch.ones(3, 3)).requires_grad_()
attention = kt.MultiHeadAttention(2, 8)
query = random(1, 3, 8)
pairs.append(
    [
        attention(query, query, attention_mask=each).tolist()
        for each in (mask, mask > 0)
    ]
)

sizes = {
    "vocabulary_size": 20,
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
}
single = kt.Transformer(**sizes)
double = kt.Transformer(**sizes, dtype="float64")
double.set_weights(single.get_weights())
ids = np.array([[5, 6, 3], [7, 3, 0]])
options = {"min_length": 2, "max_length": 4}
for search in (kt.GreedySearch(), kt.BeamSearch(2)):
    found, expected = (
        [x.tolist() for x in model.generate(ids, search, **options)]
        for model in (double, single)
    )
    pairs.append((found, expected))
    search.forbidden_sequences = (tuple(expected[0][0][:2]),)
    target_ids, _ = single.generate(ids, search, **options)
    first, second = target_ids[0][:2].tolist()
    pairs.append((((first, second) in search.forbidden_sequences), False))
print(json.dumps(pairs))

"""A model whose weights are split among four devices of JAX."""

import keras
import numpy as np

import keras_transformer as kt

ids = np.array([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]] * 2)


def losses(distribution):
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(1)
    model = kt.Transformer(
        14,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        dropout=0.0,
    )
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0)
    model.compile(optimizer, kt.LabelSmoothedCrossentropy(0.1))
    inputs = {"source_ids": ids, "target_ids": model.decoder_inputs(ids)}
    losses = [model.train_on_batch(inputs, ids, ids != 0) for _ in range(20)]
    return losses, [*model.trainable_variables, *optimizer.variables]


expected, _ = losses(None)
mesh = keras.distribution.DeviceMesh(
    (2, 2), ("batch", "model"), keras.distribution.list_devices()
)
found, variables = losses(
    keras.distribution.ModelParallel(layout_map=kt.layout_map(mesh))
)
np.testing.assert_allclose(found, expected, atol=1e-3)
assert expected[-1] < expected[0] - 1
for variable in variables:
    split = "model" in tuple(variable.value.sharding.spec)
    matrix = len(variable.shape) == 2
    inner_bias = "inner" in variable.path
    assert split == (matrix or inner_bias), variable.path

# Batches of any number of rows, of which some are added.
lines = ["the cat sees the dog", "the dog", "the cat sees"] * 5
tokenizer = kt.Tokenizer.train(lines, vocabulary_size=14, verbose=0)


def perplexity_of_text(distribution, **options):
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(1)
    model = kt.Transformer(
        14, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    )
    loss = kt.LabelSmoothedCrossentropy(0.1)
    model.compile(loss=loss, weighted_metrics=[kt.Perplexity()])
    dataset = kt.translation_dataset(
        *(lines, lines, tokenizer),
        tokens_per_batch=60,
        shuffle=False,
        verbose=0,
        **options,
    )
    metrics = model.evaluate(dataset, verbose=0, return_dict=True)
    return metrics["perplexity"]


expected = perplexity_of_text(None)
found = perplexity_of_text(
    keras.distribution.ModelParallel(layout_map=kt.layout_map(mesh)),
    num_devices=2,
)
np.testing.assert_allclose(found, expected, rtol=1e-5)
found = perplexity_of_text(keras.distribution.DataParallel(), num_devices=4)
np.testing.assert_allclose(found, expected, rtol=1e-5)

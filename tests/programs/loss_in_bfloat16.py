"""One step of a loss in bfloat16, and the memory it took, in bytes."""

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.serving.run_export import peak_bytes
from keras_transformer.tensorflow_only.products import has_exact_softmax
from keras_transformer.tensors.product import offered_products

layer = kt.TokenEmbedding(16_000, 4, dtype="bfloat16")
layer.build()
labels = np.arange(1, 4097).reshape(2, 2048)
loss = kt.LabelSmoothedCrossentropy()


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        logits = layer(x, reverse=True, training=True)
        with offered_products(logits):
            value = loss(labels, logits)
    return tape.gradient(value, [x, layer.embeddings.value])


x = keras.ops.ones((2, 2048, 4), "bfloat16")
step.get_concrete_function(x)
before = peak_bytes()
step(x)
print(has_exact_softmax(), peak_bytes() - before)

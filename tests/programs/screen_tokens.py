"""Decodes with logits that are screened, and counts the rounded weights."""

import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from tensorflow.lite.python import schema_py_generated as schema

import keras_transformer as kt
from keras_transformer import decoding
from keras_transformer.serving import litert_screen
from keras_transformer.serving.litert import convert_function
from keras_transformer.serving.litert_weights import Weights

VOCABULARY_SIZE = 1_203
source_ids = np.random.default_rng(3).integers(
    4, VOCABULARY_SIZE, (9, 12), "int32"
)


def model_of(tie_output):
    keras.utils.set_random_seed(1)
    model = kt.Transformer(
        VOCABULARY_SIZE,
        num_layers=1,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=32,
        tie_output=tie_output,
        output_bias=tie_output,
    )
    for variable in model.trainable_variables:
        if variable.ndim == 2:
            variable.assign(2 * variable.numpy())
    matrix = litert_screen._output_matrix(model).copy()
    # Rows without a scale: as that of padding in Marian, or nearly so.
    matrix[0], matrix[9] = 0, 1e-37
    if not tie_output:
        model.output_projection.kernel.assign(matrix.T)
    else:
        model.target_embedding.embeddings.assign(matrix)
        model.logit_bias.assign(np.linspace(-1, 1, VOCABULARY_SIZE))
    return model


def num_rounded(content, model):
    """Counts products with the rounded weights, and files' copies of them."""
    file = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content))
    weights = [
        tensor
        for graph in file.subgraphs
        for tensor in graph.tensors
        if tensor.type == schema.TensorType.INT8 and len(tensor.shape) == 2
    ]
    for tensor in weights:
        rows = tensor.quantization.scale[:, None] * np.reshape(
            file.buffers[tensor.buffer].data.view("int8"), tensor.shape
        )
        exact = litert_screen._output_matrix(model)
        np.testing.assert_allclose(
            rows[:, :-2], exact, atol=np.abs(exact).max() / 200
        )
    return len(weights)


assert litert_screen.screen_for(model_of(True), kt.GreedySearch()) is None
litert_screen.LEAST_WEIGHTS = 0
for tie_output, search in (
    (True, kt.GreedySearch()),
    (False, kt.GreedySearch()),
    (True, kt.BeamSearch(3, num_hypotheses=2)),
    (False, kt.BeamSearch(3, num_hypotheses=2)),
):
    model = model_of(tie_output)
    screen = litert_screen.screen_for(model, search)
    decode = decoding.DecodingLoop(model, search, screen=screen)

    def translate_ids(source_ids, decode=decode):
        found = decode.in_segments({"source_ids": source_ids})
        return {
            "target_ids": found.target_ids,
            "scores": found.scores,
        }

    ids = tf.TensorSpec([None, None], tf.int32, name="source_ids")
    weights = Weights(model, screen=screen)
    content = convert_function(weights, translate_ids, ids)
    assert num_rounded(content, model) == 1
    run = Interpreter(model_content=content).get_signature_runner()
    found = run(source_ids=source_ids)
    expected = decoding.DecodingLoop(model, search).whole(
        {"source_ids": source_ids}
    )
    # Hypotheses as good as each other may be in another order.
    if isinstance(search, kt.GreedySearch):
        np.testing.assert_array_equal(found["target_ids"], expected.target_ids)
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-3)

    # What computing a logit says is no further off than it says.
    vectors = np.random.default_rng(4).normal(size=(50, 1, 32))
    vectors[0] = 0
    vectors[1, 0, 7] = 100

    def logits_of(vectors, model=model, screen=screen):
        found = screen(vectors)
        return {
            "logits": found.logits,
            "most_error": found.most_error,
            "exact": model.project(vectors),
        }

    spec = tf.TensorSpec([None, 1, 32], tf.float32, name="vectors")
    content = convert_function(weights, logits_of, spec)
    run = Interpreter(model_content=content).get_signature_runner()
    found = run(vectors=vectors.astype("float32"))
    error = np.abs(found["logits"] - found["exact"])[:, :, 4:]
    most = found["most_error"]
    assert (error <= most + 1e-5).all()
    # Which is not far from the truth, as vectors are rounded twice.
    assert np.median(error.max(-1) / np.maximum(most[..., 0], 1e-9)) > 0.1

assert litert_screen.screen_for(model, kt.Sampling()) is None

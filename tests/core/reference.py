"""The equations of the paper in plain numpy, for one sentence, with loops.

Matrices have the paper's names and hold one position a row. `allowed` says
for each query (row) which keys (columns) it may look at.
"""

import math

import numpy as np

EPSILON = 1e-6


def softmax(scores):
    powers = np.exp(scores - np.max(scores))
    return powers / np.sum(powers)


def attention(Q, K, V, allowed):
    """Equation 1, over the allowed keys of each query alone."""
    outputs = np.zeros((len(Q), V.shape[1]))
    weights = np.zeros((len(Q), len(K)))
    for t, query in enumerate(Q):
        keys = [s for s in range(len(K)) if allowed[t, s]]
        scores = [query @ K[s] / math.sqrt(len(query)) for s in keys]
        for s, weight in zip(keys, softmax(scores), strict=True):
            weights[t, s] = weight
            outputs[t] += weight * V[s]
    return outputs, weights


def multi_head(query, value, matrices, allowed=None):
    """`Concat(head_1, ..., head_h) W^O`, section 3.2.2, with its weights."""
    if allowed is None:
        allowed = np.ones((len(query), len(value)), bool)
    heads, weights = [], []
    for head in matrices["heads"]:
        output, shares = attention(
            query @ head["W_Q"] + head["b_Q"],
            value @ head["W_K"] + head["b_K"],
            value @ head["W_V"] + head["b_V"],
            allowed,
        )
        heads.append(output)
        weights.append(shares)
    concatenated = np.concatenate(heads, axis=1)
    return concatenated @ matrices["W_O"] + matrices["b_O"], np.array(weights)


def feed_forward(x, matrices):
    """Equation 2."""
    inner = np.maximum(0, x @ matrices["W_1"] + matrices["b_1"])
    return inner @ matrices["W_2"] + matrices["b_2"]


def sinusoid(position, unit, d_model, layout):
    """One number of section 3.5."""
    if layout == "interleaved":
        pair, is_cosine = divmod(unit, 2)
        angle = position / 10_000 ** (2 * pair / d_model)
    else:
        pairs = d_model // 2
        if unit >= 2 * pairs:  # what an odd size leaves over
            return 0.0
        is_cosine, pair = divmod(unit, pairs)
        angle = position / 10_000 ** (pair / max(pairs - 1, 1))
    return math.cos(angle) if is_cosine else math.sin(angle)


def sinusoids(positions, d_model, layout="interleaved"):
    return np.array(
        [
            [
                sinusoid(position, unit, d_model, layout)
                for unit in range(d_model)
            ]
            for position in positions
        ]
    )


def layer_norm(x, norm):
    rows = []
    for row in x:
        deviation = row - np.mean(row)
        scale = math.sqrt(np.mean(deviation**2) + EPSILON)
        rows.append(norm["gain"] * deviation / scale + norm["bias"])
    return np.array(rows)


def add_and_norm(x, sublayer, norm, normalize_first):
    if normalize_first:
        return x + sublayer(layer_norm(x, norm))
    return layer_norm(x + sublayer(x), norm)


def encoder_layer(x, matrices, normalize_first=False, allowed=None):
    """Figure 1, left."""
    x = add_and_norm(
        x,
        lambda y: multi_head(y, y, matrices["self_attention"], allowed)[0],
        matrices["self_attention_norm"],
        normalize_first,
    )
    return add_and_norm(
        x,
        lambda y: feed_forward(y, matrices["feed_forward"]),
        matrices["feed_forward_norm"],
        normalize_first,
    )


def decoder_layer(x, encoded, matrices, normalize_first=False):
    """Figure 1, right."""
    causal = np.array([[s <= t for s in range(len(x))] for t in range(len(x))])
    x = add_and_norm(
        x,
        lambda y: multi_head(y, y, matrices["self_attention"], causal)[0],
        matrices["self_attention_norm"],
        normalize_first,
    )
    x = add_and_norm(
        x,
        lambda y: multi_head(y, encoded, matrices["cross_attention"])[0],
        matrices["cross_attention_norm"],
        normalize_first,
    )
    return add_and_norm(
        x,
        lambda y: feed_forward(y, matrices["feed_forward"]),
        matrices["feed_forward_norm"],
        normalize_first,
    )


def embed(ids, embeddings):
    """Sections 3.4 and 3.5."""
    d_model = embeddings.shape[1]
    vectors = np.array([embeddings[token_id] for token_id in ids])
    return vectors * math.sqrt(d_model) + sinusoids(range(len(ids)), d_model)


def transformer(source_ids, target_ids, matrices, normalize_first=False):
    """Logits of the whole of figure 1, one matrix for both ids and output.

    With a bias, which is not of the paper.
    """
    embeddings = matrices["embeddings"]
    x = embed(source_ids, embeddings)
    for layer in matrices["encoder"]:
        x = encoder_layer(x, layer, normalize_first)
    if normalize_first:
        x = layer_norm(x, matrices["encoder_norm"])
    encoded = x
    x = embed(target_ids, embeddings)
    for layer in matrices["decoder"]:
        x = decoder_layer(x, encoded, layer, normalize_first)
    if normalize_first:
        x = layer_norm(x, matrices["decoder_norm"])
    return x @ embeddings.T + matrices["output_bias"]


def learning_rate(step, d_model, warmup_steps):
    """Equation 3."""
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def label_smoothed_crossentropy(logits, label, epsilon):
    """Section 5.4, for one token, with the smoothed labels written out."""
    labels = np.full(len(logits), epsilon / len(logits))
    labels[label] += 1 - epsilon
    return -np.sum(labels * np.log(softmax(logits)))

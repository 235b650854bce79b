"""Every layer with arguments other than its defaults, and with its inputs."""

import dataclasses

import keras
import numpy as np

import keras_transformer as kt

# Different primes, so that a swapped axis cannot pass.
B, T, S = 2, 5, 7
N, H = 3, 11
D, F, V = N * H, 17, 13
KEY_DIM, VALUE_DIM = 19, 23
MAX_LENGTH = 29

ATTENTION = {
    "num_heads": N,
    "hidden_dim": D,
    "key_dim": KEY_DIM,
    "value_dim": VALUE_DIM,
}
LAYER = {
    **ATTENTION,
    "intermediate_dim": F,
    "dropout": 0.2,
    "attention_dropout": 0.3,
    "feed_forward_dropout": 0.4,
    "normalize_first": True,
    "activation": "gelu",
    "attention_bias": True,
}
STACK = {**LAYER, "num_layers": 2, "rematerialize": True}
MODEL = {
    **STACK,
    "num_layers": 1,
    "vocabulary_size": V,
    "positional_encoding": "learned",
    "max_length": MAX_LENGTH,
    "source_vocabulary_size": V + 4,
    "tie_source": False,
    "tie_output": False,
    "start_token_id": 4,
    "end_token_id": 5,
    "num_decoder_layers": 2,
    "output_bias": True,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, how to make it, and what to call it with."""

    layer: type
    arguments: dict
    shapes: dict
    num_weights: int
    dtype: str = "float32"

    def make(self, **others):
        return self.layer(**{**self.arguments, **others})

    def call(self, layer, inputs, **options):
        if isinstance(layer, kt.Transformer):
            return layer(inputs, **options)
        return layer(**inputs, **options)

    def arrays(self, shapes=None):
        generator = np.random.default_rng(3)
        arrays = {}
        for name, shape in (shapes or self.shapes).items():
            if self.dtype == "int32":
                array = generator.integers(1, V, shape)
                array[0, -2:] = 0  # the first row ends in padding
            else:
                array = generator.normal(size=shape)
            arrays[name] = array.astype(self.dtype)
        return arrays

    def functional(self, layer):
        """Makes a model of the layer, of unknown batch size and lengths."""
        inputs = {
            name: keras.Input((None, *shape[2:]), dtype=self.dtype, name=name)
            for name, shape in self.shapes.items()
        }
        return keras.Model(inputs, self.call(layer, inputs))


# Every public class that works without tensorflow.
PUBLIC = {name: getattr(kt, name) for name in kt._CORE}

CASES = [
    Case(
        kt.SinusoidalPositionalEncoding,
        {"layout": "concatenated"},
        {"inputs": (B, T, D)},
        num_weights=0,
    ),
    Case(
        kt.LearnedPositionalEncoding,
        {"max_length": MAX_LENGTH, "hidden_dim": D},
        {"inputs": (B, T, D)},
        num_weights=1,
    ),
    Case(
        kt.TokenEmbedding,
        {"vocabulary_size": V, "hidden_dim": D, "mask_zero": False},
        {"inputs": (B, T)},
        num_weights=1,
        dtype="int32",
    ),
    Case(
        kt.MultiHeadAttention,
        {**ATTENTION, "dropout": 0.2, "use_bias": True},
        {"query": (B, T, D), "value": (B, S, D)},
        num_weights=8,
    ),
    Case(
        kt.FeedForward,
        {
            "hidden_dim": D,
            "intermediate_dim": F,
            "activation": "gelu",
            "dropout": 0.2,
        },
        {"inputs": (B, T, D)},
        num_weights=4,
    ),
    # 8 of the projections, 4 of the feed-forward network, 2 for each norm.
    Case(kt.EncoderLayer, LAYER, {"inputs": (B, S, D)}, num_weights=16),
    # The same, 8 more of projections and one more norm.
    Case(
        kt.DecoderLayer,
        LAYER,
        {"inputs": (B, T, D), "encoded": (B, S, D)},
        num_weights=26,
    ),
    # With `normalize_first` a norm closes a stack.
    Case(kt.Encoder, STACK, {"inputs": (B, S, D)}, num_weights=34),
    Case(
        kt.Decoder,
        STACK,
        {"inputs": (B, T, D), "encoded": (B, S, D)},
        num_weights=54,
    ),
    # Both stacks, 2 embeddings, 2 learned positions, output projection and
    # bias.
    Case(
        kt.Transformer,
        MODEL,
        {"source_ids": (B, S), "target_ids": (B, T)},
        num_weights=78,
        dtype="int32",
    ),
]

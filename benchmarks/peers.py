"""Other libraries, with the same sizes and random weights."""

from cases import SEED
from cases import SOURCE_LENGTH
from cases import read_sizes
from cases import sources

from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.system.cores import num_cores


class KerasHub:
    """keras-hub's layers, caches and samplers, compiled as its `generate`.

    With random weights. The encoded source is projected once, outside the loop.
    """

    title = "keras-hub"
    needs = ("keras-hub",)
    has_same_weights = False

    def __init__(self, folder):
        import keras
        import keras_hub

        sizes = read_sizes(folder)
        self.num_heads = sizes["num_heads"]
        self.hidden_dim = sizes["hidden_dim"]
        layers = keras_hub.layers
        self.embedding = layers.ReversibleEmbedding(
            sizes["vocabulary_size"], self.hidden_dim
        )
        self.positions = layers.SinePositionEncoding()
        stack = {
            "intermediate_dim": sizes["intermediate_dim"],
            "num_heads": self.num_heads,
        }
        indices = range(sizes["num_layers"])
        self.encoder = [layers.TransformerEncoder(**stack) for _ in indices]
        self.decoder = [layers.TransformerDecoder(**stack) for _ in indices]
        # Built outside the graph, which must not make variables.
        shape = (1, SOURCE_LENGTH, self.hidden_dim)
        self.embedding.build(shape[:2])
        for layer in self.encoder:
            layer.build(shape)
        for layer in self.decoder:
            layer(keras.ops.zeros(shape), keras.ops.zeros(shape))

    def settings(self, case):
        return [{}]

    def prepare(self, case):
        import tensorflow as tf

        source_ids = tf.constant(sources(case))
        decode = tf.function(
            lambda source_ids: self._generate(source_ids, case),
            jit_compile=True,
        )
        return lambda: decode(source_ids).numpy()

    def target_ids(self, outputs):
        return outputs[:, 1:].tolist()

    def _generate(self, source_ids, case):
        from keras import ops
        from keras_hub import samplers

        encoded, cache, encoded_cache = self._start(source_ids, case.length)
        sampler = samplers.GreedySampler()
        if case.width > 1:
            sampler = samplers.BeamSampler(num_beams=case.width)
            # The sampler repeats only what is in its loop, and this is not.
            encoded = ops.repeat(encoded, case.width, axis=0)
            encoded_cache = [
                ops.repeat(x, case.width, axis=0) for x in encoded_cache
            ]

        def following(prompt, cache, index):
            token_ids = ops.slice(
                prompt, (0, index - 1), (ops.shape(prompt)[0], 1)
            )
            return self._step(
                token_ids, index - 1, encoded, cache, encoded_cache
            )

        return sampler(
            following,
            ops.full((case.batch, case.length + 1), START_TOKEN_ID, "int32"),
            cache,
            index=1,
        )

    def _start(self, source_ids, length):
        """Encodes, and projects for cross-attention, as keras-hub does it.

        The projection takes a call of each decoder layer, whose output is not
        used.
        """
        from keras import ops

        x = self.embedding(source_ids)
        x = x + self.positions(x)
        for layer in self.encoder:
            x = layer(x)
        batch, source_length = source_ids.shape
        heads = (self.num_heads, self.hidden_dim // self.num_heads)
        cache, encoded_cache = [], []
        for layer in self.decoder:
            _, layer_cache, layer_encoded_cache = layer(
                x[:, :1],
                x,
                self_attention_cache=ops.zeros((batch, 2, length, *heads)),
                self_attention_cache_update_index=0,
                cross_attention_cache=ops.zeros(
                    (batch, 2, source_length, *heads)
                ),
                cross_attention_cache_update_index=0,
            )
            cache.append(layer_cache)
            encoded_cache.append(layer_encoded_cache)
        return x, cache, encoded_cache

    def _step(self, token_ids, position, encoded, cache, encoded_cache):
        x = self.embedding(token_ids)
        x = x + self.positions(x, start_index=position)
        new_cache = []
        for layer, kept, encoded_kept in zip(
            self.decoder, cache, encoded_cache, strict=True
        ):
            x, kept, _ = layer(
                x,
                encoded,
                self_attention_cache=kept,
                self_attention_cache_update_index=position,
                cross_attention_cache=encoded_kept,
            )
            new_cache.append(kept)
        logits = self.embedding(x, reverse=True)
        return logits[:, 0], x[:, 0], new_cache


class Marian:
    """Hugging Face's MarianMT on PyTorch, with its best number of threads.

    With random weights.
    """

    title = "MarianMT (PyTorch)"
    needs = ("torch", "transformers")
    has_same_weights = False

    def __init__(self, folder):
        import torch
        from transformers import MarianMTModel

        torch.manual_seed(SEED)
        config = marian_config(read_sizes(folder))
        self.model = MarianMTModel(config).eval()

    def settings(self, case):
        return [{"threads": number} for number in sorted({1, num_cores()})]

    def prepare(self, case, threads):
        import torch

        torch.set_num_threads(threads)
        source_ids = torch.tensor(sources(case), dtype=torch.long)
        attention_mask = torch.ones_like(source_ids)

        @torch.inference_mode()
        def decode():
            return self.model.generate(
                source_ids,
                attention_mask=attention_mask,
                min_new_tokens=case.length,
                max_new_tokens=case.length,
                num_beams=case.width,
                do_sample=False,
                use_cache=True,
            )

        return decode

    def target_ids(self, outputs):
        return outputs[:, 1:].tolist()


def marian_config(sizes, **options):
    """A `MarianConfig` of these sizes, which have our arguments' names."""
    from transformers import MarianConfig

    return MarianConfig(
        vocab_size=sizes["vocabulary_size"],
        d_model=sizes["hidden_dim"],
        encoder_layers=sizes["num_layers"],
        decoder_layers=sizes["num_layers"],
        encoder_attention_heads=sizes["num_heads"],
        decoder_attention_heads=sizes["num_heads"],
        encoder_ffn_dim=sizes["intermediate_dim"],
        decoder_ffn_dim=sizes["intermediate_dim"],
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD_TOKEN_ID,
        bos_token_id=START_TOKEN_ID,
        decoder_start_token_id=START_TOKEN_ID,
        eos_token_id=END_TOKEN_ID,
        forced_eos_token_id=None,
        **options,
    )

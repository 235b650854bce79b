"""The whole model: section 3 and figure 1."""

import contextlib
import inspect

import keras
from keras import ops

from keras_transformer.checks import check_choice
from keras_transformer.checks import check_flag
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_share
from keras_transformer.checks import known_shape
from keras_transformer.compiled import CompiledFunctions
from keras_transformer.decoder import Decoder
from keras_transformer.decoding import DecodingLoop
from keras_transformer.dense import Dense
from keras_transformer.dropout import Dropout
from keras_transformer.embedding import TokenEmbedding
from keras_transformer.embedding import as_ids
from keras_transformer.encoder import Encoder
from keras_transformer.feed_forward import get_activation
from keras_transformer.generation import align
from keras_transformer.generation import generate
from keras_transformer.generation import score
from keras_transformer.input_checks import SIDES
from keras_transformer.input_checks import check_has_labels
from keras_transformer.input_checks import check_keys
from keras_transformer.input_checks import check_no_class_weight
from keras_transformer.input_checks import check_not_of_rows
from keras_transformer.input_checks import check_pairs
from keras_transformer.input_checks import check_training_data
from keras_transformer.input_checks import is_dataset
from keras_transformer.input_checks import warn_of_probabilities
from keras_transformer.layer import Freezable
from keras_transformer.layer import builds_weights
from keras_transformer.masking import padding_mask
from keras_transformer.positional_encoding import LAYOUTS
from keras_transformer.positional_encoding import LearnedPositionalEncoding
from keras_transformer.positional_encoding import SinusoidalPositionalEncoding
from keras_transformer.search import Hypotheses
from keras_transformer.search import search_or_greedy
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.tensorflow_only.devices import strategy_scope
from keras_transformer.tensorflow_only.forks import check_not_forked
from keras_transformer.tensorflow_only.forks import note_process
from keras_transformer.tensorflow_only.graphs import graph_for
from keras_transformer.tensorflow_only.threads import parts_at_once
from keras_transformer.tensors.product import add_bias
from keras_transformer.tensors.product import join_logits
from keras_transformer.tensors.product import offered_products
from keras_transformer.tensors.rows import split_rows
from keras_transformer.token_weights import token_weights

# Base and big are the paper's, Table 3; tiny is that of Wu et al., 2021
# (https://aclanthology.org/2021.acl-long.480), for small data.
PRESETS = {
    "tiny": {
        "num_layers": 4,
        "num_heads": 4,
        "hidden_dim": 128,
        "intermediate_dim": 256,
        "dropout": 0.3,
    },
    "base": {
        "num_layers": 6,
        "num_heads": 8,
        "hidden_dim": 512,
        "intermediate_dim": 2048,
        "dropout": 0.1,
    },
    "big": {
        "num_layers": 6,
        "num_heads": 16,
        "hidden_dim": 1024,
        "intermediate_dim": 4096,
        "dropout": 0.3,
    },
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(Freezable, keras.Model):
    """The encoder-decoder of "Attention Is All You Need".

    [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3. Token
    ids in, logits of the next target token out. Masks come from the ids: id 0
    is padding. One matrix serves as source embedding, target embedding and
    output projection (section 3.4) unless told otherwise.

    The model is built when it is created: `summary()` and `count_params()`
    work at once.

    A subclass that computes something else overrides `encode`, `embed_targets`
    or `project`, which `generate` and the exports to SavedModel and LiteRT call
    as well. These never call `call`, but `score` does. What was compiled is
    compiled again when a number or a string that is a public attribute of the
    model changes; for anything else, make another model. One with other layers
    has subclasses of `Encoder` and `Decoder` as `encoder_class` and
    `decoder_class`. CTranslate2 supports only this class itself.

    Args:
        vocabulary_size: Size `V` of the target vocabulary, and of the source's
            unless `source_vocabulary_size` is given.
        num_layers: Number of layers of the encoder, and of the decoder; the
            paper's `N`, which is the number of heads in shapes here.
        num_heads: Number `N` of attention heads; `h` in the paper.
        hidden_dim: Size `D` of the vectors; `d_model` in the paper.
        intermediate_dim: Size `F` of the feed-forward layers; `d_ff`.
        key_dim: Size of a head's keys; `hidden_dim / num_heads` by default.
        value_dim: Size of a head's values; `key_dim` by default.
        dropout: Share of each sublayer's output, and of the embedded tokens,
            to drop in training, in `[0, 1)`; `P_drop` in the paper.
        attention_dropout: Share of the attention weights to drop. The paper
            has none.
        feed_forward_dropout: Share of the inner units of the feed-forward
            network to drop. The paper has none.
        normalize_first: Whether to normalise before each sublayer (pre-norm).
            The paper normalises after it (post-norm).
        activation: Keras activation of the feed-forward layers.
        positional_encoding: `"interleaved"` or `"concatenated"` sinusoids
            (see `SinusoidalPositionalEncoding`), or `"learned"`.
        max_length: Longest source and target in tokens; needed for learned
            positions, and no limit by default for sinusoids. A call of the
            model itself checks it for learned positions alone.
        source_vocabulary_size: Number of source tokens where the source has a
            vocabulary of its own, and with it an embedding of its own.
        tie_source: Whether source and target share one embedding. By default
            where `source_vocabulary_size` is not given.
        tie_output: Whether the output projection is the target embedding.
        start_token_id: The token that starts a target.
        end_token_id: The token that ends a target and, in a `Translator`, a
            source.
        num_decoder_layers: Number of decoder layers, where it is not
            `num_layers`. With few, decoding is faster
            ([Kasai et al., 2021](https://arxiv.org/abs/2006.10369)).
        attention_bias: Whether the projections of attention add a bias. The
            paper has none; Marian and fairseq have.
        output_bias: Whether a bias is added to the logits, as in Marian.
        rematerialize: Whether a step of training keeps only what goes into each
            layer, and computes the layer again for its gradient: less memory,
            more time ([Chen et al., 2016](https://arxiv.org/abs/1604.06174)).
            Not for layers of your own that add losses or update variables.
        **kwargs: `name` and `dtype`, for `keras.Model`.

    Call arguments:
        inputs: `{"source_ids": (B, S), "target_ids": (B, T)}`, int32. Targets
            begin with the start token; position `t` of the output belongs to
            token `t + 1` of the target.
        training: Whether dropout is on.

    Returns:
        Logits of shape `(B, T, V)`. JAX gives NaN for ids that are not in the
        vocabulary, which `fit`, `generate` and `score` refuse.

    Raises:
        TypeError: If a size or token is not an integer, a share not a number,
            or a flag not a bool.
        ValueError: If a size is not positive or does not divide, a share is
            not in `[0, 1)`, there is no such activation or positional
            encoding, learned positions have no `max_length`, `tie_source` is
            asked for two vocabularies, or the start and the end token are the
            same, padding, or not in the vocabulary.

    Example:
    >>> model = Transformer(
    ...     vocabulary_size=13,
    ...     num_layers=2,
    ...     num_heads=2,
    ...     hidden_dim=8,
    ...     intermediate_dim=32,
    ... )
    >>> ids = {
    ...     "source_ids": keras.ops.array([[4, 5, 3]]),
    ...     "target_ids": keras.ops.array([[2, 6, 7, 8]]),
    ... }
    >>> tuple(model(ids).shape)
    (1, 4, 13)
    """

    encoder_class = Encoder
    decoder_class = Decoder

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 6,
        num_heads: int = 8,
        hidden_dim: int = 512,
        intermediate_dim: int = 2048,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        normalize_first: bool = False,
        activation="relu",
        positional_encoding: str = "interleaved",
        max_length: int | None = None,
        source_vocabulary_size: int | None = None,
        tie_source: bool | None = None,
        tie_output: bool = True,
        start_token_id: int = START_TOKEN_ID,
        end_token_id: int = END_TOKEN_ID,
        num_decoder_layers: int | None = None,
        attention_bias: bool = False,
        output_bias: bool = False,
        rematerialize: bool = False,
        **kwargs,
    ):
        note_process()
        super().__init__(**kwargs)
        check_positive(vocabulary_size=vocabulary_size, hidden_dim=hidden_dim)
        check_share(
            dropout=dropout,
            attention_dropout=attention_dropout,
            feed_forward_dropout=feed_forward_dropout,
        )
        if tie_source is None:
            tie_source = source_vocabulary_size is None
        check_flag(
            tie_source=tie_source,
            tie_output=tie_output,
            output_bias=output_bias,
        )
        if source_vocabulary_size is None:
            source_vocabulary_size = vocabulary_size
        _check_vocabularies(vocabulary_size, source_vocabulary_size, tie_source)
        _check_special_tokens(
            vocabulary_size,
            start_token_id,
            end_token_id,
        )
        self.vocabulary_size = vocabulary_size
        self.source_vocabulary_size = source_vocabulary_size
        self.num_layers = num_layers
        self.num_decoder_layers = num_decoder_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.feed_forward_dropout = feed_forward_dropout
        self.normalize_first = normalize_first
        self.activation = get_activation(activation)
        self.positional_encoding = positional_encoding
        self.max_length = max_length
        self.tie_source = tie_source
        self.tie_output = tie_output
        self.attention_bias = attention_bias
        self.output_bias = output_bias
        self.rematerialize = rematerialize
        self.start_token_id = start_token_id
        self.end_token_id = end_token_id

        common = {"dtype": self.dtype_policy}
        if num_decoder_layers is None:
            num_decoder_layers = num_layers
        else:
            check_positive(num_decoder_layers=num_decoder_layers)
        stack = {
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "feed_forward_dropout": feed_forward_dropout,
            "normalize_first": normalize_first,
            "activation": activation,
            "attention_bias": attention_bias,
            "rematerialize": rematerialize,
            **common,
        }
        self.target_embedding = TokenEmbedding(
            vocabulary_size,
            hidden_dim,
            name="token_embedding" if tie_source else "target_embedding",
            **common,
        )
        self.source_embedding = self.target_embedding
        if not tie_source:
            self.source_embedding = TokenEmbedding(
                source_vocabulary_size,
                hidden_dim,
                name="source_embedding",
                **common,
            )
        self.source_positions = self._positions("source_positions")
        self.target_positions = self._positions("target_positions")
        self.embedding_dropout = Dropout(
            dropout, name="embedding_dropout", **common
        )
        self.encoder = self.encoder_class(num_layers, name="encoder", **stack)
        self.decoder = self.decoder_class(
            num_decoder_layers, name="decoder", **stack
        )
        self.output_projection = None
        if not tie_output:
            self.output_projection = Dense(
                vocabulary_size,
                use_bias=False,
                name="output_projection",
                **common,
            )
        self.compiled_functions = CompiledFunctions(self)
        self.build()
        self._tracker.unlock()  # a subclass may add layers

    @property
    def max_length(self) -> int | None:
        """Longest source and target in tokens, `None` for no limit.

        May be changed, unless positions are learned.
        """
        return self._max_length

    @max_length.setter
    def max_length(self, max_length):
        if max_length is not None:
            check_positive(max_length=max_length)
        if self.built and self.positional_encoding == "learned":
            size = self.target_positions.max_length
            if max_length != size:
                raise ValueError(
                    "`max_length` must be the number of learned positions. "
                    f"Received: max_length={max_length} for {size} positions. "
                    "Make a new model for another number."
                )
        self._max_length = max_length

    @classmethod
    def from_preset(cls, preset: str, vocabulary_size: int, **overrides):
        """Makes an untrained model of a named size.

        Args:
            preset: `"tiny"` (4+4 layers, 128 wide), `"base"` or `"big"` (the
                paper's, Table 3).
            vocabulary_size: Number `V` of tokens.
            **overrides: Arguments of the class that differ from the preset.

        Raises:
            ValueError: If there is no such preset.

        Example:
        >>> Transformer.from_preset("tiny", 8_000).hidden_dim
        128
        """
        check_choice(tuple(PRESETS), preset=preset)
        return cls(vocabulary_size, **{**PRESETS[preset], **overrides})

    @classmethod
    def from_config(cls, config, *args, **kwargs):
        model = super().from_config(config, *args, **kwargs)
        model.build_all()
        return model

    def build(self, inputs_shape=None):
        if self.built:
            return
        vectors_shape = (None, None, self.hidden_dim)
        for layer in (self.source_embedding, self.target_embedding):
            if not layer.built:
                layer.build((None, None))
        self.source_positions.build(vectors_shape)
        self.target_positions.build(vectors_shape)
        self.embedding_dropout.build(vectors_shape)
        self.encoder.build(vectors_shape)
        self.decoder.build(vectors_shape, vectors_shape)
        if self.output_projection is not None:
            self.output_projection.build(vectors_shape)
        self.logit_bias = None
        if self.output_bias:
            self.logit_bias = self.add_weight(
                shape=(self.vocabulary_size,),
                initializer="zeros",
                name="logit_bias",
            )
        super().build(inputs_shape)

    def build_all(self):
        """Builds the layers of a subclass that only a call builds.

        Raises:
            ValueError: If the call fails, or does not build a layer of the
                model that may have weights, which could not be loaded.
        """
        if all(layer.built for layer in self._flatten_layers()):
            return
        rule = (
            "The layers that a subclass adds must be built by a call on "
            "'source_ids' and 'target_ids' alone, or in its `__init__`, as by "
            "`layer.build((None,))`. Received: "
        )
        ids = keras.KerasTensor((None, None), "int32")
        try:
            with strategy_scope(self):
                self({"source_ids": ids, "target_ids": ids})
        except Exception as error:
            late = [x.name for x in self._flatten_layers() if not x.built]
            raise ValueError(
                f"{rule}{late} not built, and the call raised: {error}"
            ) from error
        late = [
            layer.name
            for layer in self._layers
            if not layer.built and (layer._layers or builds_weights(layer))
        ]
        if late:
            raise ValueError(f"{rule}{late}, which the call does not build.")

    def load_weights(self, filepath, *args, **kwargs):
        """Like `keras.Model.load_weights`; builds what builds late first."""
        with contextlib.suppress(ValueError):
            self.build_all()
        super().load_weights(filepath, *args, **kwargs)

    def set_weights(self, weights):
        """Like `keras.Model.set_weights`; builds what builds late first."""
        with contextlib.suppress(ValueError):
            self.build_all()
        super().set_weights(weights)

    def __call__(self, inputs, *args, **kwargs):
        check_not_forked()
        # Before other arguments are matched.
        return super().__call__(_with_ids(inputs), *args, **kwargs)

    def call(self, inputs, training=None):
        sides = _checked_sides(inputs)
        if training:
            return self._logits_in_parts(*sides)
        return self._logits(*sides, training=training)

    def _logits(self, source_ids, target_ids, training):
        x = self._decode(source_ids, target_ids, training=training)
        return self.project(x)  # (B, T, V)

    def _decode(
        self,
        source_ids,
        target_ids,
        training=None,
        return_attention_scores=False,
    ):
        encoded = self.encode(source_ids, training=training)  # (B, S, D)
        x = self.embed_targets(target_ids)
        x = self.embedding_dropout(x, training=training)
        return self.decoder(
            x,
            encoded,
            padding_mask=padding_mask(target_ids),
            encoded_mask=padding_mask(source_ids),
            training=training,
            return_attention_scores=return_attention_scores,
        )

    def _logits_in_parts(self, source_ids, target_ids):
        """Computes a batch to train with: in one part, or one on each core."""
        count = self._num_parts()
        sides = split_rows(source_ids, count), split_rows(target_ids, count)
        with self._one_embedding_gradient():
            parts = [
                self._logits(*part, training=True)
                for part in zip(*sides, strict=True)
            ]
        return join_logits(parts)

    def compute_output_shape(self, inputs_shape):
        """The shape `(B, T, V)`, from the shapes of the ids by name."""
        return (*inputs_shape["target_ids"], self.vocabulary_size)

    def compute_loss(
        self,
        x=None,
        y=None,
        y_pred=None,
        sample_weight=None,
        training=True,
    ):
        """Like `keras.Model.compute_loss`, with a weight of 0 at padding.

        In training `y_pred` itself may get no gradient, only the factors it is
        the product of; for the gradient of logits, call the loss.
        """
        if self.loss is not None:
            check_has_labels(y)
        if hasattr(y, "dtype"):
            sample_weight = token_weights(y, sample_weight)
        arguments = x, y, y_pred, sample_weight, training
        # XLA fuses what is computed with the logits into one pass over memory.
        if not training or self.jit_compile:
            return super().compute_loss(*arguments)
        with offered_products(y_pred):
            return super().compute_loss(*arguments)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Like `keras.Model.compute_metrics`, with the weights of the loss.

        So `weighted_metrics` leave padding out. Keras's own would take weights
        of rows for those of positions, as logits have a mask.
        """
        shapes = [known_shape(getattr(x, "shape", ())) for x in (y, y_pred)]
        # Else a subclass has labels of its own.
        if [len(shape or ()) for shape in shapes] == [2, 3]:
            sample_weight = token_weights(y, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def make_train_function(self, force=False):
        """Like that of `keras.Model`, but creates the optimizer's state first.

        Created while the first step is traced, as Keras does on TensorFlow, its
        initial values would stay in the graph: 0.3 GB at base size. Layers that
        a subclass builds from further inputs are built by that step only.
        """
        if self.optimizer is not None and not self.optimizer.built:
            with contextlib.suppress(ValueError):
                self.build_all()
            if all(layer.built for layer in self._flatten_layers()):
                self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def train_step(self, *args, **kwargs):
        """Like that of `keras.Model`; tells layers whether XLA compiles it.

        Goes by what `compile` was told: if a function of your own is compiled
        by XLA, compile the model with `jit_compile=True`.
        """
        is_graph = not (self.jit_compile or self.run_eagerly)
        is_graph = is_graph and keras.backend.backend() == "tensorflow"
        with graph_for("tensorflow" if is_graph else None):
            return super().train_step(*args, **kwargs)

    def compute_mask(self, inputs, previous_mask=None):
        """Marks the logits of real tokens, so that losses skip padding.

        Keras on JAX does not ask for it in training: there, with `output_bias`,
        a loss of Keras's own needs `reduction="mean_with_sample_weight"`. A
        subclass with several outputs overrides it, to return a mask or `None`
        for each: Keras takes a single mask for that of the first.
        """
        return padding_mask(inputs["target_ids"])

    def encode(self, source_ids, training=None):
        """Computes `encoded` `(B, S, D)` from source ids `(B, S)` int32.

        As many vectors as ids: the decoder attends to those of real tokens.
        """
        x = self.source_positions(self.source_embedding(source_ids))
        x = self.embedding_dropout(x, training=training)
        return self.encoder(
            x, padding_mask=padding_mask(source_ids), training=training
        )

    def embed_targets(self, target_ids, start_position=0):
        """Computes what goes into the decoder, but for its dropout.

        Args:
            target_ids: Int32 tensor `(B, T)`; in a step of decoding `(B W, 1)`.
            start_position: The position of the first, an integer or a scalar
                int32 tensor.

        Returns:
            Float tensor `(B, T, D)`, of tokens and their positions.
        """
        x = self.target_embedding(target_ids)
        return self.target_positions(x, start_position=start_position)

    def project(self, x):
        """Computes logits, the last axis `V` wide, from decoder output."""
        if self.output_projection is not None:
            logits = self.output_projection(x)
        else:
            logits = self.target_embedding(x, reverse=True)
        if self.logit_bias is None:
            return logits
        return add_bias(logits, self.logit_bias)

    def decoder_inputs(self, target_ids):
        """Shifts targets `(B, T)` right: the start token comes first."""
        start_ids = ops.full_like(target_ids[:, :1], self.start_token_id)
        shifted = ops.concatenate([start_ids, target_ids[:, :-1]], axis=1)
        # The end token is not an input where padding follows.
        return ops.where(padding_mask(target_ids), shifted, PAD_TOKEN_ID)

    def cross_attention(self, inputs):
        """Computes what each target position attends to in the source.

        Args:
            inputs: As for the model itself.

        Returns:
            A list of weights of shape `(B, N, T, S)`, one per layer.
            Each row sums to 1 over `S`.

        Raises:
            TypeError: If `inputs` is not a dictionary, or ids are no integers.
            ValueError: If ids are missing or not matrices of as many rows.
        """
        sides = _checked_sides(_with_ids(inputs))
        _, scores = self._decode(*sides, return_attention_scores=True)
        return scores

    def decode_step(
        self,
        token_ids,
        position,
        cache,
        encoded_cache,
        encoded_mask,
        ancestry=None,
        past=(),
        project=None,
    ):
        """Computes the logits that follow one more target token.

        Args:
            token_ids: Int32 tensor `(B, W)`, the tokens that the `W`
                hypotheses of each sentence chose last.
            position: Their position, scalar int32 tensor from 0.
            cache: From `decoder.start_cache`, or the step before.
            encoded_cache: From `decoder.encoded_cache`.
            encoded_mask: Bool tensor `(B, S)`, the source's padding mask.
            ancestry: Int32 tensor `(B, W, L)`, in which of the `W` slots each
                hypothesis was at each position; `None` only for one slot.
            past: As for `decoder.step`; by default all is in `cache`.
            project: Function of the decoder's last vectors `(B, W, D)` to what
                is returned of them; `self.project`, in float32, by default.

        Returns:
            Float32 logits `(B, W, V)`, or what `project` returns, and the cache
            for the next step.

        Raises:
            ValueError: If several slots have no `ancestry`.
        """
        # All hypotheses are at the same position, the only one of `(B W, 1)`.
        x = self.embed_targets(ops.reshape(token_ids, (-1, 1)), position)
        x = ops.reshape(x, (-1, token_ids.shape[1], self.hidden_dim))
        x, cache = self.decoder.step(
            x, position, cache, encoded_cache, encoded_mask, ancestry, past
        )
        if project is not None:
            return project(x), cache
        return ops.cast(self.project(x), "float32"), cache

    def search(
        self,
        source_ids,
        search=None,
        min_lengths=None,
        max_lengths=None,
        target_prefix_ids=None,
        capacity=None,
    ) -> Hypotheses:
        """Translates tensors of ids in one loop.

        For use inside a compiled function, or the `call` of a Keras layer;
        `generate` also checks its input, compiles, drops sentences as they
        finish, and returns arrays.

        Args:
            source_ids: Int32 tensor `(B, S)`.
            search: `GreedySearch()` by default.
            min_lengths: Int32 tensor `(B,)`, fewest tokens of each target
                before its end token.
            max_lengths: Int32 tensor `(B,)`, most tokens of each target; by
                default those of its source + 50.
            target_prefix_ids: Int32 tensor `(B, T)`, tokens that each target
                begins with, then padding. What is beyond the capacity is cut
                off.
            capacity: Most tokens of any target; needed with `max_lengths`. By
                default `S` + 50.

        Returns:
            `Hypotheses`: target ids `(B, K, T)`, scores `(B, K)` and scores of
            tokens `(B, K, T)`, `K` the search's `num_hypotheses` and `T` the
            capacity.

        Raises:
            RuntimeError: If this is the fork of a process that had a model, in
                which TensorFlow would wait for ever.
            TypeError: If `search` is not a search, or the ids are a symbolic
                tensor of Keras.
            ValueError: If `max_lengths` are given without `capacity`.
        """
        if isinstance(source_ids, keras.KerasTensor):
            raise TypeError(
                "`source_ids` must be a tensor with ids. Received: a symbolic "
                "one of a functional model. Call `search` in the `call` of a "
                "layer of your own."
            )
        check_not_forked()
        search = search_or_greedy(search)
        if max_lengths is not None and capacity is None:
            raise ValueError(
                "`capacity` must be given with `max_lengths`. Received: "
                "capacity=None."
            )
        inputs = {
            "source_ids": source_ids,
            "min_lengths": min_lengths,
            "max_lengths": max_lengths,
            "target_prefix_ids": target_prefix_ids,
        }
        inputs = {name: x for name, x in inputs.items() if x is not None}
        return DecodingLoop(self, search, capacity).whole(inputs)

    def generate(
        self,
        source_ids,
        search=None,
        min_length: int = 0,
        max_length: int | None = None,
        target_prefix_ids=None,
        return_scores: bool = True,
        return_token_scores: bool = False,
        return_attention: bool = False,
        jit_compile: bool | None = None,
    ):
        """Translates ids to ids.

        On TensorFlow, sentences that are done leave the batch, unless it is
        compiled and small. On JAX, where each new shape would have to be
        compiled, and on PyTorch they stay.

        Args:
            source_ids: Int array `(B, S)`, each row a source that ends with
                the end token, then padding. A row of padding alone is an
                empty source and has an empty target.
            search: `GreedySearch()` by default.
            min_length: Fewest tokens of a target before its end token. Where
                the default of `max_length`, or the model's own, is smaller,
                that limit wins.
            max_length: Most tokens of a target with its end token, never more
                than the model's own. By default the tokens of its source + 50
                (section 6.1).
            target_prefix_ids: Int array `(B, P)`, tokens that each target
                begins with, then padding.
            return_scores: Whether to return the scores; `GreedySearch` and
                `Sampling` are faster without.
            return_token_scores: Whether to return the scores of tokens.
            return_attention: Whether to return what each target token
                attended to.
            jit_compile: Whether to compile with XLA. The batch is then padded
                to one of a few shapes, because each shape is compiled once. By
                default only on JAX, which compiles everything.

        Returns:
            A tuple, even if of one array. Target ids, int32 array `(B, T)`:
            each row a target through its end token, then padding, `T` the
            longest. Unless not wanted, scores, float32 array `(B,)`, in nats:
            what the search ranks by. Where asked for, the scores of tokens,
            float32 `(B, T)`, their natural-logarithm probabilities, with the
            search's repetition penalty where it ranks by them; in a beam search
            a token of a prefix counts as at most 100 nats below the best. Where
            asked for, attention, float32 `(B, T, S)`: the weights of the last
            layer, mean over its heads. A search for `K` > 1 hypotheses adds an
            axis `K` after `B`, the best first, but for `Sampling` in no order;
            the score of one that does not exist is negative infinity, its
            target empty.

        Raises:
            TypeError: If ids or lengths are not integers, `search` is not a
                search, or a flag is not `True` or `False`.
            ValueError: If `source_ids` is not of shape `(B, S)`, a source is
                longer than the model's `max_length`, an id, also one that the
                search forbids, is not in the vocabulary, padding precedes a
                token, `max_length` is less than 1, `min_length` negative or
                more than it, or one of them above 1,048,576; if there is not a
                prefix for each source, or one is longer than its target may
                be, has the start token, or goes on after the end token; or if
                nothing was found as the model's logits are NaN.
        """
        return generate(
            self,
            source_ids,
            search_or_greedy(search),
            min_length=min_length,
            max_length=max_length,
            target_prefix_ids=target_prefix_ids,
            return_scores=return_scores,
            return_token_scores=return_token_scores,
            return_attention=return_attention,
            jit_compile=jit_compile,
        )

    def score(self, source_ids, target_ids, jit_compile: bool | None = None):
        """Computes how probable given targets are.

        Args:
            source_ids: Int array `(B, S)`, as for `generate`.
            target_ids: Int array `(B, T)`, each row a target through its end
                token, then padding, as `generate` returns it.
            jit_compile: As for `generate`.

        Returns:
            Natural-logarithm probabilities, in nats: of the tokens, float32
            array `(B, T)` with 0 at padding, and of the targets, float32
            array `(B,)`, their sums (`Translator.score` returns these first).
            A source without tokens has a target without any, as in `generate`:
            the end token or nothing has 0 there, and every other target
            negative infinity.

        Raises:
            TypeError: If the ids are not integers, or `jit_compile` is not
                `True`, `False` or `None`.
            ValueError: If an array is not of that shape, the two differ in
                their number of rows, an id is not in the vocabulary, padding
                precedes a token, a row is longer than the model's `max_length`,
                or a target has the start token, or more after the end token.
        """
        return score(self, source_ids, target_ids, jit_compile)

    def align(
        self,
        source_ids,
        target_ids,
        layer: int = -1,
        jit_compile: bool | None = None,
    ):
        """Computes what each token of given targets attends to in its source.

        Args:
            source_ids: Int array `(B, S)`, as for `generate`.
            target_ids: Int array `(B, T)`, as for `score`.
            layer: Which decoder layer, from 0, or from -1 backwards. The one
                before the last is often nearer to what people align
                ([Garg et al., 2019](https://aclanthology.org/D19-1453)).
            jit_compile: As for `generate`.

        Returns:
            Float32 array `(B, T, S)`: the weights with which each target token
            was predicted, mean over the heads; 0 at padding.

        Raises:
            TypeError: If the ids or `layer` are not integers, or `jit_compile`
                is not `True`, `False` or `None`.
            ValueError: As for `score`, or if there is no such layer.
        """
        return align(self, source_ids, target_ids, layer, jit_compile)

    def fit(self, x=None, y=None, *args, **kwargs):
        """Trains like `keras.Model.fit`, after checking the ids.

        Of arrays all ids are checked, of a `tf.data.Dataset` the first batch,
        for training and for validation; of a PyTorch `DataLoader`, or another
        iterable, none. In a later batch, or in a dataset that
        `tf.distribute` has distributed, TensorFlow finds an id outside the
        vocabulary on a CPU; if compiled with XLA or on another device, nothing
        does. Labels that equal the targets, which are not shifted, are a
        warning, as is a loss that expects probabilities. The check iterates a
        dataset once more than training does, so its source must be readable
        again.

        On a few cores, the operations of a small model are faster if threads do
        not share them. After
        `tf.config.threading.set_intra_op_parallelism_threads(1)` at the start
        of a program, a step splits a batch into as many parts as there are
        cores, at most 4, and computes them at the same time; another number of
        parts means different dropout. Steps that are compiled, run eagerly or
        run on the devices of a strategy, and those of subclasses or of models
        whose layers were given an `activity_regularizer`, are not split.

        `sample_weight` weighs rows `(B,)` or tokens `(B, T)`. The labels of a
        subclass with several outputs, and a loss for each, are not checked; it
        overrides `compute_mask` to leave padding out.

        Raises:
            RuntimeError: If this is the fork of a process that had a model, in
                which TensorFlow does not compute.
            TypeError: If ids are not integers, or arrays are not in a
                dictionary.
            ValueError: If ids are missing, without rows, longer than the
                model's `max_length` or outside the vocabulary; if padding
                precedes a token, as Keras's `pad_sequences` pads without
                `padding="post"`; if labels are missing, or differ in shape from
                the targets; if the shape of `sample_weight` does not fit; if
                `class_weight` is given, for which Keras expects one class per
                row; or if a loss of one's own gives a number for each row.
        """
        check_not_forked()
        fit = super().fit
        given = inspect.signature(fit).bind(x, y, *args, **kwargs).arguments
        warn_of_probabilities(self.loss)
        if type(self).compute_loss is Transformer.compute_loss:
            check_not_of_rows(self.loss, self.vocabulary_size)
        check_no_class_weight(given.get("class_weight"))
        # Before Keras takes the weights out of the model, as it does on JAX.
        needs_labels = self.loss is not None
        weights = given.get("sample_weight")
        check_training_data(self, x, y, weights, needs_labels)
        validation = keras.utils.unpack_x_y_sample_weight(
            given.get("validation_data")
        )
        check_training_data(self, *validation, needs_labels)
        # A dataset has an order of its own; Keras would warn.
        if is_dataset(x) and "shuffle" not in given:
            kwargs["shuffle"] = False
        return fit(x, y, *args, **kwargs)

    fit.__signature__ = inspect.signature(keras.Model.fit)

    def train_on_batch(
        self,
        x,
        y=None,
        sample_weight=None,
        class_weight=None,
        return_dict=False,
    ):
        """Like `keras.Model.train_on_batch`, without `class_weight`."""
        check_not_forked()
        check_no_class_weight(class_weight)
        if self.loss is not None:
            check_has_labels(y)
        return super().train_on_batch(
            x, y, sample_weight, return_dict=return_dict
        )

    def evaluate(self, x=None, y=None, *args, **kwargs):
        """Like `keras.Model.evaluate`, after checking the ids as `fit` does."""
        check_not_forked()
        evaluate = super().evaluate
        if not kwargs.get("_use_cached_eval_dataset"):  # `fit` checked
            given = inspect.signature(evaluate).bind(x, y, *args, **kwargs)
            weights = given.arguments.get("sample_weight")
            check_training_data(self, x, y, weights, self.loss is not None)
        return evaluate(x, y, *args, **kwargs)

    evaluate.__signature__ = inspect.signature(keras.Model.evaluate)

    def predict(self, x, *args, **kwargs):
        """Like `keras.Model.predict`, after checking the ids as `fit` does."""
        check_not_forked()
        check_training_data(self, x)
        return super().predict(x, *args, **kwargs)

    predict.__signature__ = inspect.signature(keras.Model.predict)

    def export(
        self,
        filepath,
        format="tf_saved_model",
        verbose=None,
        input_signature=None,
        **kwargs,
    ):
        """Exports the logits of source and target ids, as Keras does.

        For training or scoring elsewhere. `Translator.export_saved_model` and
        `Translator.export_litert` write exports that translate.

        Args:
            filepath: Where to.
            format: One that `keras.Model.export` knows.
            verbose: Whether to print what was exported.
            input_signature: By default `source_ids` and `target_ids`, int32
                `(None, None)` each.
            **kwargs: As for `keras.Model.export`.
        """
        if input_signature is None:
            input_signature = [
                {
                    name: keras.InputSpec("int32", (None, None), name=name)
                    for name in ("source_ids", "target_ids")
                }
            ]
        super().export(filepath, format, verbose, input_signature, **kwargs)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "feed_forward_dropout": self.feed_forward_dropout,
            "normalize_first": self.normalize_first,
            "activation": keras.activations.serialize(self.activation),
            "positional_encoding": self.positional_encoding,
            "max_length": self.max_length,
            "source_vocabulary_size": self.source_vocabulary_size,
            "tie_source": self.tie_source,
            "tie_output": self.tie_output,
            "start_token_id": self.start_token_id,
            "end_token_id": self.end_token_id,
            "num_decoder_layers": self.num_decoder_layers,
            "attention_bias": self.attention_bias,
            "output_bias": self.output_bias,
            "rematerialize": self.rematerialize,
        }

    def _positions(self, name):
        """Makes the positional encoding of one side."""
        check_choice(
            (*LAYOUTS, "learned"), positional_encoding=self.positional_encoding
        )
        if self.positional_encoding != "learned":
            return SinusoidalPositionalEncoding(
                self.positional_encoding, name=name, dtype=self.dtype_policy
            )
        if self.max_length is None:
            raise ValueError(
                "`max_length` must be given for learned positions. Received: "
                "positional_encoding='learned', max_length=None."
            )
        return LearnedPositionalEncoding(
            self.max_length,
            self.hidden_dim,
            name=name,
            dtype=self.dtype_policy,
        )

    def _num_parts(self):
        """How many parts of a batch a training step computes at once."""
        if self.compiled and self.jit_compile:
            return 1
        # What a subclass adds, such as a loss, may need the whole batch. A
        # penalty of activities Keras divides by the rows of each call: it would
        # count once for each part.
        layers = self._flatten_layers(include_self=False)
        is_whole = type(self) is not Transformer or any(
            layer.activity_regularizer for layer in layers
        )
        return 1 if is_whole else parts_at_once()

    def _one_embedding_gradient(self):
        """Lets the uses of a tied embedding share one gradient, if they may.

        A subclass may look up embeddings in a branch or a loop.
        """
        is_tied = self.output_projection is None
        if is_tied and type(self) is Transformer:
            return self.target_embedding.one_gradient()
        return contextlib.nullcontext()


def _with_ids(inputs):
    """The inputs with integers on both sides, which Keras does not round."""
    if not isinstance(inputs, dict):
        check_keys("inputs", inputs)  # says what they must be
    sides = [name for name in SIDES if name in inputs]
    return {**inputs, **{name: as_ids(name, inputs[name]) for name in sides}}


def _checked_sides(inputs):
    """The ids of source and target, int32, with as many rows."""
    check_keys("inputs", inputs)
    check_pairs(inputs)
    return [ops.cast(inputs[name], "int32") for name in SIDES]


def _check_vocabularies(vocabulary_size, source_vocabulary_size, tie_source):
    check_positive(source_vocabulary_size=source_vocabulary_size)
    if tie_source and source_vocabulary_size != vocabulary_size:
        raise ValueError(
            "`tie_source` must be False where source and target have "
            "vocabularies of their own. Received: tie_source=True, "
            f"vocabulary_size={vocabulary_size}, "
            f"source_vocabulary_size={source_vocabulary_size}."
        )


def _check_special_tokens(vocabulary_size, start_token_id, end_token_id):
    check_positive(start_token_id=start_token_id, end_token_id=end_token_id)
    for name, token_id in (
        ("start_token_id", start_token_id),
        ("end_token_id", end_token_id),
    ):
        if token_id >= vocabulary_size:
            raise ValueError(
                f"`{name}` must be less than `vocabulary_size`. Received: "
                f"{name}={token_id}, vocabulary_size={vocabulary_size}."
            )
    if start_token_id == end_token_id:
        raise ValueError(
            "`start_token_id` and `end_token_id` must differ. Received: "
            f"start_token_id={start_token_id}, end_token_id={end_token_id}."
        )

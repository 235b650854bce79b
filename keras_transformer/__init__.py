"""Transformers of "Attention Is All You Need" for Keras and TensorFlow."""

from keras_transformer.attention import MultiHeadAttention as MultiHeadAttention
from keras_transformer.decoder import Decoder as Decoder
from keras_transformer.decoder import DecoderLayer as DecoderLayer
from keras_transformer.embedding import TokenEmbedding as TokenEmbedding
from keras_transformer.encoder import Encoder as Encoder
from keras_transformer.encoder import EncoderLayer as EncoderLayer
from keras_transformer.feed_forward import FeedForward as FeedForward
from keras_transformer.positional_encoding import (
    LearnedPositionalEncoding as LearnedPositionalEncoding,
)
from keras_transformer.positional_encoding import (
    SinusoidalPositionalEncoding as SinusoidalPositionalEncoding,
)
from keras_transformer.search import GreedySearch as GreedySearch
from keras_transformer.training import (
    LabelSmoothedCrossentropy as LabelSmoothedCrossentropy,
)
from keras_transformer.training import Perplexity as Perplexity
from keras_transformer.training import TokenAccuracy as TokenAccuracy
from keras_transformer.training import WarmupSchedule as WarmupSchedule
from keras_transformer.transformer import Transformer as Transformer

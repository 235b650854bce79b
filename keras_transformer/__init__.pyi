"""The public names, for type checkers and editors: they run no code."""

from keras_transformer.attention import MultiHeadAttention as MultiHeadAttention
from keras_transformer.bleu import CorpusScores as CorpusScores
from keras_transformer.bleu import corpus_scores as corpus_scores
from keras_transformer.bleu_callback import BleuCallback as BleuCallback
from keras_transformer.checkpoint import Checkpoint as Checkpoint
from keras_transformer.decoder import Decoder as Decoder
from keras_transformer.decoder import DecoderLayer as DecoderLayer
from keras_transformer.embedding import TokenEmbedding as TokenEmbedding
from keras_transformer.encoder import Encoder as Encoder
from keras_transformer.encoder import EncoderLayer as EncoderLayer
from keras_transformer.feed_forward import FeedForward as FeedForward
from keras_transformer.layout import layout_map as layout_map
from keras_transformer.positional_encoding import (
    LearnedPositionalEncoding as LearnedPositionalEncoding,
)
from keras_transformer.positional_encoding import (
    SinusoidalPositionalEncoding as SinusoidalPositionalEncoding,
)
from keras_transformer.search import BeamSearch as BeamSearch
from keras_transformer.search import GreedySearch as GreedySearch
from keras_transformer.search import Sampling as Sampling
from keras_transformer.search import Search as Search
from keras_transformer.serving.litert_translator import (
    LiteRTTranslator as LiteRTTranslator,
)
from keras_transformer.serving.verify import verify_export as verify_export
from keras_transformer.text.dataset import (
    translation_dataset as translation_dataset,
)
from keras_transformer.text.tokenizer import Tokenizer as Tokenizer
from keras_transformer.training import Adam as Adam
from keras_transformer.training import (
    LabelSmoothedCrossentropy as LabelSmoothedCrossentropy,
)
from keras_transformer.training import LossScaleOptimizer as LossScaleOptimizer
from keras_transformer.training import Muon as Muon
from keras_transformer.training import Perplexity as Perplexity
from keras_transformer.training import TokenAccuracy as TokenAccuracy
from keras_transformer.training import WarmupSchedule as WarmupSchedule
from keras_transformer.training import WeightAveraging as WeightAveraging
from keras_transformer.transformer import Transformer as Transformer
from keras_transformer.translator import Translator as Translator
from keras_transformer.version import __version__ as __version__

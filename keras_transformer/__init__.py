"""Transformers of "Attention Is All You Need" for Keras and TensorFlow.

Every public name is here; each is imported when it is first used, so that
`import keras_transformer` is quick, and the layers, the model and its search
work where tensorflow is not installed.
"""

import importlib

import wrapt

from keras_transformer.system.extras import not_installed
from keras_transformer.version import __version__ as __version__

# Where each is. `__init__.pyi` says the same to type checkers and editors.
_CORE = {
    "Adam": "training",
    "BeamSearch": "search",
    "Decoder": "decoder",
    "DecoderLayer": "decoder",
    "Encoder": "encoder",
    "EncoderLayer": "encoder",
    "FeedForward": "feed_forward",
    "GreedySearch": "search",
    "LabelSmoothedCrossentropy": "training",
    "LearnedPositionalEncoding": "positional_encoding",
    "LossScaleOptimizer": "training",
    "MultiHeadAttention": "attention",
    "Muon": "training",
    "Perplexity": "training",
    "Sampling": "search",
    "Search": "search",
    "SinusoidalPositionalEncoding": "positional_encoding",
    "TokenAccuracy": "training",
    "TokenEmbedding": "embedding",
    "Transformer": "transformer",
    "WarmupSchedule": "training",
    "WeightAveraging": "training",
    "layout_map": "layout",
}

# What reads or writes text or files needs more than keras.
_OTHERS = {
    "BleuCallback": "bleu_callback",
    "Checkpoint": "checkpoint",
    "Tokenizer": "text.tokenizer",
    "Translator": "translator",
    "translation_dataset": "text.dataset",
    "verify_export": "serving.verify",
}

# What needs neither Keras nor tensorflow.
_LIGHT = {
    "CorpusScores": "bleu",
    "LiteRTTranslator": "serving.litert_translator",
    "corpus_scores": "bleu",
}

_EXTRAS = {"LiteRTTranslator": "litert"}

__all__ = ["__version__", *sorted([*_CORE, *_OTHERS, *_LIGHT])]


@wrapt.when_imported("keras")
def _register(keras):
    """Imports the core with Keras, which loads only classes it has met."""
    for home in sorted(set(_CORE.values())):
        try:
            importlib.import_module(f"keras_transformer.{home}")
        except ModuleNotFoundError:
            raise
        except ImportError:
            continue  # it needs a module that is being imported right now


def __getattr__(name):
    home = _CORE.get(name) or _OTHERS.get(name) or _LIGHT.get(name)
    if home is None:
        raise AttributeError(
            f"module 'keras_transformer' has no attribute {name!r}"
        )
    try:
        if name not in _LIGHT:
            importlib.import_module("keras")
        module = importlib.import_module(f"keras_transformer.{home}")
    except ModuleNotFoundError as error:
        is_ours = str(error.name).startswith("keras_transformer.")
        if is_ours:
            raise
        what = f"`keras_transformer.{name}`"
        raise ImportError(
            not_installed(what, error.name, _EXTRAS.get(name))
        ) from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__():
    return __all__

"""Text in and out: vocabulary, batches for training, scores."""

from keras_transformer.bleu import CorpusScores as CorpusScores
from keras_transformer.bleu import corpus_scores as corpus_scores
from keras_transformer.text.dataset import (
    translation_dataset as translation_dataset,
)
from keras_transformer.text.tokenizer import Tokenizer as Tokenizer

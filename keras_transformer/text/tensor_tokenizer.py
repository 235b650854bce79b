"""A tokenizer inside TensorFlow's graphs."""

import hashlib

import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID


class TensorTokenizer(tf.Module):
    """A tokenizer as TensorFlow operations, for a graph to keep.

    Make it where it is used: the operations of BPE models are lost after
    `tf.random.set_seed`, which clears TensorFlow's cache of kernels.

    Args:
        tokenizer: The `Tokenizer` to agree with.
    """

    def __init__(self, tokenizer):
        super().__init__()
        if tokenizer.is_fast:
            self.operations = tf_text.FastSentencepieceTokenizer(
                model=tokenizer.model
            )
        else:
            # Named after its vocabulary: tokenizers of the same name swap
            # vocabularies in a SavedModel (tensorflow/text #1304).
            digest = hashlib.sha256(tokenizer.model).hexdigest()
            self.operations = tf_text.SentencepieceTokenizer(
                model=tokenizer.model,
                out_type=tf.int32,
                name=f"sentencepiece_{digest[:16]}",
            )

    def encode(self, texts):
        """Ragged ids `(B, None)` of strings `(B,)`."""
        return self.operations.tokenize(texts)

    def decode(self, ids):
        """Strings `(B,)` of ids `(B, T)`, each up to its end token.

        The ids may be ragged.
        """
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(PAD_TOKEN_ID)
        ids = tf.convert_to_tensor(ids, tf.int32)
        is_end = tf.cast(tf.equal(ids, END_TOKEN_ID), tf.int32)
        is_content = tf.equal(tf.cumsum(is_end, axis=1), 0)
        for token_id in (PAD_TOKEN_ID, START_TOKEN_ID):
            is_content &= tf.not_equal(ids, token_id)
        content = tf.ragged.boolean_mask(ids, is_content)
        return self.operations.detokenize(content)

    def decode_rows(self, ids):
        """Strings `(B,)` of ragged ids `(B, None)`, without end tokens."""
        content = tf.ragged.boolean_mask(ids, ids != END_TOKEN_ID)
        return self.operations.detokenize(content)

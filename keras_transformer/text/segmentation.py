"""Draws how texts are split into pieces, by their probabilities.

Subword regularization, of [Kudo, 2018](https://aclanthology.org/P18-1007).
"""

import random

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.checks import check_integer

# Of how many segmentations one is drawn: `l` in section 3.3 of Kudo, 2018.
MOST_SEGMENTATIONS = 64


def seed_or_random(seed: int | None) -> int:
    """A seed as NumPy takes it; `keras.utils` can make `None` repeatable.

    Raises:
        TypeError: If the seed is not an integer.
    """
    if seed is None:
        seed = random.randrange(2**63)
    check_integer(seed=seed)
    return int(seed) % 2**64


def generator_of(seed: int | None) -> np.random.Generator:
    """Makes a generator; see `seed_or_random`."""
    return np.random.default_rng(seed_or_random(seed))


def draw_segmentations(
    processor, texts, alpha, generator, number=1
) -> list[list[list[int]]]:
    """Draws `number` segmentations of each string, as `Tokenizer.sample`.

    SentencePiece itself draws from all of them, but from another seed in each
    process; so these come from the most probable ones, which it lists.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(
        processor.serialized_model_proto()
    )
    settings = proto.trainer_spec
    if settings.model_type != settings.UNIGRAM:
        kind = settings.ModelType.Name(settings.model_type).lower()
        raise ValueError(
            "Only the pieces of a unigram vocabulary can be drawn. Received: a "
            f"SentencePiece model of type {kind}."
        )
    nats = np.array([piece.score for piece in proto.pieces])
    symbols = {
        place
        for place, piece in enumerate(proto.pieces)
        if piece.type == proto.SentencePiece.USER_DEFINED
    }

    def symbols_in(ids):
        return [token_id for token_id in ids if token_id in symbols]

    drawn = []
    for text in texts:
        best = processor.NBestEncode(text, nbest_size=MOST_SEGMENTATIONS)
        if symbols:  # never split; the list has them split as well
            whole = processor.Encode(text)
            wanted = symbols_in(whole)
            best = [ids for ids in best if symbols_in(ids) == wanted] or [whole]
        # log P(x)^alpha, but for a constant: with Gumbel noise on each, the
        # largest is a draw by the probabilities.
        logits = alpha * np.array([nats[ids].sum() for ids in best])
        noise = generator.gumbel(size=(number, len(best)))
        drawn.append([best[place] for place in np.argmax(logits + noise, 1)])
    return drawn

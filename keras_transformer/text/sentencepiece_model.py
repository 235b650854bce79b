"""SentencePiece models: their special ids, and which of them are fast."""

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.special_tokens import UNKNOWN_TOKEN_ID

SPECIAL_IDS = (PAD_TOKEN_ID, UNKNOWN_TOKEN_ID, START_TOKEN_ID, END_TOKEN_ID)


def processor_of(model: bytes):
    """Makes the `SentencePieceProcessor` of a model.

    Raises:
        ValueError: If it is no SentencePiece model.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ValueError(
            "`model` must be a SentencePiece model. Received: "
            f"{len(model)} bytes that are not one."
        ) from error
    return processor


def fast_operation_agrees(model, processor) -> bool:
    """Whether tensorflow-text's fast operation has the ids of SentencePiece.

    LiteRT can run only the fast operation.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    settings, normalizer = proto.trainer_spec, proto.normalizer_spec
    kinds = {piece.type for piece in proto.pieces}
    return (
        settings.model_type == settings.UNIGRAM
        and not settings.byte_fallback  # it knows no byte pieces
        # It marks the start of words, also at the start of a text.
        and not settings.treat_whitespace_as_suffix
        and normalizer.add_dummy_prefix
        # It takes these for spaces, whatever the normalisation rules say,
        and all(
            processor.Encode(f"a{space}a") == processor.Encode("a a")
            for space in "\t\n\r"
        )
        # and normalises symbols, which should be matched as written.
        and proto.SentencePiece.USER_DEFINED not in kinds
    )


def special_ids(processor) -> tuple[int, ...]:
    """The ids of padding, unknown, start and end, -1 if there is none."""
    return (
        processor.pad_id(),
        processor.unk_id(),
        processor.bos_id(),
        processor.eos_id(),
    )


def with_symbols(model, pieces):
    """Adds pieces that are never split to a SentencePiece model, at its end."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    kind = proto.SentencePiece
    proto.pieces.extend(
        kind(piece=piece, type=kind.USER_DEFINED) for piece in pieces
    )
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return proto.SerializeToString()


def with_our_special_ids(model):
    """Puts the special pieces of a SentencePiece model first, in our order."""
    if special_ids(processor_of(model)) == SPECIAL_IDS:
        return model
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    settings = proto.trainer_spec
    kind = proto.SentencePiece
    special = {
        PAD_TOKEN_ID: kind(piece=settings.pad_piece, type=kind.CONTROL),
        UNKNOWN_TOKEN_ID: kind(piece=settings.unk_piece, type=kind.UNKNOWN),
        START_TOKEN_ID: kind(piece=settings.bos_piece, type=kind.CONTROL),
        END_TOKEN_ID: kind(piece=settings.eos_piece, type=kind.CONTROL),
    }
    names = {piece.piece for piece in special.values()}
    pieces = [special[token_id] for token_id in sorted(special)]
    pieces += [piece for piece in proto.pieces if piece.piece not in names]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    settings.vocab_size = len(pieces)
    settings.pad_id = PAD_TOKEN_ID
    settings.unk_id = UNKNOWN_TOKEN_ID
    settings.bos_id = START_TOKEN_ID
    settings.eos_id = END_TOKEN_ID
    return proto.SerializeToString()

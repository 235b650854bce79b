"""What all engines decode: cases, their sentences and a model per size."""

import importlib.util
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.system.cores import num_cores

SOURCE_LENGTH = 24  # tokens, with the end token
SEED = 1
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")  # by id

# Pieces of each vocabulary; all other sizes are those of the preset of the same
# name, or of `TEST_SIZES`.
VOCABULARY_SIZES = {"test": 64, "tiny": 8_000, "base": 32_000}
TEST_SIZES = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
}


class Case(NamedTuple):
    """What all engines are to decode.

    Attributes:
        size: Name in `VOCABULARY_SIZES`.
        search: `"greedy"`, or `"beam"` and the number of hypotheses.
        batch: Number of sentences.
        length: Exact number of target tokens of each.
    """

    size: str
    search: str
    batch: int
    length: int

    @property
    def vocabulary_size(self) -> int:
        return VOCABULARY_SIZES[self.size]

    @property
    def width(self) -> int:
        return width_of(self.search)


def width_of(search: str) -> int:
    """The number of hypotheses of a search such as `"greedy"` or `"beam4"`."""
    return 1 if search == "greedy" else int(search.removeprefix("beam"))


def search_of(search: str):
    """Makes our search, the same as CTranslate2's.

    It has no length penalty, as the two engines' default formulas differ, and
    CTranslate2's patience, 1.
    """
    import keras_transformer as kt

    if search == "greedy":
        return kt.GreedySearch()
    return kt.BeamSearch(width_of(search), length_penalty=0.0, patience=1)


def thread_settings(batch: int = 1) -> list[dict[str, int]]:
    """The ways in which an engine can use one core or all of them.

    Several batches at once need several sentences.
    """
    settings = [{"inter_threads": 1, "intra_threads": 1}]
    for inter_threads in range(1, num_cores() + 1):
        intra_threads = num_cores() // inter_threads
        setting = {
            "inter_threads": inter_threads,
            "intra_threads": intra_threads,
        }
        is_whole = inter_threads * intra_threads == num_cores()
        if is_whole and inter_threads <= batch and setting not in settings:
            settings.append(setting)
    return settings


def worker_settings(batch: int = 1) -> list[dict[str, int]]:
    """`thread_settings` by the names that `LiteRTTranslator` has for them."""
    return [
        {
            "num_threads": setting["intra_threads"],
            "num_workers": setting["inter_threads"],
        }
        for setting in thread_settings(batch)
    ]


def make_weights(size: str, folder: str) -> dict[str, int]:
    """Writes one model with random weights for every engine to load.

    Returns:
        Its sizes, by the names of our arguments.
    """
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(SEED)
    vocabulary_size = VOCABULARY_SIZES[size]
    if size == "test":
        model = kt.Transformer(vocabulary_size, **TEST_SIZES)
    else:
        model = kt.Transformer.from_preset(size, vocabulary_size)
    _make_targets_vary(model)
    translator = kt.Translator(
        model, kt.Tokenizer(_numbered_pieces(vocabulary_size))
    )
    translator.save(os.path.join(folder, "translator"))
    if importlib.util.find_spec("ctranslate2"):
        translator.export_ctranslate2(os.path.join(folder, "ctranslate2"))
    sizes = {"vocabulary_size": vocabulary_size}
    sizes |= {name: getattr(model, name) for name in TEST_SIZES}
    Path(folder, "sizes.json").write_text(json.dumps(sizes), "utf-8")
    return sizes


def sources(case: Case) -> np.ndarray:
    """The sentences of a case, ids `(B, S)`: random ids, then the end token."""
    random = np.random.default_rng(SEED)
    source_ids = random.integers(
        END_TOKEN_ID + 1,
        case.vocabulary_size,
        (case.batch, SOURCE_LENGTH),
        dtype="int32",
    )
    source_ids[:, -1] = END_TOKEN_ID
    return source_ids


def read_sizes(folder) -> dict[str, int]:
    """Reads the sizes of the model of `make_weights`."""
    return json.loads(Path(folder, "sizes.json").read_text("utf-8"))


def pieces_of(vocabulary_size: int) -> list[str]:
    """The pieces of a vocabulary: the special ones, then numbers."""
    numbers = range(len(SPECIAL_PIECES), vocabulary_size)
    return [*SPECIAL_PIECES, *(f"▁{token_id}" for token_id in numbers)]


def token_id_of(piece: str) -> int:
    """The id of a piece of `pieces_of`."""
    if piece in SPECIAL_PIECES:
        return SPECIAL_PIECES.index(piece)
    return int(piece.removeprefix("▁"))


def _make_targets_vary(model):
    """Changes a new model so that its targets show what engines compute.

    It would repeat its input again and again, as its output matrix is its
    embedding: random signs in between prevent that. And tokens that are
    forbidden here, including the end token, must not be probable, as engines
    differ in whether the other tokens share their probability: in a direction
    that the last layer adds, only those tokens have a share, a negative one. It
    lies across all units, as a single large one would round the others away in
    8 bits.
    """
    import keras

    norm = model.decoder.layers[-1].feed_forward_add_norm.norm
    random = np.random.default_rng(SEED)
    gamma = random.choice([-1.0, 1.0], norm.gamma.shape)
    direction = random.choice([-1.0, 1.0], norm.beta.shape)
    embeddings = keras.ops.convert_to_numpy(model.target_embedding.embeddings)
    shares = embeddings @ direction / len(direction)
    shares[[PAD_TOKEN_ID, START_TOKEN_ID, END_TOKEN_ID]] += 50 / len(direction)
    embeddings = embeddings - np.outer(shares, direction)
    norm.gamma.assign(gamma)
    norm.beta.assign(direction)
    model.target_embedding.embeddings.assign(embeddings)


def _numbered_pieces(vocabulary_size):
    """A SentencePiece model whose pieces are numbers: no text is needed."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    trainer = proto.trainer_spec
    trainer.model_type = trainer.UNIGRAM
    trainer.vocab_size = vocabulary_size
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = range(4)
    proto.normalizer_spec.name = "identity"
    kind = sentencepiece_model_pb2.ModelProto.SentencePiece
    kinds = [kind.CONTROL, kind.UNKNOWN, kind.CONTROL, kind.CONTROL]
    for token_id, piece in enumerate(pieces_of(vocabulary_size)):
        is_special = token_id < len(kinds)
        proto.pieces.add(
            piece=piece,
            score=-float(token_id),
            type=kinds[token_id] if is_special else kind.NORMAL,
        )
    return proto.SerializeToString()

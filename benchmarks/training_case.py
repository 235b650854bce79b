"""What all engines train on: sizes, batches, and the work they contain."""

import pickle
from typing import NamedTuple

import numpy as np
from cases import SEED
from cases import TEST_SIZES

from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID

TEXT_LENGTH = 96  # longest source and target of real text, in tokens
LABEL_SMOOTHING = 0.1
# A step computes each product once forward and twice backward.
PRODUCTS_PER_STEP = 3


class Text(NamedTuple):
    """Real sentence pairs.

    Attributes:
        source: File of sentences, one per line.
        target: File of their translations, line by line.
        tokenizer: File to write the SentencePiece model of both sides to.
        epoch: File to write the batches of an epoch to.
    """

    source: str
    target: str
    tokenizer: str
    epoch: str


class TrainingCase(NamedTuple):
    """What all engines are to train, and on what.

    Attributes:
        size: `"test"`, or the name of a preset.
        vocabulary_size: Number of tokens, shared by both sides.
        batch: Number of sentence pairs.
        length: Number of tokens of every source and of every target.
        steps: Number of batches to measure.
        text: Pairs to train on for an epoch, in batches of `batch * length`
            tokens; by default one full batch of random ids is repeated.
        sizes: The arguments of our `Transformer` besides the vocabulary size,
            filled in by `prepare`, as the presets cannot be read without Keras.
    """

    size: str
    vocabulary_size: int
    batch: int
    length: int
    steps: int = 10
    text: Text | None = None
    sizes: dict | None = None


# On a GPU the paper's batch, section 5.1: 25,000 tokens on each side.
CASES = {
    backend: {case.size: case for case in cases}
    for backend, cases in {
        "tensorflow": [
            TrainingCase("test", 64, batch=8, length=12),
            TrainingCase("tiny", 9_712, batch=128, length=16),
            TrainingCase("base", 32_000, batch=32, length=25),
        ],
        "jax": [
            TrainingCase("test", 64, batch=8, length=12),
            TrainingCase("base", 32_000, batch=1_000, length=25),
            TrainingCase("big", 32_000, batch=1_000, length=25),
        ],
    }.items()
}


def prepare(case: TrainingCase) -> TrainingCase:
    """Fills in the sizes; learns the vocabulary and writes the batches."""
    from keras_transformer.transformer import PRESETS

    if case.text:
        _prepare_text(case)
    presets = {**PRESETS, "test": {**TEST_SIZES, "dropout": 0.1}}
    return case._replace(sizes=presets[case.size])


def synthetic_batch(case: TrainingCase):
    """A batch without padding, in the form of `translation_dataset`."""
    shape = (case.batch, case.length)
    random = np.random.default_rng(SEED)
    source_ids, labels = random.integers(
        END_TOKEN_ID + 1, case.vocabulary_size, (2, *shape), dtype="int32"
    )
    source_ids[:, -1] = labels[:, -1] = END_TOKEN_ID
    target_ids = np.roll(labels, 1, axis=1)
    target_ids[:, 0] = START_TOKEN_ID
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    return inputs, labels, np.ones(shape, "float32")


def text_batches(case: TrainingCase):
    """The batches of real text, as a `tf.data.Dataset` of an epoch."""
    import keras_transformer as kt

    return kt.translation_dataset(
        case.text.source,
        case.text.target,
        kt.Tokenizer.load(case.text.tokenizer),
        tokens_per_batch=case.batch * case.length,
        max_length=TEXT_LENGTH,
        seed=SEED,
        verbose=0,
    )


def read_epoch(case: TrainingCase) -> list:
    """Reads the batches that `prepare` wrote, without TensorFlow."""
    with open(case.text.epoch, "rb") as file:
        return pickle.load(file)


def work(case: TrainingCase) -> dict[str, int]:
    """Counts the work of a run.

    Returns:
        Steps, target tokens without padding, and the floating-point operations
        of all steps, including those of padding.
    """
    batches = [synthetic_batch(case)] * case.steps
    if case.text:
        batches = read_epoch(case)
    return {
        "steps": len(batches),
        "target_tokens": int(sum(weights.sum() for *_, weights in batches)),
        "flops": sum(
            flops_of_step(
                case.sizes,
                case.vocabulary_size,
                len(labels),
                inputs["source_ids"].shape[1],
                labels.shape[1],
            )
            for inputs, labels, _ in batches
        ),
    }


def flops_of_step(
    sizes: dict,
    vocabulary_size: int,
    batch: int,
    source_length: int,
    target_length: int,
) -> int:
    """Counts the floating-point operations of a step in matrix products.

    6 for each weight and token, and those of attention, where a decoder need
    not compute later positions. All but products is left out, as are the few
    sums of the optimizer: no engine can do with less than this.

    Args:
        sizes: The sizes of a case.
        vocabulary_size: Number of target tokens.
        batch: Number of sentence pairs.
        source_length: Tokens of each source.
        target_length: Tokens of each target.
    """
    hidden_dim, num_layers = sizes["hidden_dim"], sizes["num_layers"]
    square = hidden_dim**2
    feed_forward = 2 * hidden_dim * sizes["intermediate_dim"]
    # Queries, keys, values and output; then cross-attention's keys and values.
    per_source_token = num_layers * (4 * square + feed_forward + 2 * square)
    # Those four twice, except what is computed from the source; and the logits.
    per_target_token = num_layers * (6 * square + feed_forward)
    per_target_token += vocabulary_size * hidden_dim
    pairs = (
        source_length**2
        + target_length * (target_length + 1) // 2
        + target_length * source_length
    )
    multiply_adds = (
        source_length * per_source_token
        + target_length * per_target_token
        # The score of each pair of positions, and the weighted sum of values.
        + num_layers * pairs * 2 * hidden_dim
    )
    return PRODUCTS_PER_STEP * 2 * batch * multiply_adds


def _prepare_text(case: TrainingCase):
    import keras_transformer as kt

    tokenizer = kt.Tokenizer.train(
        [case.text.source, case.text.target],
        vocabulary_size=case.vocabulary_size,
        verbose=0,
    )
    tokenizer.save(case.text.tokenizer)
    with open(case.text.epoch, "wb") as file:
        pickle.dump(list(text_batches(case).as_numpy_iterator()), file)

"""Batches of sentences of similar length, without a backend."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from keras_transformer.checks import check_positive
from keras_transformer.lengths import default_max_length

# Positions that one batch has room for, as `batches_by_length` counts them;
# about 200 MB of cached keys and values at base size.
TOKENS_PER_BATCH = 8192


def batches_by_length(
    lengths,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    num_slots: int = 1,
    max_length: int | None = None,
    max_rows: int | None = None,
):
    """Groups sentences of similar length, longest first.

    Args:
        lengths: Tokens of each sentence.
        tokens_per_batch: Most positions that a batch has room for: its
            sentences, times `num_slots`, times the most tokens of a target, or
            of a source where that is more. A longer sentence is a batch of its
            own.
        num_slots: Number of targets that each sentence needs room for.
        max_length: Most tokens of a target; by default those of the source +
            50.
        max_rows: Most sentences of a batch; any number by default.

    Returns:
        A list of lists of indices; sentences without tokens are in none.

    Example:
    >>> batches_by_length([3, 9, 0, 4], tokens_per_batch=110)
    [[1], [3, 0]]
    """
    check_positive(tokens_per_batch=tokens_per_batch, num_slots=num_slots)
    batches = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not lengths[index]:
            break
        if batches and len(batches[-1]) != max_rows:
            longest = lengths[batches[-1][0]]
            target_length = max_length or default_max_length(longest)
            room = max(longest, target_length) * num_slots
            if (len(batches[-1]) + 1) * room <= tokens_per_batch:
                batches[-1].append(index)
                continue
        batches.append([index])
    return batches


def in_threads(function, items, num_threads: int):
    """Calls a function with each item, several at a time.

    Args:
        function: The function, which several threads may call.
        items: What to call it with, each once.
        num_threads: How many calls there are at a time; 1 for none beside the
            caller's own thread.

    Yields:
        What it returned, in the order of `items`.
    """
    if num_threads == 1:
        yield from map(function, items)
        return
    threads = ThreadPoolExecutor(num_threads)
    try:
        yield from threads.map(function, items)
    finally:  # an error, or Ctrl-C, does not wait for what has not begun
        threads.shutdown(cancel_futures=True)


def in_text_order(num_texts: int, num_hypotheses: int, found):
    """Puts results that come batch by batch in the order of the texts.

    Args:
        num_texts: Number `B` of texts.
        num_hypotheses: Number `K` of translations of a text.
        found: Iterable of the indices of a batch, `K` translations of each
            text in it, one after another, and their scores, in nats, or
            `None` where nobody asked for them.

    Returns:
        A list of `B` translations, with `K` > 1 of lists of `K`, and float32
        scores `(B,)` or `(B, K)`. A text in no batch is empty: its translation
        is empty too, of score 0, and it has no second one.
    """
    translations = [[""] * num_hypotheses for _ in range(num_texts)]
    scores = np.full((num_texts, num_hypotheses), -np.inf, "float32")
    scores[:, 0] = 0.0
    for batch, texts, batch_scores in found:
        for place, index in enumerate(batch):
            first = place * num_hypotheses
            translations[index] = texts[first : first + num_hypotheses]
        if batch_scores is not None:
            scores[batch] = np.reshape(batch_scores, (-1, num_hypotheses))
    if num_hypotheses == 1:
        return [text for (text,) in translations], scores[:, 0]
    return translations, scores


def first_of(translations) -> list[str]:
    """One translation of each text, however many the search returns.

    The best, except for `Sampling`, which returns them in no order.
    """
    return [
        found if isinstance(found, str) else found[0] for found in translations
    ]


def pad_rows(rows, length: int = 1):
    """Pads lists of ids to an int32 array `(B, S)`, `S` at least `length`."""
    ids = np.zeros((len(rows), max([length, *map(len, rows)])), "int32")
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return ids

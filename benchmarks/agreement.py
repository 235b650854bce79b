"""Shows how often exports translate as the translator itself does.

    python benchmarks/agreement.py runs/multi30k test.en test.de

Translates a test set with the translator and with its exports, CTranslate2 and
LiteRT, and prints the share of equal lines and both BLEU scores, all computed
in float32 except where weights are smaller; how far the scores of CTranslate2's
greedy translations are from ours; and for LiteRT also what smaller weights cost
and save, in greedy search with one thread. Needs `pip install '.[benchmarks]'`.
"""

import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import ctranslate2
import numpy as np
from keras import ops

import keras_transformer as kt
from keras_transformer.batches import pad_rows
from keras_transformer.special_tokens import END_TOKEN_ID
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.special_tokens import START_TOKEN_ID
from keras_transformer.text.lines import read_pairs

# Our searches, each with the options that ask CTranslate2 for the same.
SEARCHES = {
    "greedy": (kt.GreedySearch(), {"beam_size": 1, "length_penalty": 0}),
    "beam 4, no length penalty": (
        kt.BeamSearch(4, 0.0),
        {"beam_size": 4, "length_penalty": 0},
    ),
    "beam 4, no length penalty, `patience=1`": (
        kt.BeamSearch(4, 0.0, patience=1),
        {"beam_size": 4, "length_penalty": 0},
    ),
    "beam 4, length penalty 0.6": (
        kt.BeamSearch(4, 0.6),
        {"beam_size": 4, "length_penalty": 0.6},
    ),
    'beam 4, length penalty 0.6, `patience=1, length_penalty_form="power"`': (
        kt.BeamSearch(4, 0.6, patience=1, length_penalty_form="power"),
        {"beam_size": 4, "length_penalty": 0.6},
    ),
}
WEIGHTS = (None, "float16", "int8")
ROWS_AT_ONCE = 100  # to score
LONGEST = 256  # tokens after which CTranslate2 gives up


def main(folder, source, target):
    """Prints a table for each kind of export."""
    translator = kt.Translator.load(folder).with_dtype("float32")
    sources, references = read_pairs(source, target)
    print_ctranslate2(translator, sources, references)
    print_litert(translator, sources, references)


def print_ctranslate2(translator, sources, references):
    """Prints, for each search, how often CTranslate2 translates as we do."""

    def row(name, ours, theirs):
        same = sum(a == b for a, b in zip(ours, theirs, strict=True))
        scores = [
            f"{kt.corpus_scores(lines, references).bleu:.2f}"
            for lines in (ours, theirs)
        ]
        print(f"| {name} | {same / len(ours):.1%} | {' | '.join(scores)} |")

    with tempfile.TemporaryDirectory() as parent:
        exported = os.path.join(parent, "ctranslate2")
        translator.export_ctranslate2(exported)
        print("| search | same | BLEU, ours | BLEU, CTranslate2 |")
        for name, (search, options) in SEARCHES.items():
            results = translated(exported, translator, sources, options)
            theirs = translator.target_tokenizer.decode(
                target_ids(translator, results)
            )
            row(name, translator(sources, search=search), theirs)
            if name == "greedy":
                differences = score_differences(translator, sources, results)
    print(
        "\nScores of CTranslate2's greedy translations, most nats from ours: "
        "{:.0e}; with the share of padding and start token, which it never "
        "chooses, given to the others: {:.0e}.".format(*differences)
    )


def print_litert(translator, sources, references):
    """Prints how a LiteRT file with each kind of weights does, and its cost."""
    translator.search = kt.GreedySearch()
    tokenizers = (translator.tokenizer, translator.target_tokenizer)
    has_text = all(tokenizer.is_fast for tokenizer in tokenizers)
    print("\n| weights | file | same | BLEU | chrF | ms a sentence | peak |")
    with tempfile.TemporaryDirectory() as parent:
        for quantization in WEIGHTS:
            path = os.path.join(parent, f"{quantization}.tflite")
            translator.export_litert(
                path, quantization, text=has_text, steps=False
            )
            scores = kt.corpus_scores(
                kt.LiteRTTranslator(path)(sources), references
            )
            report = kt.verify_export(translator, path, sources)
            print(
                f"| {quantization or 'float32'} "
                f"| {report.size_bytes / 1e6:.1f} MB "
                f"| {report.identical / report.lines:.1%} "
                f"| {scores.bleu:.2f} | {scores.chrf:.2f} "
                f"| {1e3 * report.seconds_per_sentence:.2f} "
                f"| {report.peak_memory_bytes / 2**20:.0f} MiB |"
            )


def translated(exported, translator, texts, options):
    """CTranslate2's results for the texts."""
    engine = ctranslate2.Translator(exported, intra_threads=2)
    tokenizer = translator.tokenizer
    pieces = [
        [tokenizer.pieces[token_id] for token_id in ids]
        for ids in tokenizer.encode(texts)
    ]
    return engine.translate_batch(
        pieces,
        max_batch_size=64,
        min_decoding_length=0,
        return_scores=True,
        **options,
    )


def target_ids(translator, results):
    """The ids of CTranslate2's best translations, without end tokens."""
    token_ids = {
        piece: token_id
        for token_id, piece in enumerate(translator.target_tokenizer.pieces)
    }
    return [
        [token_ids[piece] for piece in result.hypotheses[0]]
        for result in results
    ]


def score_differences(translator, texts, results):
    """How far scores are from ours, and from ours without two tokens.

    Returns:
        The largest differences, in nats, for whole translations that ended.
    """
    model = translator.model
    rows = zip(
        translator.tokenizer.encode(texts),
        target_ids(translator, results),
        (result.scores[0] for result in results),
        strict=True,
    )
    # Translations that never end have no score for an end token.
    rows = [row for row in rows if len(row[1]) < LONGEST]
    largest = np.zeros(2)
    for first in range(0, len(rows), ROWS_AT_ONCE):
        some = rows[first : first + ROWS_AT_ONCE]
        source_ids, targets, theirs = zip(*some, strict=True)
        targets = pad_rows([[*ids, END_TOKEN_ID] for ids in targets])
        inputs = {
            "source_ids": pad_rows(
                [[*ids, END_TOKEN_ID] for ids in source_ids]
            ),
            "target_ids": model.decoder_inputs(targets),
        }
        shares = ops.convert_to_numpy(ops.softmax(model(inputs)))
        chosen = np.take_along_axis(shares, targets[..., None], axis=2)[..., 0]
        never = shares[..., PAD_TOKEN_ID] + shares[..., START_TOKEN_ID]
        for number, total in enumerate((1.0, 1.0 - never)):
            scores = np.where(targets != 0, np.log(chosen / total), 0.0)
            differences = np.abs(np.sum(scores, axis=1) - theirs)
            largest[number] = max(largest[number], differences.max())
    return largest


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (OSError, ValueError) as error:
        sys.exit(f"agreement.py: {error}")

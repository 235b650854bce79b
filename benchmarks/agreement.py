"""Says how often exports translate as the translator itself does.

    python benchmarks/agreement.py runs/multi30k test.en test.de

Translates a test set with the translator and with its exports, CTranslate2 and
LiteRT, and prints the share of equal lines and both BLEU scores, all computed
in float32 but where weights are smaller; of LiteRT also what smaller weights
cost and save, greedily and with one thread. Needs
`pip install '.[benchmarks]'`.
"""

import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import ctranslate2

import keras_transformer as kt
from keras_transformer.text.lines import read_lines

# How CTranslate2 is asked for the search beside it.
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
    "beam 4, length penalty 0.6 of its form, `patience=1`": (
        kt.BeamSearch(4, 0.6, patience=1, length_penalty_form="power"),
        {"beam_size": 4, "length_penalty": 0.6},
    ),
}
WEIGHTS = (None, "float16", "int8")


def main(folder, source, target):
    """Prints a table for each kind of export."""
    translator = kt.Translator.load(folder).with_dtype("float32")
    sources, references = list(read_lines(source)), list(read_lines(target))

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
            translator.search = search
            theirs = translated(exported, translator, sources, options)
            row(name, translator(sources), theirs)
        translator.search = kt.GreedySearch()
        ours = translator(sources)
        print(
            "\n| weights | file | same | BLEU | chrF | ms a sentence | peak |"
        )
        for quantization in WEIGHTS:
            path = os.path.join(parent, f"{quantization}.tflite")
            translator.export_litert(path, quantization, steps=False)
            scores = kt.corpus_scores(
                kt.LiteRTTranslator(path)(sources), references
            )
            report = kt.verify_export(translator, path, sources, expected=ours)
            print(
                f"| {quantization or 'float32'} "
                f"| {report.size_bytes / 1e6:.1f} MB "
                f"| {report.identical / report.lines:.1%} "
                f"| {scores.bleu:.2f} | {scores.chrf:.2f} "
                f"| {1e3 * report.seconds_per_sentence:.2f} "
                f"| {report.peak_memory_bytes / 2**20:.0f} MiB |"
            )


def translated(exported, translator, texts, options):
    """What CTranslate2 makes of the texts."""
    engine = ctranslate2.Translator(exported, intra_threads=2)
    tokenizer = translator.tokenizer
    pieces = [
        [tokenizer.pieces[token_id] for token_id in ids]
        for ids in tokenizer.encode(texts)
    ]
    results = engine.translate_batch(
        pieces, max_batch_size=64, min_decoding_length=0, **options
    )
    token_ids = {
        piece: token_id
        for token_id, piece in enumerate(translator.target_tokenizer.pieces)
    }
    return translator.target_tokenizer.decode(
        [
            [token_ids[piece] for piece in result.hypotheses[0]]
            for result in results
        ]
    )


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])

"""Trains Transformer-Tiny on Multi30k by the published recipe and scores it.

The recipe of [Wu et al., 2021](https://aclanthology.org/2021.acl-long.480),
English to German, text alone, in two cases. "segmented" takes text that byte
pair encoding has split already, `@@ ` after each piece that goes on, as the
published score does: no tokenizer, ids from a dictionary of the pieces. "raw"
takes text as people write it, and learns a vocabulary of its own.

    python examples/multi30k/multi30k.py segmented --train train.en train.de \
        --validation valid.en valid.de --test test.en reference.de \
        --output runs/multi30k/segmented-1 --seed 1
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pieces

import keras_transformer as kt

TOKENS_PER_BATCH = 4096  # with padding, of the longer side
BATCHES_PER_UPDATE = 2
MOST_UPDATES = 8000
WARMUP_STEPS = 1000
PEAK_LEARNING_RATE = 0.005
LABEL_SMOOTHING = 0.1
PATIENCE = 10  # epochs
AVERAGED_EPOCHS = 10
BEAM_WIDTH = 5
LENGTH_PENALTY = 1.0  # of the form that divides by the length
VOCABULARY_SIZE = 8000  # of the raw case


def make_model(vocabulary_size, **overrides):
    """The tiny preset, which has one matrix for all three embeddings."""
    model = kt.Transformer.from_preset("tiny", vocabulary_size, **overrides)
    model.compile(
        optimizer=kt.Adam(
            kt.WarmupSchedule(
                peak_learning_rate=PEAK_LEARNING_RATE,
                warmup_steps=WARMUP_STEPS,
            ),
            epsilon=1e-8,
            gradient_accumulation_steps=BATCHES_PER_UPDATE,
        ),
        loss=kt.LabelSmoothedCrossentropy(LABEL_SMOOTHING),
        weighted_metrics=[kt.Perplexity()],
        jit_compile=False,  # batches have too many shapes to compile each
    )
    return model


class TimeLimit(keras.callbacks.Callback):
    """Ends training with the first epoch that is over after `minutes`."""

    def __init__(self, minutes):
        super().__init__()
        self.end = time.perf_counter() + 60 * minutes

    def on_epoch_end(self, epoch, logs=None):
        if time.perf_counter() >= self.end:
            self.model.stop_training = True


def fit(model, batches, validation, options):
    """Trains until the validation loss, the updates or the time end it."""
    epochs = max(MOST_UPDATES * BATCHES_PER_UPDATE // len(batches), 1)
    callbacks = [
        kt.WeightAveraging(last=AVERAGED_EPOCHS),
        keras.callbacks.EarlyStopping("val_loss", patience=PATIENCE),
        keras.callbacks.ModelCheckpoint(options.output / "model.keras"),
    ]
    if options.minutes is not None:
        callbacks.append(TimeLimit(options.minutes))
    start = time.perf_counter()
    history = model.fit(
        batches,
        validation_data=validation,
        epochs=epochs,
        callbacks=callbacks,
        verbose=2,
    ).history
    return {
        "minutes": round((time.perf_counter() - start) / 60, 2),
        "weights": model.count_params(),
        "epochs": len(history["loss"]),
        "updates": int(model.optimizer.iterations),
        "validation_loss": finite(history["val_loss"][-1]),
        "validation_perplexity": finite(history["val_perplexity"][-1]),
    }


def finite(value):
    """A number, or `None` where training has diverged: JSON has no NaN."""
    return value if math.isfinite(value) else None


def search():
    """Beam search as published."""
    return kt.BeamSearch(
        width=BEAM_WIDTH,
        length_penalty=LENGTH_PENALTY,
        patience=1,
        length_penalty_form="power",
    )


def read_lines(path):
    """The lines of a file, in which only a newline ends a line."""
    with open(path, encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\r\n") for line in file]


def read_pairs(paths):
    """Pairs of lines of two files of as many."""
    source, target = map(read_lines, paths)
    if len(source) != len(target):
        raise ValueError(
            f"Two files must have as many lines as each other. Received: "
            f"{paths[0]} with {len(source)}, {paths[1]} with {len(target)}."
        )
    return source, target


def segmented(options):
    """Text of pieces: what training came to, translations, scores."""
    texts = read_pairs(options.train), read_pairs(options.validation)
    vocabulary = pieces.make_vocabulary(itertools.chain(*texts[0]))
    model = make_model(pieces.size(vocabulary), dtype=options.dtype)
    datasets = (
        pieces.make_dataset(
            *(pieces.make_ids(lines, vocabulary) for lines in text),
            TOKENS_PER_BATCH,
            options.seed,
        )
        for text in texts
    )
    results = fit(model, *datasets, options)
    sources, references = read_pairs(options.test)
    found = pieces.translate(model, sources, vocabulary, search())
    # The words are tokens already.
    scores = kt.corpus_scores(
        found, references, lowercase=True, tokenize="none"
    )
    return results, found, scores


def raw(options):
    """Text as it is written: the same, and the translator is saved."""
    tokenizer = kt.Tokenizer.train(options.train, VOCABULARY_SIZE)
    model = make_model(tokenizer.vocabulary_size, dtype=options.dtype)
    sizes = {"tokens_per_batch": TOKENS_PER_BATCH, "seed": options.seed}
    results = fit(
        model,
        kt.translation_dataset(*options.train, tokenizer, **sizes),
        kt.translation_dataset(
            *options.validation, tokenizer, shuffle=False, **sizes
        ),
        options,
    )
    translator = kt.Translator(model, tokenizer, search=search())
    sources, references = read_pairs(options.test)
    found = translator(sources)
    # There may be one of a run that died; of one that ended, `run` knows.
    translator.save(options.output / "translator", overwrite=True)
    return results, found, kt.corpus_scores(found, references)


def run(options):
    """Trains, translates, scores; writes what came of it to a folder."""
    report = options.output / "results.json"
    if report.exists():
        raise FileExistsError(f"{report} exists already; name another folder.")
    for paths in (options.train, options.validation, options.test):
        read_pairs(paths)  # found wrong now, rather than after training
    options.output.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    results, found, scores = CASES[options.case](options)
    settings = {name: globals()[name] for name in SETTINGS}
    results |= {**dataclasses.asdict(scores), "settings": settings}
    results["arguments"] = vars(options)
    for path, text in (
        (options.output / "translations.txt", "\n".join([*found, ""])),
        (
            report,
            json.dumps(results, indent=2, default=str, allow_nan=False),
        ),
    ):
        partial = path.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    print(f"BLEU {scores.bleu:.2f} {scores.signature}; all in {report}")


def minutes(text):
    """The value of `--minutes`."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0. Received: {text}.")
    return value


def main(arguments=None):
    """The command line; what is wrong with files is one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("case", choices=CASES)
    for name in ("train", "validation", "test"):
        files = {"nargs": 2, "metavar": ("SOURCE", "TARGET")}
        parser.add_argument(f"--{name}", required=True, **files)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="float32", help="Keras policy")
    parser.add_argument(
        "--minutes",
        type=minutes,
        help="end training with the epoch in which they are over",
    )
    try:
        run(parser.parse_args(arguments))
    except (OSError, ValueError) as error:
        parser.exit(2, f"multi30k.py: {error}\n")


CASES = {"segmented": segmented, "raw": raw}
SETTINGS = [name for name in globals() if name.isupper() and name != "CASES"]

if __name__ == "__main__":
    main()

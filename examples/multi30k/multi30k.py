"""Trains Transformer-Tiny on Multi30k by the published recipe and scores it.

The recipe of [Wu et al., 2021](https://aclanthology.org/2021.acl-long.480),
English to German, text alone, in two cases. "segmented" takes text that byte
pair encoding has split already, `@@ ` after each piece that goes on, as the
published score does: no tokenizer, ids from a dictionary of the pieces. "raw"
takes text as people write it, and learns a vocabulary of its own.

    python examples/multi30k/multi30k.py segmented --train train.en train.de \
        --validation valid.en valid.de --test test.en reference.de \
        --output runs/multi30k/segmented-1 --seed 1

The same command goes on with a training that was stopped.
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


class Progress(keras.callbacks.Callback):
    """Writes what the same command goes on from, and ends training.

    Put it last: it sees the epoch as the other callbacks leave it.

    Args:
        start: The `Checkpoint` that training begins with.
        folder: Where checkpoints go.
        averaging: The `WeightAveraging`.
        minutes: Training time after which no further epoch begins.
    """

    def __init__(self, start, folder, averaging, minutes):
        super().__init__()
        self.history = start.history
        self.folder = folder
        self.averaging = averaging
        self.minutes = math.inf if minutes is None else minutes

    def minutes_so_far(self):
        """Training time, with that before an interruption."""
        return sum(row["seconds"] for row in self.history) / 60

    def is_over(self):
        """Whether validation no longer improves, or time is up."""
        if self.minutes_so_far() >= self.minutes:
            return True
        losses = [row["val_loss"] for row in self.history]
        # NaN is no improvement, nor is there one before the first epoch.
        best = min(filter(math.isfinite, losses), default=math.inf)
        since = itertools.takewhile(lambda loss: loss != best, losses[::-1])
        return len([*since]) >= PATIENCE

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.perf_counter() - self.began
        self.history.append({"epoch": epoch, "seconds": seconds, **logs})
        kt.Checkpoint.of(
            self.model, epoch + 1, self.averaging, history=self.history
        ).write(self.folder)
        self.model.stop_training = self.is_over()


def fit(model, make_batches, validation, options):
    """Trains until the validation loss, the updates or the time end it.

    Where a training was stopped, it goes on after the last epoch that ended.

    Args:
        model: From `make_model`.
        make_batches: Function of the number of the first epoch to a dataset.
        validation: A dataset.
        options: Of the command line.
    """
    folder = options.output / "checkpoints"
    start = kt.Checkpoint.newest(folder)
    averaging = kt.WeightAveraging(last=AVERAGED_EPOCHS)
    start.assign(model, averaging)
    if start.epoch:
        print(f"Going on after epoch {start.epoch}.", flush=True)
    progress = Progress(start, folder, averaging, options.minutes)
    batches = make_batches(start.epoch)
    epochs = max(MOST_UPDATES * BATCHES_PER_UPDATE // len(batches), 1)
    model.fit(
        batches,
        validation_data=validation,
        initial_epoch=start.epoch,
        epochs=start.epoch if progress.is_over() else epochs,
        callbacks=[
            averaging,
            keras.callbacks.ModelCheckpoint(options.output / "model.keras"),
            progress,
        ],
        verbose=2,
    )
    last = progress.history[-1]
    return {
        "minutes": round(progress.minutes_so_far(), 2),
        "weights": model.count_params(),
        "epochs": len(progress.history),
        "updates": int(model.optimizer.iterations),
        "validation_loss": finite(last["val_loss"]),
        "validation_perplexity": finite(last["val_perplexity"]),
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
    ids, validation_ids = (
        [pieces.make_ids(lines, vocabulary) for lines in text] for text in texts
    )
    sizes = {"tokens_per_batch": TOKENS_PER_BATCH, "seed": options.seed}
    results = fit(
        model,
        lambda epoch: pieces.make_dataset(*ids, first_epoch=epoch, **sizes),
        pieces.make_dataset(*validation_ids, **sizes),
        options,
    )
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
    sizes = {"tokenizer": tokenizer, "tokens_per_batch": TOKENS_PER_BATCH}
    results = fit(
        model,
        # One that goes on has other orders, but none a second time.
        lambda epoch: kt.translation_dataset(
            *options.train, seed=options.seed + epoch, **sizes
        ),
        kt.translation_dataset(*options.validation, shuffle=False, **sizes),
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
    settings = {name: globals()[name] for name in SETTINGS}
    begin(options, settings)
    keras.utils.set_random_seed(options.seed)
    results, found, scores = CASES[options.case](options)
    results |= {**dataclasses.asdict(scores), "settings": settings}
    results["arguments"] = vars(options)
    write(options.output / "translations.txt", "\n".join([*found, ""]))
    write(report, as_json(results))
    print(f"BLEU {scores.bleu:.2f} {scores.signature}; all in {report}")


def begin(options, settings):
    """Notes what is trained, or raises if something else was begun there."""
    path = options.output / "begun.json"
    same = ("case", "train", "validation", "seed", "dtype")
    text = as_json({**{name: vars(options)[name] for name in same}, **settings})
    if not path.exists():
        write(path, text)
    elif path.read_text(encoding="utf-8") != text:
        raise ValueError(
            f"What goes on must be what was begun, which {path} says. Pass the "
            "same, or name another folder."
        )


def as_json(values):
    """Text of values, with what JSON lacks as strings."""
    return json.dumps(values, indent=2, default=str, allow_nan=False)


def write(path, text):
    """Writes beside the file first: a killed process leaves no half of it."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


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
        help="end training with the epoch in which they are over, with those "
        "before an interruption",
    )
    try:
        run(parser.parse_args(arguments))
    except (OSError, ValueError) as error:
        parser.exit(2, f"multi30k.py: {error}\n")


CASES = {"segmented": segmented, "raw": raw}
SETTINGS = [name for name in globals() if name.isupper() and name != "CASES"]

if __name__ == "__main__":
    main()

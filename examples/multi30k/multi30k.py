r"""Trains Transformer-Tiny on Multi30k and scores it.

Uses the recipe of [Wu et al., 2021](https://aclanthology.org/2021.acl-long.480)
or a shorter one, from English to German, text only, in two cases. "segmented"
takes text that byte pair encoding has already split, with `@@ ` after each
piece that the next one continues, as the published score does: there is no
tokenizer, and ids come from a dictionary of the pieces. "raw" takes text as
people write it, and learns its own vocabulary.

    python examples/multi30k/multi30k.py segmented --train train.en train.de \
        --validation valid.en valid.de --test test.en reference.de \
        --output runs/multi30k/segmented-1 --seed 1

The same command goes on with a training that was stopped.
"""

import argparse
import dataclasses
import itertools
import math
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import files
import keras
import pieces
import progress
from recipes import RECIPES

import keras_transformer as kt
from keras_transformer.tensorflow_only.threads import give_cores_to_parts
from keras_transformer.text.lines import read_pairs

TOKENS_PER_BATCH = 4096  # with padding, of the longer side
LABEL_SMOOTHING = 0.1
BEAM_WIDTH = 5
LENGTH_PENALTY = 1.0  # of the form that divides by the length
VOCABULARY_SIZE = 8000  # of the raw case
# The same, for the report.
SETTINGS = {
    "tokens_per_batch": TOKENS_PER_BATCH,
    "label_smoothing": LABEL_SMOOTHING,
    "beam_width": BEAM_WIDTH,
    "length_penalty": LENGTH_PENALTY,
    "vocabulary_size": VOCABULARY_SIZE,
}


def make_model(vocabulary_size, options, **overrides):
    """Makes the tiny preset, which shares one matrix among its embeddings."""
    recipe = RECIPES[options.recipe]
    return kt.Transformer.from_preset(
        "tiny",
        vocabulary_size,
        normalize_first=recipe.normalize_first,
        dropout=recipe.dropout,
        dtype=options.dtype,
        **overrides,
    )


def fit(model, make_batches, validation, options):
    """Trains until validation loss, number of updates or time ends it.

    A training that was stopped goes on after the last epoch that ended.

    Args:
        model: The model, from `make_model`.
        make_batches: Function from the number of the first epoch to a dataset.
        validation: The dataset to validate with.
        options: The options of the command line.
    """
    folder = options.output / "checkpoints"
    start = kt.Checkpoint.newest(folder)
    batches = make_batches(start.epoch)
    recipe = RECIPES[options.recipe]
    model.compile(
        optimizer=recipe.optimizer(len(batches)),
        loss=kt.LabelSmoothedCrossentropy(LABEL_SMOOTHING),
        weighted_metrics=[kt.Perplexity()],
        # Batches have too many shapes for XLA; only JAX is slower without it.
        jit_compile=keras.config.backend() == "jax",
    )
    averaging = kt.WeightAveraging(last=recipe.averaged_epochs)
    start.assign(model, averaging)
    if start.epoch:
        print(f"Going on after epoch {start.epoch}.", flush=True)
    start.tensors.clear()  # many times the model's size
    state = progress.Progress(
        start, folder, averaging, recipe.patience, options.minutes
    )
    epochs = recipe.num_epochs(len(batches))
    model.fit(
        batches,
        validation_data=validation,
        initial_epoch=start.epoch,
        epochs=start.epoch if state.is_over() else epochs,
        callbacks=[
            averaging,
            keras.callbacks.ModelCheckpoint(options.output / "model.keras"),
            state,
        ],
        verbose=2,
    )
    last = state.history[-1]
    return {
        "minutes": round(state.minutes_so_far(), 2),
        "weights": model.count_params(),
        "epochs": len(state.history),
        "updates": int(model.optimizer.iterations),
        "validation_loss": last["val_loss"],
        "validation_perplexity": last["val_perplexity"],
    }


def search():
    """Beam search as published."""
    return kt.BeamSearch(
        width=BEAM_WIDTH,
        length_penalty=LENGTH_PENALTY,
        patience=1,
        length_penalty_form="power",
    )


def segmented(options):
    """Runs the case of pieces; returns results, translations, scores."""
    texts = (
        read_pairs(*options.train),
        read_pairs(*options.validation),
    )
    vocabulary = pieces.make_vocabulary(itertools.chain(*texts[0]))
    model = make_model(pieces.size(vocabulary), options)
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
    sources, references = read_pairs(*options.test)
    found = pieces.translate(model, sources, vocabulary, search())
    # The words are already tokens.
    scores = kt.corpus_scores(
        found, references, lowercase=True, tokenize="none"
    )
    return results, found, scores


def raw(options):
    """Runs the case of raw text likewise, and saves the translator."""
    path = options.output / "tokenizer.model"
    if not path.exists():  # a run that goes on keeps its pieces
        kt.Tokenizer.train(options.train, VOCABULARY_SIZE).save(path)
    tokenizer = kt.Tokenizer.load(path)
    model = make_model(tokenizer.vocabulary_size, options)
    sizes = {"tokenizer": tokenizer, "tokens_per_batch": TOKENS_PER_BATCH}
    results = fit(
        model,
        # A run that goes on has new orders, but repeats none.
        lambda epoch: kt.translation_dataset(
            *options.train, seed=options.seed + epoch, **sizes
        ),
        kt.translation_dataset(*options.validation, shuffle=False, **sizes),
        options,
    )
    translator = kt.Translator(model, tokenizer, search=search())
    sources, references = read_pairs(*options.test)
    found = translator(sources)
    # A run that died may have left one; `run` refuses the folder of one that
    # ended.
    translator.save(options.output / "translator", overwrite=True)
    return results, found, kt.corpus_scores(found, references)


def run(options):
    """Trains, translates and scores; writes the results to a folder."""
    report = options.output / "results.json"
    if report.exists():
        raise FileExistsError(f"{report} exists already; name another folder.")
    for paths in (options.train, options.validation, options.test):
        read_pairs(*paths)  # checked now, rather than after training
    keras.dtype_policies.get(options.dtype)
    options.output.mkdir(parents=True, exist_ok=True)
    settings = SETTINGS | dataclasses.asdict(RECIPES[options.recipe])
    files.begin(options, settings)
    keras.utils.set_random_seed(options.seed)
    results, found, scores = CASES[options.case](options)
    results |= {**dataclasses.asdict(scores), "settings": settings}
    results["arguments"] = vars(options)
    files.write(options.output / "translations.txt", "\n".join([*found, ""]))
    files.write(report, files.as_json(results))
    print(f"BLEU {scores.bleu:.2f} {scores.signature}; all in {report}")


def minutes(text):
    """Parses the value of `--minutes`."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0. Received: {text}.")
    return value


def main(arguments=None):
    """The command line; an error in the files is reported in one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("case", choices=CASES)
    for name in ("train", "validation", "test"):
        pair = {"nargs": 2, "metavar": ("SOURCE", "TARGET")}
        parser.add_argument(f"--{name}", required=True, **pair)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--recipe",
        choices=RECIPES,
        default="published",
        help="the published one, or one that takes an hour on slow cores",
    )
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

if __name__ == "__main__":
    # Such a small model trains faster if each core has a part of a batch.
    give_cores_to_parts()
    main()

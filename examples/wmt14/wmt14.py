r"""Trains the paper's base or big model on WMT 2014 and scores it.

The recipe of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), for
your own copies of the files: cleans them, trains with `keras-transformer
train`, and translates the test set with the mean of the last checkpoints.
Started again after it was stopped, it goes on where it was.

    python examples/wmt14/wmt14.py base --train train.en train.de \
        --validation newstest2013.en newstest2013.de \
        --test newstest2014.en newstest2014.de --output runs/wmt14/base
"""

import argparse
import itertools
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from keras_transformer.system.atomic import write_file
from keras_transformer.system.paths import fingerprint
from keras_transformer.text.lines import line_pairs

# Longer pairs are dropped: by words before training, by tokens when training
# reads them.
MOST_WORDS = 175
LARGEST_RATIO = 2.0  # of the words of the longer side to those of the shorter
MOST_TOKENS = 256

VOCABULARY_SIZE = 37_000  # section 5.1, both languages
TOKENS_PER_UPDATE = 25_000  # section 5.1, on each side
WARMUP_STEPS = 4_000  # section 5.3
LABEL_SMOOTHING = 0.1  # section 5.4
BEAM_WIDTH = 4  # section 6.1
LENGTH_PENALTY = 0.6

# Training validates, and can end, after this many updates: the updates of both
# recipes are multiples of it, but not of a pass over the text.
UPDATES_PER_EPOCH = 2_000

# Updates of section 5.2. Checkpoints of section 6.1, ten minutes apart: 1,500
# updates at the paper's 0.4 s an update, or 600 at 1 s.
RECIPES = {
    "base": {"updates": 100_000, "last": 5, "every": 1_500, "dropout": 0.1},
    "big": {"updates": 300_000, "last": 20, "every": 600, "dropout": 0.3},
}

# `--dry-run`: every step, at a size that takes a minute.
DRY_LINES = 500
DRY_TEST_LINES = 2
DRY_VOCABULARY_SIZE = 500
DRY_TOKENS = 3_000
DRY_UPDATES_PER_EPOCH = 6
DRY_RECIPE = {"updates": 12, "last": 2, "every": 5, "dropout": 0.1}


def is_clean(source, target):
    """Whether a pair looks like a sentence and its translation."""
    lengths = sorted((len(source.split()), len(target.split())))
    return (
        0 < lengths[0]
        and lengths[1] <= MOST_WORDS
        and lengths[1] <= LARGEST_RATIO * lengths[0]
    )


def clean(paths, cleaned, most_lines=None):
    """Writes the clean pairs of two files to others; counts read and kept."""
    read = kept = 0
    with (
        open(cleaned[0], "w", encoding="utf-8", newline="\n") as source_out,
        open(cleaned[1], "w", encoding="utf-8", newline="\n") as target_out,
    ):
        for one, other in itertools.islice(line_pairs(*paths), most_lines):
            read += 1
            if is_clean(one, other):
                kept += 1
                source_out.write(f"{one}\n")
                target_out.write(f"{other}\n")
    return read, kept


def command(*arguments):
    """Runs `keras-transformer` and returns what it prints.

    When this program is to stop, it waits for the command, as training saves
    everything before it ends. The terminal sends Ctrl-C to both; SIGTERM is
    passed on.
    """
    arguments = [str(argument) for argument in arguments]
    print(f"keras-transformer {shlex.join(arguments)}", file=sys.stderr)
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_transformer", *arguments],
        stdout=None if arguments[0] == "train" else subprocess.PIPE,
        text=True,
    )
    handlers = {
        signal.SIGINT: signal.SIG_IGN,
        signal.SIGTERM: lambda number, frame: process.send_signal(number),
    }
    for number, handler in handlers.items():
        handlers[number] = signal.signal(number, handler)  # the old handler
    try:
        output, _ = process.communicate()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return output


def train(folder, files, options):
    """Trains for the recipe's updates."""
    dry = options.dry_run
    recipe = DRY_RECIPE if dry else RECIPES[options.size]
    tokens = (DRY_TOKENS if dry else TOKENS_PER_UPDATE) // options.accumulate
    settings = {
        "output": folder / "translator",
        "preset": "tiny" if dry else options.size,
        "vocabulary_size": DRY_VOCABULARY_SIZE if dry else VOCABULARY_SIZE,
        "model_type": "bpe",
        "tokens_per_batch": tokens,
        "max_length": MOST_TOKENS,
        "updates": recipe["updates"],
        "updates_per_epoch": DRY_UPDATES_PER_EPOCH
        if dry
        else UPDATES_PER_EPOCH,
        "accumulate": options.accumulate,
        "warmup_steps": WARMUP_STEPS,
        "label_smoothing": LABEL_SMOOTHING,
        "dropout": recipe["dropout"],
        "average_last": recipe["last"],
        "average_every": recipe["every"],
        "save_every": recipe["every"],
        "dtype": options.dtype,
        "seed": options.seed,
    }
    if options.distribute:
        settings["distribute"] = options.distribute
    arguments = ["train", *files, "--validation", *options.validation]
    for name, value in settings.items():
        arguments += [f"--{name.replace('_', '-')}", value]
    command(*arguments)
    return settings["output"]


def run(options):
    """Cleans, trains, translates and scores; each step once."""
    # Checked now, rather than after days.
    for paths in (options.validation, options.test):
        if not sum(1 for pair in line_pairs(*paths)):
            raise ValueError(f"{paths[0]} and {paths[1]} must not be empty.")
    folder = options.output / ("dry-run" if options.dry_run else "run")
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "train.source", folder / "train.target"]
    cleaned = folder / "cleaned.txt"
    digests = " ".join(map(fingerprint, options.train))
    if not cleaned.exists():
        most = DRY_LINES if options.dry_run else None
        read, kept = clean(options.train, files, most)
        names = " and ".join(map(str, options.train))
        summary = f"{kept:,} of {read:,} pairs of {names} kept\n{digests}"
        write_file(cleaned, summary.encode())
    report, begun_with = cleaned.read_text(encoding="utf-8").splitlines()
    if begun_with != digests:
        raise ValueError(
            f"`--train` must be the text that {folder} began with. Received: "
            "other text. Name another `--output`."
        )
    print(report, file=sys.stderr)
    test = options.test
    if options.dry_run:
        test = [folder / "test.source", folder / "test.target"]
        pairs = itertools.islice(line_pairs(*options.test), DRY_TEST_LINES)
        for path, lines in zip(test, zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines)
            write_file(path, text.encode())
    translator = train(folder, files, options)
    search = ["--search", "beam", "--width", BEAM_WIDTH]
    search += ["--length-penalty", LENGTH_PENALTY]
    scores = command("evaluate", translator, *test, *search)
    write_file(folder / "scores.txt", scores.encode())
    print(scores, end="")


def main(arguments=None):
    """The command line; an error in the files is reported in one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("size", choices=RECIPES)
    for name in ("train", "validation", "test"):
        files = {"nargs": 2, "metavar": ("SOURCE", "TARGET"), "type": Path}
        parser.add_argument(f"--{name}", required=True, **files)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="mixed_bfloat16")
    parser.add_argument(
        "--accumulate",
        type=int,
        default=1,
        choices=(1, 2, 4, 5, 8, 10),
        help="batches that the 25,000 tokens of an update are split into",
    )
    parser.add_argument(
        "--distribute",
        choices=("mirrored",),
        help="train on all GPUs of this machine",
    )
    parser.add_argument("--dry-run", action="store_true")
    try:
        run(parser.parse_args(arguments))
    except subprocess.CalledProcessError as error:  # it has said why
        code = error.returncode
        parser.exit(code if code > 0 else 128 - code)  # as shells do
    except (OSError, ValueError) as error:
        parser.exit(2, f"wmt14.py: {error}\n")


if __name__ == "__main__":
    main()

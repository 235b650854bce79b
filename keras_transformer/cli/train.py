"""`keras-transformer train`."""

import atexit
import dataclasses
import functools
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated
from typing import Literal

import typer

from keras_transformer.cli.options import DtypePolicy
from keras_transformer.cli.options import Overwrite
from keras_transformer.process import end_at_once
from keras_transformer.process import quiet_start
from keras_transformer.process import start_watcher

# Options under headings of `--help`.
of_model = functools.partial(typer.Option, rich_help_panel="Model")
of_vocabulary = functools.partial(typer.Option, rich_help_panel="Vocabulary")
of_learning = functools.partial(typer.Option, rich_help_panel="Learning")
of_validation = functools.partial(typer.Option, rich_help_panel="Validation")
of_run = functools.partial(typer.Option, rich_help_panel="How it runs")


def train(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(help="Text file, a sentence a line.")
    ],
    target: Annotated[
        Path, typer.Argument(help="Its translation, line by line.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the translator.")
    ],
    validation: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="<source target>",
            help="Two files like the arguments, to watch.",
        ),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="Translator to learn on from: its weights, vocabulary and "
            "search. Wants a low --learning-rate."
        ),
    ] = None,
    preset: Annotated[
        Literal["tiny", "base", "big"], of_model(help="Size of the model.")
    ] = "tiny",
    num_layers: Annotated[
        int | None,
        of_model(help="Layers on each side; the preset's by default."),
    ] = None,
    num_decoder_layers: Annotated[
        int | None,
        of_model(
            help="Decoder layers, where they are another number: few decode "
            "faster."
        ),
    ] = None,
    num_heads: Annotated[
        int | None, of_model(help="Attention heads; the preset's.")
    ] = None,
    hidden_dim: Annotated[
        int | None, of_model(help="Width of the model; the preset's.")
    ] = None,
    intermediate_dim: Annotated[
        int | None,
        of_model(help="Width of the feed-forward layers; the preset's."),
    ] = None,
    activation: Annotated[
        str | None,
        of_model(
            help="Keras activation of the feed-forward layers, such as gelu; "
            "by default relu."
        ),
    ] = None,
    vocabulary_size: Annotated[
        int,
        of_vocabulary(help="Pieces of the vocabulary that both sides share."),
    ] = 8000,
    model_type: Annotated[
        Literal["unigram", "bpe"], of_vocabulary(help="Kind of vocabulary.")
    ] = "unigram",
    character_coverage: Annotated[
        float | None,
        of_vocabulary(
            help="Share of the text's characters to have pieces for, such as "
            "0.9995 for Chinese or Japanese; by default all."
        ),
    ] = None,
    byte_fallback: Annotated[
        bool,
        of_vocabulary(
            "--byte-fallback",
            help="Spell characters without a piece in bytes, 256 pieces.",
        ),
    ] = False,
    split_digits: Annotated[
        bool,
        of_vocabulary("--split-digits", help="Make each digit a piece."),
    ] = False,
    symbols: Annotated[
        str | None,
        of_vocabulary(
            help="Pieces that are never split, such as names of languages: "
            '"<2de>,<2fr>".'
        ),
    ] = None,
    separate_vocabularies: Annotated[
        bool,
        of_vocabulary(
            "--separate-vocabularies",
            help="Learn one of each side instead, for languages that share "
            "few letters.",
        ),
    ] = False,
    tokenizer: Annotated[
        Path | None,
        of_vocabulary(
            help="SentencePiece model to take rather than learn one; of the "
            "source, with the next."
        ),
    ] = None,
    target_tokenizer: Annotated[
        Path | None, of_vocabulary(help="That of the target.")
    ] = None,
    epochs: Annotated[
        int,
        of_learning(
            help="Passes over the text, or what --updates-per-epoch makes one."
        ),
    ] = 20,
    updates: Annotated[
        int | None,
        of_learning(
            help="Train until there were so many updates, and the epoch has "
            "ended, in place of --epochs."
        ),
    ] = None,
    updates_per_epoch: Annotated[
        int | None,
        of_learning(
            help="Updates after which an epoch ends, to validate and save "
            "large text more often, or small text less; by default one pass."
        ),
    ] = None,
    tokens_per_batch: Annotated[
        int, of_learning(help="Tokens of a batch on each side, with padding.")
    ] = 4096,
    max_length: Annotated[
        int, of_learning(help="Longest sentence to keep, in tokens.")
    ] = 256,
    optimizer: Annotated[
        Literal["adam", "muon"],
        of_learning(
            help="Section 5.3's, or Muon, which learns from fewer updates: "
            "matrices with a weight decay of 0.1, the rest at half the rate."
        ),
    ] = "adam",
    learning_rate: Annotated[
        float | None,
        of_learning(help="Peak learning rate; by default equation 3's."),
    ] = None,
    warmup_steps: Annotated[
        int, of_learning(help="Updates until the peak.")
    ] = 4000,
    decay: Annotated[
        Literal["cosine"] | None,
        of_learning(
            help="Let the learning rate fall to 0 with the last epoch, along a "
            "cosine; by default it falls by equation 3."
        ),
    ] = None,
    dropout: Annotated[
        float | None,
        of_model(
            help="Share of each sublayer's output to drop; by default that of "
            "the preset or of --start-from."
        ),
    ] = None,
    attention_dropout: Annotated[
        float | None,
        of_model(
            help="Share of attention weights to drop; by default none, or that "
            "of --start-from."
        ),
    ] = None,
    normalize_first: Annotated[
        bool,
        of_model(
            "--normalize-first",
            help="Normalise before each sublayer: learns faster.",
        ),
    ] = False,
    label_smoothing: Annotated[
        float,
        of_learning(help="Share of each label to spread over all tokens."),
    ] = 0.1,
    clip_norm: Annotated[
        float, of_learning(help="Largest norm of the gradients; 0: no limit.")
    ] = 0.0,
    accumulate: Annotated[
        int,
        of_learning(
            help="Batches of one update, which count the same, however many "
            "tokens each has."
        ),
    ] = 1,
    average_last: Annotated[
        int,
        of_learning(
            help="Validate and save the mean of the weights of the last so "
            "many epochs; 0 for none."
        ),
    ] = 0,
    average_decay: Annotated[
        float,
        of_learning(
            help="The same, but an exponential moving average with this "
            "decay, such as 0.999; 0 for none."
        ),
    ] = 0.0,
    average_every: Annotated[
        int,
        of_learning(
            help="Updates between two weights of the mean; by default an "
            "epoch with --average-last, 1 with --average-decay."
        ),
    ] = 0,
    bleu: Annotated[
        bool,
        of_validation(
            "--bleu", help="Translate and score the validation text."
        ),
    ] = False,
    tokenize: Annotated[
        str | None,
        of_validation(
            help="How sacreBLEU splits text for --bleu, such as zh or "
            "ja-mecab; by default 13a."
        ),
    ] = None,
    monitor: Annotated[
        Literal["val_loss", "val_perplexity", "val_bleu"],
        of_validation(
            help="What --patience and --keep-best go by. In val_loss Keras "
            "weighs each batch by its rows; in val_perplexity all tokens "
            "count the same."
        ),
    ] = "val_loss",
    patience: Annotated[
        int,
        of_validation(
            help="Stop after so many epochs without a better --monitor; 0: "
            "never."
        ),
    ] = 0,
    keep_best: Annotated[
        bool,
        of_validation("--keep-best", help="Keep the best epoch, not the last."),
    ] = False,
    save_every: Annotated[
        int,
        of_run(
            help="Updates between checkpoints within an epoch; 0: one at its "
            "end."
        ),
    ] = 0,
    dtype: Annotated[
        DtypePolicy, of_run(help="Keras dtype policy.")
    ] = "float32",
    seed: Annotated[
        int,
        of_run(
            help="The same seed gives the same first weights, order and "
            "dropout."
        ),
    ] = 1,
    deterministic: Annotated[
        bool,
        of_run(
            "--deterministic",
            help="Equal bit by bit when repeated on the same machine; slower.",
        ),
    ] = False,
    distribute: Annotated[
        Literal["mirrored", "multihost"] | None,
        of_run(
            help="All devices of this machine, with TensorFlow; or of several "
            "processes or machines, with KERAS_BACKEND=jax, each started with "
            "this command."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Fail where there is no training to go on with.",
        ),
    ] = False,
    overwrite: Overwrite = False,
):
    """Train a translator from two text files.

    Each epoch ends with the validation loss, a sample translation, and a
    checkpoint. When training was stopped or killed, the same command, without
    --overwrite, goes on from the last checkpoint, and comes to what it would
    have come to. More epochs, or updates, go on with a training that has
    ended, but not with --decay.

    The folder holds the translator and, in "training", the settings, the
    command lines, checkpoints, log.csv, curves.png and a log for TensorBoard.

    \b
    Example:
      keras-transformer train train.en train.de -o runs/en-de \\
        --validation val.en val.de --epochs 20
      keras-transformer train train.en train.de -o runs/best \\
        --validation val.en val.de --epochs 100 --average-last 5 \\
        --monitor val_bleu --patience 5 --keep-best
      keras-transformer train law.en law.de -o runs/law \\
        --start-from runs/en-de --learning-rate 1e-4 --warmup-steps 100
    """  # noqa: D301
    if distribute == "multihost":
        watcher = start_watcher()
    with quiet_start():
        from keras_transformer.training_run import TrainingRun
        from keras_transformer.training_run.callbacks import Stopped
        from keras_transformer.training_run.options import OF_A_START
        from keras_transformer.training_run.options import OF_LEARNING
        from keras_transformer.training_run.options import TrainingOptions

    options = {
        field.name: context.params[field.name]
        for field in dataclasses.fields(TrainingOptions)
    }
    for name, value in options.items():
        if isinstance(value, Path):
            options[name] = os.fspath(value)  # as settings.json can hold it
    # No default says anew what another option says already.
    said_already = ["epochs"] if updates is not None else []
    if start_from:
        said_already += OF_A_START
    elif tokenizer:
        said_already += OF_LEARNING
    for name in said_already:
        if context.get_parameter_source(name).name != "COMMANDLINE":
            options[name] = None
    run = TrainingRun(**options)
    command = f"keras-transformer {shlex.join(sys.argv[1:])}"

    def say_stopped():
        arguments = sys.argv[1:]
        if run.history is not None:  # the old training is replaced already
            arguments = [a for a in arguments if a != "--overwrite"]
        print(
            f"\nStopped. {run.state()} Go on with:\n"
            f"  keras-transformer {shlex.join(arguments)}",
            file=sys.stderr,
        )

    try:
        run.train(
            source,
            target,
            validation,
            command=command,
            resume=resume,
            overwrite=overwrite,
        )
    except Stopped as stop:
        say_stopped()
        raise typer.Exit(128 + stop.number) from None
    except (Exception, KeyboardInterrupt) as error:
        is_interrupt = isinstance(error, KeyboardInterrupt)
        # `main` reports errors; but then jax would wait for the other
        # processes. Python calls first what is registered last.
        if run.distribution.num_processes > 1:
            atexit.register(end_at_once, watcher, 130 if is_interrupt else 2)
        if is_interrupt or isinstance(error, BrokenPipeError):  # of `| head`
            say_stopped()
        if is_interrupt:
            raise typer.Exit(130) from None
        raise
    if not run.distribution.is_chief:
        return  # the first process has the folder
    print(
        f"{run.state()} Try it with:\n"
        f"  keras-transformer translate {shlex.quote(str(output))} "
        "'A sentence.'",
        file=sys.stderr,
    )

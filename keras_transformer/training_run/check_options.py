"""Checks the options of a training, each by itself and together."""

import os
import typing

import keras

from keras_transformer.bleu import bleu_metric
from keras_transformer.checks import check_choice
from keras_transformer.checks import check_not_negative
from keras_transformer.checks import check_not_negative_number
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_positive_number
from keras_transformer.checks import check_share
from keras_transformer.decoder import Decoder
from keras_transformer.text.dataset import check_segmentations
from keras_transformer.training_run.distribution import check_distribution
from keras_transformer.training_run.options import OF_A_START
from keras_transformer.training_run.options import OF_A_VOCABULARY
from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.training_run.start import model_options


def check_options(options: TrainingOptions, has_validation: bool):
    """Raises for options that are not allowed.

    Args:
        options: The options of a training.
        has_validation: Whether there is validation text.

    Raises:
        OSError: If what `tokenize` needs cannot be downloaded.
        RuntimeError: If what `tokenize` needs is not installed.
        TypeError: If an option is of the wrong kind.
        ValueError: If an option is out of range, or does not go with another.
    """
    backend = keras.backend.backend()
    if backend not in ("tensorflow", "jax"):
        raise ValueError(
            "Training needs Keras on TensorFlow or JAX. Received: "
            f"KERAS_BACKEND={backend}."
        )
    if options.deterministic and backend != "tensorflow":
        raise ValueError(
            "`deterministic` needs the TensorFlow backend. Received: "
            f"deterministic=True with {backend}."
        )
    _check_choices(options)
    check_distribution(options.distribute)
    _check_numbers(options)
    _check_average(options)
    _check_start(options)
    _check_tokenizers(options)
    _check_validation(options, has_validation)


def _check_choices(options):
    """Checks the options whose declarations list all choices."""
    for name, hint in typing.get_type_hints(TrainingOptions).items():
        kinds = [hint, *typing.get_args(hint)]  # also inside `... | None`
        for kind in kinds:
            if typing.get_origin(kind) is typing.Literal:
                choices = typing.get_args(kind)
                if type(None) in kinds:
                    choices = (None, *choices)
                check_choice(choices, **{name: getattr(options, name)})


def _check_numbers(options):
    if options.epochs is not None and options.updates is not None:
        raise ValueError(
            "Give `epochs` or `updates`, not both. Received: "
            f"epochs={options.epochs}, updates={options.updates}."
        )
    lengths = {
        "epochs": options.epochs,
        "updates": options.updates,
        "updates_per_epoch": options.updates_per_epoch,
    }
    check_positive(
        **{name: x for name, x in lengths.items() if x is not None},
        accumulate=options.accumulate,
        warmup_steps=options.warmup_steps,
        tokens_per_batch=options.tokens_per_batch,
        max_length=options.max_length,
    )
    check_not_negative(
        average_last=options.average_last,
        average_every=options.average_every,
        patience=options.patience,
        save_every=options.save_every,
        seed=options.seed,
    )
    if options.seed >= 2**32:
        raise ValueError(
            f"`seed` must be less than 2^32. Received: seed={options.seed}."
        )
    check_share(
        average_decay=options.average_decay,
        dropout=options.dropout or 0.0,
        label_smoothing=options.label_smoothing,
        attention_dropout=options.attention_dropout or 0.0,
    )
    if options.segmentations != 1:
        check_segmentations(options.segmentations, options.segmentation_alpha)
    elif options.segmentation_alpha is not None:
        raise ValueError(
            "`segmentation_alpha` needs `segmentations`, of more than one. "
            f"Received: segmentation_alpha={options.segmentation_alpha}."
        )
    if options.learning_rate is not None:
        check_positive_number(learning_rate=options.learning_rate)
    check_not_negative_number(clip_norm=options.clip_norm)


def _check_average(options):
    has_average = options.average_last or options.average_decay
    if options.average_last and options.average_decay:
        raise ValueError(
            "Give `average_last` or `average_decay`, not both. Received: "
            f"average_last={options.average_last}, "
            f"average_decay={options.average_decay}."
        )
    if options.average_every and not has_average:
        raise ValueError(
            "`average_every` needs `average_last` or `average_decay`. "
            f"Received: average_every={options.average_every}."
        )


def _check_start(options):
    if not options.start_from:
        # Without dropout: TensorFlow would compute its seeds, and from then on
        # refuse another number of threads.
        model = {**model_options(options), "dropout": 0.0}
        number = model.pop("num_decoder_layers", 1)
        Decoder(**model)  # not built: raises before text is read
        check_positive(num_decoder_layers=number)
        return
    _check_left_out(
        options,
        OF_A_START,
        "start_from",
        "whose model and vocabulary are used",
    )
    if os.path.realpath(options.start_from) == os.path.realpath(options.output):
        raise ValueError(
            "`start_from` must be another folder than `output`. Received: "
            f"{options.start_from} for both."
        )


def _check_tokenizers(options):
    if options.segmentations > 1 and options.model_type == "bpe":
        raise ValueError(
            "`segmentations` must be 1 with `model_type` bpe, whose pieces are "
            f"not drawn. Received: segmentations={options.segmentations}."
        )
    if options.tokenizer:
        _check_left_out(
            options, OF_A_VOCABULARY, "tokenizer", "which is not learned"
        )
    elif options.target_tokenizer:
        raise ValueError(
            "`target_tokenizer` needs `tokenizer`, the one of the source. "
            f"Received: target_tokenizer={options.target_tokenizer}."
        )
    size = options.target_vocabulary_size
    if size is not None:
        check_positive(target_vocabulary_size=size)
        if not options.separate_vocabularies:
            raise ValueError(
                "`target_vocabulary_size` needs `separate_vocabularies`. "
                f"Received: target_vocabulary_size={size}, and one vocabulary "
                "for both sides."
            )


def _check_left_out(options, names, other, reason):
    for name in names:
        value = getattr(options, name)
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out with `{other}`, {reason}. "
                f"Received: {name}={value}, {other}="
                f"{getattr(options, other)}."
            )


def _check_validation(options, has_validation):
    goes_by = options.patience or options.keep_best
    if options.monitor != "val_loss" and not goes_by:
        raise ValueError(
            "`monitor` needs `patience` or `keep_best`, which use it. "
            f"Received: monitor={options.monitor}, and neither."
        )
    if options.tokenize is not None:
        bleu_metric(lowercase=False, tokenize=options.tokenize)
        if not options.scores_bleu():
            raise ValueError(
                "`tokenize` needs `bleu`, whose score it changes. "
                f"Received: tokenize={options.tokenize}, bleu=False."
            )
    for name in ("bleu", "patience", "keep_best"):
        value = getattr(options, name)
        if value and not has_validation:
            raise ValueError(
                f"`{name}` needs `validation`. Received: {name}={value}, "
                "and no validation text."
            )

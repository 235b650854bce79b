"""What a training is told, and what cannot be told together."""

import dataclasses
import os

import keras

from keras_transformer.checks import check_choice
from keras_transformer.checks import check_not_negative
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_positive_number
from keras_transformer.checks import check_share
from keras_transformer.decoder import Decoder
from keras_transformer.text.bleu import bleu_metric
from keras_transformer.text.dataset import check_budget
from keras_transformer.training_run.distribution import check_distribution
from keras_transformer.transformer import PRESETS

# What may change when a training goes on. No update depends on these, but that
# `distribute` draws another dropout, and rounds otherwise.
MAY_CHANGE = (
    "output",
    "epochs",
    "updates",
    "bleu",
    "patience",
    "save_every",
    "distribute",
)
# Files and folders, of which each has many names.
PLACES = ("start_from", "tokenizer", "target_tokenizer")
# What says how to learn a vocabulary.
OF_LEARNING = (
    "vocabulary_size",
    "model_type",
    "character_coverage",
    "byte_fallback",
    "split_digits",
    "symbols",
    "separate_vocabularies",
)
# What says how large a model is, where it is not the preset's.
SIZES = (
    "num_layers",
    "num_decoder_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "activation",
)
# What a translator to start from has already.
OF_A_START = (
    "preset",
    "normalize_first",
    *SIZES,
    *OF_LEARNING,
    "tokenizer",
    "target_tokenizer",
)


@dataclasses.dataclass
class TrainingOptions:
    """The options of `keras-transformer train`, whose help says what they do.

    `None` where another says it: `preset` what a model is, `updates` when
    training ends, `tokenizer` what a vocabulary is, and `start_from` all of
    model and vocabularies; or where the help names a default.
    """

    output: str
    epochs: int | None
    preset: str | None
    vocabulary_size: int | None
    model_type: str | None
    tokens_per_batch: int
    max_length: int
    learning_rate: float | None
    warmup_steps: int
    dropout: float | None
    normalize_first: bool | None
    label_smoothing: float
    clip_norm: float
    accumulate: int
    average_last: int
    average_decay: float
    average_every: int
    bleu: bool
    monitor: str
    patience: int
    keep_best: bool
    save_every: int
    dtype: str
    seed: int
    deterministic: bool
    distribute: str | None = None
    decay: str | None = None
    character_coverage: float | None = None
    separate_vocabularies: bool | None = None
    tokenizer: str | None = None
    target_tokenizer: str | None = None
    start_from: str | None = None
    optimizer: str = "adam"
    num_layers: int | None = None
    num_decoder_layers: int | None = None
    num_heads: int | None = None
    hidden_dim: int | None = None
    intermediate_dim: int | None = None
    activation: str | None = None
    attention_dropout: float | None = None
    byte_fallback: bool | None = None
    split_digits: bool | None = None
    symbols: str | None = None
    tokenize: str | None = None
    updates: int | None = None
    updates_per_epoch: int | None = None

    def settings(self) -> dict:
        """What a training that goes on must have in common with its start."""
        # The first that differs is named; others follow from these two.
        settings = {
            "start_from": None,
            "keep_best": False,
            **dataclasses.asdict(self),
        }
        may_change = {*MAY_CHANGE}
        if self.decay:
            may_change.difference_update(("epochs", "updates"))
        if not self.keep_best:
            may_change.update(("monitor", "tokenize"))
        return {
            name: value
            for name, value in settings.items()
            if name not in may_change
        }

    def scores_bleu(self) -> bool:
        """Whether translations of the validation text are scored."""
        needed = self.patience or self.keep_best
        return self.bleu or bool(self.monitor == "val_bleu" and needed)

    def model_options(self) -> dict:
        """The arguments of a new model, but for the vocabularies."""
        chosen = {name: getattr(self, name) for name in SIZES}
        return {
            **PRESETS[self.preset],
            "normalize_first": self.normalize_first,
            **{name: x for name, x in chosen.items() if x is not None},
        }

    def check(self, validation):
        """Raises `TypeError` or `ValueError` for what is out of range.

        Args:
            validation: Whether there is validation text.
        """
        backend = keras.backend.backend()
        if backend not in ("tensorflow", "jax"):
            raise ValueError(
                "Training needs Keras on TensorFlow or JAX. Received: "
                f"KERAS_BACKEND={backend}."
            )
        if (self.epochs is None) == (self.updates is None):
            raise ValueError(
                "Exactly one of `epochs` and `updates` must be given. "
                f"Received: epochs={self.epochs}, updates={self.updates}."
            )
        lengths = {
            "epochs": self.epochs,
            "updates": self.updates,
            "updates_per_epoch": self.updates_per_epoch,
        }
        check_positive(
            **{name: x for name, x in lengths.items() if x is not None},
            accumulate=self.accumulate,
            warmup_steps=self.warmup_steps,
        )
        check_not_negative(
            average_last=self.average_last,
            average_every=self.average_every,
            patience=self.patience,
            save_every=self.save_every,
            seed=self.seed,
        )
        check_share(
            average_decay=self.average_decay,
            dropout=self.dropout or 0.0,
            attention_dropout=self.attention_dropout or 0.0,
        )
        if self.seed >= 2**32:
            raise ValueError(
                f"`seed` must be less than 2^32. Received: seed={self.seed}."
            )
        check_budget(self.tokens_per_batch, self.max_length)
        if self.average_last and self.average_decay:
            raise ValueError(
                "Give `average_last` or `average_decay`, not both. Received: "
                f"average_last={self.average_last}, "
                f"average_decay={self.average_decay}."
            )
        if self.average_every and not (self.average_last or self.average_decay):
            raise ValueError(
                "`average_every` needs `average_last` or `average_decay`. "
                f"Received: average_every={self.average_every}."
            )
        check_choice(
            ("val_loss", "val_perplexity", "val_bleu"), monitor=self.monitor
        )
        check_choice((None, "cosine"), decay=self.decay)
        check_choice(("adam", "muon"), optimizer=self.optimizer)
        goes_by = self.patience or self.keep_best
        if self.monitor != "val_loss" and not goes_by:
            raise ValueError(
                "`monitor` needs `patience` or `keep_best`, which go by it. "
                f"Received: monitor={self.monitor}, and neither."
            )
        if self.tokenize is not None:
            bleu_metric(lowercase=False, tokenize=self.tokenize)
            if not self.scores_bleu():
                raise ValueError(
                    "`tokenize` needs `bleu`, whose score it changes. "
                    f"Received: tokenize={self.tokenize}, bleu=False."
                )
        if self.learning_rate is not None:
            check_positive_number(learning_rate=self.learning_rate)
        if self.clip_norm:
            check_positive_number(clip_norm=self.clip_norm)
        self._check_start()
        self._check_tokenizers()
        for name in ("bleu", "patience", "keep_best"):
            value = getattr(self, name)
            if value and not validation:
                raise ValueError(
                    f"`{name}` needs `validation`. Received: {name}={value}, "
                    "and no validation text."
                )
        if self.deterministic and backend != "tensorflow":
            raise ValueError(
                "`deterministic` needs the TensorFlow backend. Received: "
                f"deterministic=True with {backend}."
            )
        check_distribution(self.distribute)

    def _check_start(self):
        if not self.start_from:
            check_choice(tuple(PRESETS), preset=self.preset)
            # TensorFlow would begin to compute, for the seeds of dropout, and
            # take no other number of threads.
            options = {**self.model_options(), "dropout": 0.0}
            number = options.pop("num_decoder_layers", 1)
            Decoder(**options)  # not built: raises before text is read
            check_positive(num_decoder_layers=number)
            return
        self._check_left_out(
            OF_A_START, "start_from", "whose model and vocabulary training has"
        )
        if os.path.realpath(self.start_from) == os.path.realpath(self.output):
            raise ValueError(
                "`start_from` must be another folder than `output`. Received: "
                f"{self.start_from} for both."
            )

    def _check_tokenizers(self):
        if self.tokenizer:
            self._check_left_out(
                OF_LEARNING, "tokenizer", "which is not learned"
            )
        elif self.target_tokenizer:
            raise ValueError(
                "`target_tokenizer` needs `tokenizer`, that of the source. "
                f"Received: target_tokenizer={self.target_tokenizer}."
            )

    def _check_left_out(self, names, other, reason):
        for name in names:
            value = getattr(self, name)
            if value is not None:
                raise ValueError(
                    f"`{name}` must be left out with `{other}`, {reason}. "
                    f"Received: {name}={value}, {other}="
                    f"{getattr(self, other)}."
                )

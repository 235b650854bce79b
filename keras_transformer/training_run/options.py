"""The options of a training.

Nothing here imports Keras: the command has the same options, and its `--help`
must answer at once.
"""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Annotated
from typing import Literal

import typer

DtypePolicy = Literal["float32", "mixed_bfloat16", "mixed_float16"]

# Options grouped under headings of `--help`.
of_model = functools.partial(typer.Option, rich_help_panel="Model")
of_vocabulary = functools.partial(typer.Option, rich_help_panel="Vocabulary")
of_learning = functools.partial(typer.Option, rich_help_panel="Learning")
of_validation = functools.partial(typer.Option, rich_help_panel="Validation")
of_run = functools.partial(typer.Option, rich_help_panel="How it runs")

# Options for learning a vocabulary.
VocabularySize = Annotated[
    int | None,
    of_vocabulary(
        help="Pieces in the vocabulary, or in each of two; 8000 by default."
    ),
]
ModelType = Annotated[
    Literal["unigram", "bpe"] | None,
    of_vocabulary(help="Kind of vocabulary; unigram by default."),
]
CharacterCoverage = Annotated[
    float | None,
    of_vocabulary(
        help="Share of the text's characters that have pieces, such as "
        "0.9995 for Chinese or Japanese; by default all."
    ),
]
ByteFallback = Annotated[
    bool | None,
    of_vocabulary(
        "--byte-fallback",
        help="Spell characters without a piece in bytes, which take 256 "
        "pieces.",
    ),
]
SplitDigits = Annotated[
    bool | None,
    of_vocabulary("--split-digits", help="Make each digit a piece."),
]
Symbols = Annotated[
    str | None,
    of_vocabulary(
        help="Pieces that are never split, such as names of languages, "
        'separated by commas: "<2de>,<2fr>".'
    ),
]
Normalization = Annotated[
    Literal["nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"] | None,
    of_vocabulary(
        help="SentencePiece's rule for how text is changed before it is split, "
        "which no translation undoes; nmt_nfkc by default. identity keeps "
        "full-width signs and zero-width characters, as Chinese, Japanese, "
        "Thai, Persian or Khmer may need; those with _cf make lower case."
    ),
]

# Defaults of options that are not given and that no other option determines.
DEFAULTS = {
    "preset": "tiny",
    "normalize_first": False,
    "vocabulary_size": 8000,
    "model_type": "unigram",
    "normalization": "nmt_nfkc",
    "byte_fallback": False,
    "split_digits": False,
    "separate_vocabularies": False,
    "epochs": 20,
}

DEFAULT_TOKENIZE = "13a"

# Options that may change when a training goes on. No update depends on them,
# except that `distribute` changes the random numbers of dropout, and rounding,
# and `rematerialize` rounding alone.
MAY_CHANGE = (
    "output",
    "epochs",
    "updates",
    "bleu",
    "patience",
    "save_every",
    "distribute",
    "rematerialize",
)
# Options that are paths, which may be spelled in several ways.
PLACES = ("start_from", "tokenizer", "target_tokenizer")
# Options for learning a vocabulary.
OF_A_VOCABULARY = (
    "vocabulary_size",
    "model_type",
    "character_coverage",
    "byte_fallback",
    "split_digits",
    "symbols",
    "normalization",
    "separate_vocabularies",
    "target_vocabulary_size",
)
# Options that override the preset's.
SIZES = (
    "num_layers",
    "num_decoder_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "activation",
)
# Options that a translator to start from determines.
OF_A_START = (
    "preset",
    "normalize_first",
    *SIZES,
    *OF_A_VOCABULARY,
    "tokenizer",
    "target_tokenizer",
)


def vocabulary_arguments(symbols: str | None, **options) -> dict:
    """The arguments of `Tokenizer.train` that options of a vocabulary mean.

    Args:
        symbols: As it is typed, or `None`.
        **options: The others, `None` for the default.
    """
    chosen = {name: x for name, x in options.items() if x is not None}
    if symbols:
        chosen["symbols"] = [x.strip() for x in symbols.split(",")]
    return chosen


@dataclasses.dataclass
class TrainingOptions:
    """The options of `keras-transformer train`, with their help texts.

    An option is `None` where another one determines it: `updates` the end of
    training, `tokenizer` the vocabulary, `start_from` the model and the
    vocabularies; or where its help states what happens by default.
    """

    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="<path>", help="Folder of the translator."
        ),
    ]
    start_from: Annotated[
        str | None,
        typer.Option(
            metavar="<path>",
            help="Translator to fine-tune: its weights, vocabulary and "
            "search. Use a low --learning-rate.",
        ),
    ] = None
    preset: Annotated[
        Literal["tiny", "base", "big"] | None,
        of_model(help="Size of the model; tiny by default."),
    ] = None
    num_layers: Annotated[
        int | None,
        of_model(help="Encoder and decoder layers; the preset's by default."),
    ] = None
    num_decoder_layers: Annotated[
        int | None,
        of_model(
            help="Decoder layers, if their number differs: fewer decode faster."
        ),
    ] = None
    num_heads: Annotated[
        int | None, of_model(help="Attention heads; the preset's by default.")
    ] = None
    hidden_dim: Annotated[
        int | None,
        of_model(help="Width of the model; the preset's by default."),
    ] = None
    intermediate_dim: Annotated[
        int | None,
        of_model(
            help="Width of the feed-forward layers; the preset's by default."
        ),
    ] = None
    activation: Annotated[
        str | None,
        of_model(
            help="Keras activation of the feed-forward layers, such as gelu; "
            "by default relu."
        ),
    ] = None
    vocabulary_size: VocabularySize = None
    model_type: ModelType = None
    character_coverage: CharacterCoverage = None
    byte_fallback: ByteFallback = None
    split_digits: SplitDigits = None
    symbols: Symbols = None
    normalization: Normalization = None
    separate_vocabularies: Annotated[
        bool | None,
        of_vocabulary(
            "--separate-vocabularies",
            help="Learn one vocabulary per side instead, for languages that "
            "share few letters.",
        ),
    ] = None
    target_vocabulary_size: Annotated[
        int | None,
        of_vocabulary(
            help="Pieces of the target's vocabulary with "
            "--separate-vocabularies; as many as the source's by default."
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        of_vocabulary(
            metavar="<path>",
            help="SentencePiece model to use instead of learning one; for the "
            "source alone if --target-tokenizer is given.",
        ),
    ] = None
    target_tokenizer: Annotated[
        str | None,
        of_vocabulary(
            metavar="<path>", help="SentencePiece model for the target."
        ),
    ] = None
    epochs: Annotated[
        int | None,
        of_learning(
            help="Passes over the text, or units of --updates-per-epoch; 20 by "
            "default.",
        ),
    ] = None
    updates: Annotated[
        int | None,
        of_learning(
            help="Train for this many updates, rounded up to whole epochs, "
            "instead of --epochs."
        ),
    ] = None
    updates_per_epoch: Annotated[
        int | None,
        of_learning(
            help="Updates per epoch, to validate and save more often than once "
            "per pass over a large text, or less often with a small one."
        ),
    ] = None
    tokens_per_batch: Annotated[
        int,
        of_learning(help="Tokens per batch on each side, padding included."),
    ] = 4096
    max_length: Annotated[
        int,
        of_learning(
            help="Longest sentence to keep, in tokens with the end token."
        ),
    ] = 256
    segmentations: Annotated[
        int,
        of_learning(
            help="Ways in which each sentence is split into pieces, of which "
            "each epoch draws one: regularization for small data, with a "
            "unigram vocabulary."
        ),
    ] = 1
    segmentation_alpha: Annotated[
        float | None,
        of_learning(
            help="How freely --segmentations are drawn, the lower the more: "
            "by their probability to this power; 0.1 by default."
        ),
    ] = None
    optimizer: Annotated[
        Literal["adam", "muon"],
        of_learning(
            help="Adam as in section 5.3, or Muon, which needs fewer updates: "
            "weight decay 0.1 for matrices, half the rate for the rest."
        ),
    ] = "adam"
    learning_rate: Annotated[
        float | None,
        of_learning(help="Peak learning rate; by default that of equation 3."),
    ] = None
    warmup_steps: Annotated[
        int, of_learning(help="Updates until the learning rate peaks.")
    ] = 4000
    decay: Annotated[
        Literal["cosine"] | None,
        of_learning(
            help="Let the learning rate fall to 0 by the last epoch along a "
            "cosine; by default it falls as in equation 3."
        ),
    ] = None
    dropout: Annotated[
        float | None,
        of_model(
            help="Share of each sublayer's output to drop; by default that of "
            "the preset or of --start-from."
        ),
    ] = None
    attention_dropout: Annotated[
        float | None,
        of_model(
            help="Share of attention weights to drop; by default none, or that "
            "of --start-from."
        ),
    ] = None
    normalize_first: Annotated[
        bool | None,
        of_model(
            "--normalize-first",
            help="Normalise before each sublayer: learns faster.",
        ),
    ] = None
    label_smoothing: Annotated[
        float,
        of_learning(help="Share of each label that is spread over all tokens."),
    ] = 0.1
    clip_norm: Annotated[
        float,
        of_learning(help="Largest norm of the gradients; 0 for no limit."),
    ] = 0.0
    accumulate: Annotated[
        int,
        of_learning(
            help="Batches per update; each counts the same, however many "
            "tokens it has."
        ),
    ] = 1
    average_last: Annotated[
        int,
        of_learning(
            help="Validate and save the mean of this many last samples of the "
            "weights, by default one per epoch; 0 for none."
        ),
    ] = 0
    average_decay: Annotated[
        float,
        of_learning(
            help="Validate and save an exponential moving average of the "
            "weights with this decay, such as 0.999; 0 for none."
        ),
    ] = 0.0
    average_every: Annotated[
        int,
        of_learning(
            help="Updates between samples of the average; by default an epoch "
            "with --average-last, 1 with --average-decay."
        ),
    ] = 0
    bleu: Annotated[
        bool,
        of_validation(
            "--bleu", help="Translate and score the validation text."
        ),
    ] = False
    tokenize: Annotated[
        str | None,
        of_validation(
            help="How sacreBLEU splits text for --bleu, such as zh or "
            f"ja-mecab; by default {DEFAULT_TOKENIZE}."
        ),
    ] = None
    monitor: Annotated[
        Literal["val_loss", "val_perplexity", "val_bleu"],
        of_validation(
            help="Value that --patience and --keep-best go by. In val_loss, "
            "Keras weights each batch by its rows; in val_perplexity, all "
            "tokens count the same."
        ),
    ] = "val_loss"
    patience: Annotated[
        int,
        of_validation(
            help="Stop after this many epochs without a better --monitor; 0 "
            "for never."
        ),
    ] = 0
    keep_best: Annotated[
        bool,
        of_validation("--keep-best", help="Keep the best epoch, not the last."),
    ] = False
    save_every: Annotated[
        int,
        of_run(
            help="Updates between checkpoints within an epoch; 0 for only one "
            "at its end."
        ),
    ] = 0
    dtype: Annotated[DtypePolicy, of_run(help="Keras dtype policy.")] = (
        "float32"
    )
    rematerialize: Annotated[
        bool,
        of_run(
            "--rematerialize",
            help="Compute each layer again for its gradient instead of keeping "
            "what it computed: less memory, more time.",
        ),
    ] = False
    seed: Annotated[
        int,
        of_run(
            help="The same seed gives the same initial weights, order and "
            "segmentations of the text, and dropout."
        ),
    ] = 1
    deterministic: Annotated[
        bool,
        of_run(
            "--deterministic",
            help="Make repetitions on the same machine bit-identical; slower.",
        ),
    ] = False
    distribute: Annotated[
        Literal["mirrored", "multihost"] | None,
        of_run(
            help="mirrored: all devices of this machine, with TensorFlow. "
            "multihost: those of several processes or machines, each started "
            "with this command and KERAS_BACKEND=jax."
        ),
    ] = None

    def __post_init__(self):
        for name in ("output", *PLACES):
            path = getattr(self, name)
            if path is not None:
                if not os.fspath(path):
                    raise ValueError(
                        f"`{name}` must be a path. Received: {name}={path!r}."
                    )
                # Without the trailing slash that shell completion adds.
                setattr(self, name, os.fspath(Path(path)))
        if self.symbols:
            if not isinstance(self.symbols, str):
                raise TypeError(
                    "`symbols` must be a string, with commas between symbols. "
                    f"Received: symbols={self.symbols!r}."
                )
            self.symbols = ",".join(x.strip() for x in self.symbols.split(","))
        determined = [] if self.updates is None else ["epochs"]
        if self.start_from:
            determined += OF_A_START
        elif self.tokenizer:
            determined += OF_A_VOCABULARY
        if self.segmentations != 1 and self.segmentation_alpha is None:
            self.segmentation_alpha = 0.1
        for name in DEFAULTS.keys() - determined:
            if getattr(self, name) is None:
                setattr(self, name, DEFAULTS[name])

    def settings(self) -> dict:
        """The options that must be the same when a training goes on."""
        # An error names the first that differs; others follow from these.
        settings = {
            "start_from": None,
            "keep_best": False,
            "decay": None,
            **dataclasses.asdict(self),
            "tokenize": self.tokenize or DEFAULT_TOKENIZE,
        }
        may_change = {*MAY_CHANGE}
        if self.decay:
            may_change.difference_update(("epochs", "updates"))
        if not self.keep_best:
            may_change.add("monitor")
        if not self.scores_bleu():
            may_change.add("tokenize")
        return {
            name: value
            for name, value in settings.items()
            if name not in may_change
        }

    @property
    def more_is_better(self) -> bool:
        """Whether a higher `monitor` is better."""
        return self.monitor == "val_bleu"

    def scores_bleu(self) -> bool:
        """Whether translations of the validation text are scored."""
        needed = self.patience or self.keep_best
        return self.bleu or bool(self.monitor == "val_bleu" and needed)

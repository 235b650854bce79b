"""`keras-transformer vocabulary`."""

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

from keras_transformer.cli.command_io import check_output
from keras_transformer.cli.options import Overwrite
from keras_transformer.cli.options import path_argument
from keras_transformer.cli.options import path_option
from keras_transformer.cli.streams import quiet_start
from keras_transformer.system.atomic import write_file
from keras_transformer.system.paths import check_file
from keras_transformer.system.signals import signals_handled
from keras_transformer.training_run.options import ByteFallback
from keras_transformer.training_run.options import CharacterCoverage
from keras_transformer.training_run.options import ModelType
from keras_transformer.training_run.options import Normalization
from keras_transformer.training_run.options import SplitDigits
from keras_transformer.training_run.options import Symbols
from keras_transformer.training_run.options import VocabularySize
from keras_transformer.training_run.options import vocabulary_arguments


def vocabulary(
    texts: Annotated[
        list[Path],
        path_argument(
            help="Text files: of both sides for a vocabulary that they share."
        ),
    ],
    output: Annotated[
        Path, path_option("--output", "-o", help="File of the vocabulary.")
    ],
    vocabulary_size: VocabularySize = None,
    model_type: ModelType = None,
    character_coverage: CharacterCoverage = None,
    byte_fallback: ByteFallback = None,
    split_digits: SplitDigits = None,
    symbols: Symbols = None,
    normalization: Normalization = None,
    overwrite: Overwrite = False,
):
    """Learn a vocabulary, for several trainings or from other text.

    Writes a SentencePiece model, for train --tokenizer. Without that option,
    each training learns a vocabulary of its own text.

    \b
    Example:
      keras-transformer vocabulary train.en train.de -o joint.model \\
        --vocabulary-size 8000
      keras-transformer train train.en train.de --output runs/en-de \\
        --tokenizer joint.model
    """  # noqa: D301
    for path in texts:
        check_file(path)
    check_output("--output", output, overwrite, texts)
    with quiet_start():
        from keras_transformer.text.tokenizer import Tokenizer

    # SentencePiece would make Ctrl-C wait, and nothing is written yet.
    with signals_handled(signal.SIG_DFL, signal.SIGINT):
        tokenizer = Tokenizer.train(
            texts,
            **vocabulary_arguments(
                vocabulary_size=vocabulary_size,
                model_type=model_type,
                character_coverage=character_coverage,
                byte_fallback=byte_fallback,
                split_digits=split_digits,
                symbols=symbols,
                normalization=normalization,
            ),
        )
    write_file(output, tokenizer.model)
    print(
        f"Vocabulary of {tokenizer.vocabulary_size:,} pieces in {output}. "
        "Train with it:\n  keras-transformer train ... --tokenizer "
        f"{shlex.quote(str(output))}",
        file=sys.stderr,
    )

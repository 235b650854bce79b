"""`keras-transformer evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.command_io import check_lines
from keras_transformer.cli.command_io import check_output
from keras_transformer.cli.command_io import load_any
from keras_transformer.cli.command_io import output_lines
from keras_transformer.cli.command_io import refuse_of_the_other
from keras_transformer.cli.options import Dtype
from keras_transformer.cli.options import MaxLength
from keras_transformer.cli.options import MinLength
from keras_transformer.cli.options import NumThreads
from keras_transformer.cli.options import NumWorkers
from keras_transformer.cli.options import Overwrite
from keras_transformer.cli.options import TokensPerBatch
from keras_transformer.cli.options import TranslatorOrFile
from keras_transformer.cli.options import Truncate
from keras_transformer.cli.options import given
from keras_transformer.cli.options import path_argument
from keras_transformer.cli.options import path_option
from keras_transformer.system.atomic import write_file


def evaluate(
    folder: TranslatorOrFile,
    source: Annotated[Path, path_argument(help="Text to translate.")],
    target: Annotated[
        list[Path],
        path_argument(help="Reference translation, or several."),
    ],
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Ignore case.")
    ] = False,
    tokenize: Annotated[
        str,
        typer.Option(
            help="How sacreBLEU splits text: 13a, zh, ja-mecab, ko-mecab, "
            "intl, char, flores200, or none if it is split already."
        ),
    ] = "13a",
    output: Annotated[
        Path | None,
        path_option("--output", "-o", help="File for the translations."),
    ] = None,
    min_length: MinLength = None,
    max_length: MaxLength = None,
    truncate: Truncate = False,
    tokens_per_batch: TokensPerBatch = None,
    num_threads: NumThreads = None,
    num_workers: NumWorkers = None,
    dtype: Dtype = None,
    overwrite: Overwrite = False,
    *,
    search_options,
):
    """Translate a test set and score it with sacreBLEU.

    Prints BLEU, chrF, and the signature to quote with BLEU.

    \b
    Example:
      keras-transformer evaluate runs/en-de test.en test.de --search beam
      keras-transformer evaluate runs/en-zh test.en test.zh --tokenize zh \\
        --output test.out
      keras-transformer evaluate en-de-int8.tflite test.en test.de
      keras-transformer evaluate runs/zh-en test.zh test.en.0 test.en.1
    """  # noqa: D301
    workers = given(num_threads=num_threads, num_workers=num_workers)
    limits = given(min_length=min_length, max_length=max_length)
    of_folder = given(dtype=dtype) | limits | search_options
    refuse_of_the_other(folder, of_folder, workers)
    from keras_transformer.batches import first_of
    from keras_transformer.bleu import bleu_metric
    from keras_transformer.bleu import corpus_scores
    from keras_transformer.text.lines import read_pairs

    bleu_metric(lowercase, tokenize)  # raises now, not after minutes of work
    check_output("--output", output, overwrite, [folder, source, *target])
    sources, *references = read_pairs(source, *target)
    translator = load_any(
        folder, dtype, search_options, workers, num_texts=len(sources)
    )
    check_lines(sources, source, translator, truncate)
    batches = given(tokens_per_batch=tokens_per_batch)
    found = translator(
        sources, **limits, **batches, truncate=truncate, verbose=1
    )
    found = first_of(found)
    if output:
        write_file(output, "".join(output_lines(found)).encode())
    scores = corpus_scores(found, references, lowercase, tokenize)
    print(f"BLEU {scores.bleu:.2f}")
    print(f"chrF {scores.chrf:.2f}")
    print(scores.signature)

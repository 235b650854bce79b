"""BLEU during training."""

import math
import sys

import keras

from keras_transformer.batches import first_of
from keras_transformer.bleu import bleu_metric
from keras_transformer.bleu import corpus_scores
from keras_transformer.checks import check_as_many
from keras_transformer.checks import check_kind
from keras_transformer.checks import check_not_negative
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_texts
from keras_transformer.system.extras import not_installed
from keras_transformer.system.paths import check_folder_to_write
from keras_transformer.system.paths import check_local
from keras_transformer.system.paths import is_address
from keras_transformer.system.progress import print_sample
from keras_transformer.text.lines import check_line_lengths
from keras_transformer.translator import Translator
from keras_transformer.weights import check_finite_model


class BleuCallback(keras.callbacks.Callback):
    """Translates a validation set at the end of epochs and logs its BLEU.

    The score is `val_bleu` in the logs, so put this callback before those
    that read it, and after `WeightAveraging`, whose weights it then scores:

        callbacks=[
            kt.WeightAveraging(last=5),
            kt.BleuCallback(translator, sources, references),
            keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=3),
        ]

    Of weights that are not finite numbers there is no score either, and a line
    says so; whether `fit` ends then is for `keras.callbacks.TerminateOnNaN`.

    Args:
        translator: A `Translator` of the model that is trained, with the
            search to score.
        sources: A sequence of strings.
        references: Their translations, as many strings.
        every: Epochs between two scores. The logs of the epochs in between
            say negative infinity, which is never an improvement; a callback
            with `patience` counts them.
        samples: Number of translations to print, the same sentences each
            time.
        log_dir: Folder for TensorBoard, where the samples are text.
        lowercase: Whether case does not count.
        tokenize: sacreBLEU's tokenizer.

    Raises:
        ImportError: If `log_dir` is given and tensorflow is not installed.
        OSError: If nothing may be written in `log_dir`, or sacreBLEU cannot
            download what `tokenize` needs.
        RuntimeError: If a library that `tokenize` needs is not installed.
        TypeError: If `translator` is not a `Translator`, or a text is not a
            string.
        ValueError: If there are no sources, or not as many references; a number
            is out of range; or `fit` trains another model.

    Example:
    >>> import keras_transformer as kt
    >>> lines = ["the cat sees the dog", "the dog sees the cat"] * 10
    >>> tokenizer = kt.Tokenizer.train(lines, vocabulary_size=16, verbose=0)
    >>> model = kt.Transformer.from_preset("tiny", tokenizer.vocabulary_size)
    >>> translator = kt.Translator(model, tokenizer)
    >>> bleu = BleuCallback(translator, lines[:2], lines[:2])
    """

    def __init__(
        self,
        translator: Translator,
        sources,
        references,
        every: int = 1,
        samples: int = 0,
        log_dir=None,
        lowercase: bool = False,
        tokenize: str = "13a",
    ):
        super().__init__()
        check_kind("translator", translator, Translator)
        sources = check_texts("sources", sources)
        references = check_texts("references", references)
        check_as_many(sources=sources, references=references)
        if not sources:
            raise ValueError("`sources` must not be empty. Received: none.")
        bleu_metric(lowercase, tokenize)  # raises now, not after an epoch
        check_positive(every=every)
        check_not_negative(samples=samples)
        self.translator = translator
        self.sources = sources
        self.references = references
        self.every = every
        self.samples = samples
        self.log = None
        if log_dir is not None:
            if not is_address(log_dir):  # as TensorFlow writes to
                check_local(log_dir)
                check_folder_to_write(log_dir)
            self.log = _event_log(log_dir)
        self.lowercase = lowercase
        self.tokenize = tokenize

    def set_model(self, model):
        """Takes the model of the translator, and no other."""
        if model is not self.translator.model:
            raise ValueError(
                "`translator` must have the model that `fit` trains. Received: "
                "a translator with another model. Was it loaded? Make it with "
                "`Translator(model, tokenizer)`."
            )
        super().set_model(model)

    def on_train_begin(self, logs=None):
        check_line_lengths(self.sources, "`sources`", self.translator)

    def on_epoch_end(self, epoch, logs=None):
        logs = {} if logs is None else logs
        # Not NaN, to which Keras's callbacks compare all that come after it.
        logs["val_bleu"] = -math.inf
        if (epoch + 1) % self.every:
            return
        try:
            check_finite_model(self.model)
        except ValueError:
            print(
                f"Epoch {epoch + 1} has no BLEU: the weights are not finite "
                "numbers.",
                file=sys.stderr,
            )
            return
        translations = first_of(self.translator(self.sources))
        logs["val_bleu"] = corpus_scores(
            translations,
            self.references,
            lowercase=self.lowercase,
            tokenize=self.tokenize,
        ).bleu
        samples = [
            *zip(self.sources, self.references, translations, strict=True)
        ]
        samples = samples[: self.samples]
        for source, _, translation in samples:
            print_sample(source, translation)
        if samples and self.log:
            self._write(samples, epoch)

    def _write(self, samples, epoch):
        lines = ["source | reference | translation", "---|---|---"]
        for sample in samples:
            lines.append(
                " | ".join(text.replace("|", r"\|") for text in sample)
            )
        self.log.write(epoch, texts={"samples": "\n".join(lines)})


def _event_log(folder):
    try:
        from keras_transformer.event_log import EventLog
    except ModuleNotFoundError as error:
        raise ImportError(not_installed("`log_dir`", error.name)) from error
    return EventLog(folder)

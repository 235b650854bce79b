"""What a training starts with: a new model, or that of a translator."""

import dataclasses
import re
import signal

import keras

from keras_transformer.descriptions import deserialized
from keras_transformer.search import Search
from keras_transformer.system.signals import signals_handled
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training_run.options import OF_A_VOCABULARY
from keras_transformer.training_run.options import SIZES
from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.training_run.options import vocabulary_arguments
from keras_transformer.transformer import PRESETS
from keras_transformer.transformer import Transformer
from keras_transformer.translator_folder import DESCRIPTION
from keras_transformer.translator_folder import read_folder


@dataclasses.dataclass
class Start:
    """A translator without its weights, which can be sent to other processes.

    Attributes:
        model: The `Transformer`, as serialised by `keras.saving`.
        vocabularies: The SentencePiece models of source and target.
        search: The search, serialised likewise; `None` for the default.
        origin: What error messages call the place they come from.
    """

    model: dict
    vocabularies: tuple[bytes, bytes]
    search: dict | None = None
    origin: str = "The options"

    @classmethod
    def new(
        cls,
        model_options: dict,
        tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
    ):
        """A new model; equal vocabularies share one embedding."""
        target_tokenizer = target_tokenizer or tokenizer
        sizes = {"vocabulary_size": target_tokenizer.vocabulary_size}
        if target_tokenizer.model != tokenizer.model:
            sizes["source_vocabulary_size"] = tokenizer.vocabulary_size
        model = {
            "module": Transformer.__module__,
            "class_name": "Transformer",
            "registered_name": keras.saving.get_registered_name(Transformer),
            "config": {**model_options, **sizes},
        }
        return cls(model, (tokenizer.model, target_tokenizer.model))

    @classmethod
    def load(cls, folder):
        """The start in a translator's folder, and its weights by name.

        No model is made here: with `keras.distribution` all processes would
        have to make one, and only the first has the folder.
        """
        description, weights, tokenizers = read_folder(folder)
        vocabularies = tokenizers[0], tokenizers[-1]
        start = cls(
            description["model"],
            vocabularies,
            description["search"],
            f"{DESCRIPTION} in {folder}",
        )
        return start, weights

    def config(self) -> dict:
        """The arguments of the `Transformer`."""
        return self.model["config"]

    def make_model(self, **overrides) -> Transformer:
        """Makes the model, with other values for some arguments."""
        config = {**self.config(), **overrides}
        described = {**self.model, "config": config}
        return deserialized(Transformer, described, self.origin)

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """The tokenizers of source and target, which may be the same one."""
        source, target = self.vocabularies
        tokenizer = Tokenizer(source)
        return tokenizer, tokenizer if target == source else Tokenizer(target)

    def make_search(self) -> Search | None:
        """The search, or `None` for the default."""
        if self.search is None:
            return None
        return deserialized(Search, self.search, self.origin)


def model_options(options: TrainingOptions) -> dict:
    """The arguments of a new model, except its vocabulary sizes."""
    chosen = {name: getattr(options, name) for name in SIZES}
    return {
        **PRESETS[options.preset],
        "normalize_first": options.normalize_first,
        **{name: x for name, x in chosen.items() if x is not None},
    }


def new_tokenizers(options: TrainingOptions, source, target) -> list[Tokenizer]:
    """The vocabulary of a new model, or one per side.

    Args:
        options: Options that say how to learn it, or where it is.
        source: Path of the text to learn it from.
        target: Path of its translation.
    """
    if options.tokenizer:
        return [
            Tokenizer.from_sentencepiece(path)
            for path in (options.tokenizer, options.target_tokenizer)
            if path
        ]
    chosen = {name: getattr(options, name) for name in OF_A_VOCABULARY}
    is_separate = chosen.pop("separate_vocabularies")
    target_size = chosen.pop("target_vocabulary_size")
    chosen = vocabulary_arguments(**chosen)
    # SentencePiece would make Ctrl-C wait, and nothing is written yet.
    with signals_handled(signal.SIG_DFL, signal.SIGINT):
        if not is_separate:
            return [Tokenizer.train([source, target], **chosen)]
        source_tokenizer = Tokenizer.train([source], **chosen)
        if target_size is not None:
            chosen["vocabulary_size"] = target_size
        try:
            target_tokenizer = Tokenizer.train([target], **chosen)
        except ValueError as error:
            raise _error_of_the_target(error, target_size) from error
    return [source_tokenizer, target_tokenizer]


def _error_of_the_target(error, target_size):
    """The error of its vocabulary, with the option that it has for its size."""
    message, option = str(error), "target_vocabulary_size"
    if target_size is not None:
        return ValueError(re.sub(r"\bvocabulary_size(?=[`=])", option, message))
    if "`vocabulary_size`" in message:
        message += f" The target may have a size of its own, `{option}`."
    return ValueError(message)

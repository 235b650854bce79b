"""Translator: strings in, strings out."""

import os

import keras
import numpy as np
import safetensors.numpy

from keras_transformer.alignment import Alignment
from keras_transformer.batches import TOKENS_PER_BATCH
from keras_transformer.batches import batches_by_length
from keras_transformer.batches import in_text_order
from keras_transformer.batches import in_threads
from keras_transformer.batches import pad_rows
from keras_transformer.checks import check_as_many
from keras_transformer.checks import check_flag
from keras_transformer.checks import check_kind
from keras_transformer.checks import check_texts
from keras_transformer.descriptions import check_comes_back
from keras_transformer.descriptions import check_describable
from keras_transformer.descriptions import check_registered
from keras_transformer.descriptions import deserialized
from keras_transformer.lengths import LONGEST_SOURCE
from keras_transformer.lengths import check_limits
from keras_transformer.lengths import check_prefix_lengths
from keras_transformer.lengths import check_row_lengths
from keras_transformer.lengths import rows_to_translate
from keras_transformer.lengths import within_model
from keras_transformer.pieces import end_sources
from keras_transformer.pieces import end_targets
from keras_transformer.search import Search
from keras_transformer.search import search_or_greedy
from keras_transformer.system.progress import with_progress
from keras_transformer.tensorflow_only.forks import check_not_forked
from keras_transformer.tensorflow_only.graphs import check_is_tensorflow
from keras_transformer.tensorflow_only.threads import batches_at_once
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.transformer import Transformer
from keras_transformer.translator_folder import DESCRIPTION
from keras_transformer.translator_folder import read_folder
from keras_transformer.translator_folder import write_folder
from keras_transformer.version import __version__
from keras_transformer.weights import assign_named_weights
from keras_transformer.weights import check_finite_weights
from keras_transformer.weights import named_weights
from keras_transformer.weights import sync_weights

# Least texts of a batch that is decoded beside another. Measured on two cores:
# of 4 texts, two batches took longer than one at tiny size; of 20, they were
# faster.
LEAST_TEXTS = 8

# Most logits of a batch that is scored, as all are computed at once: 256 MB in
# float32.
LOGITS_PER_BATCH = 2**26


class Translator:
    """Translates strings with a trained model.

    Args:
        model: A `Transformer`.
        tokenizer: Splits the source, and joins the target unless that has its
            own.
        target_tokenizer: Joins the target.
        search: How to search, `GreedySearch()` by default.

    Call arguments:
        texts: A sequence of any number of strings. A text without tokens has
            an empty translation: empty text, and white space unless the
            tokenizer keeps it.
        min_length: Fewest tokens of a translation before its end. Where the
            default of `max_length`, or the model's own, is smaller, that limit
            wins.
        max_length: Most tokens of a translation; by default the tokens of the
            source + 50 (section 6.1), and never more than the model's own. The
            longer, the fewer texts are decoded at once, as memory is reserved
            for all tokens.
        target_prefix: A sequence of strings, one for each text, with which
            the translations begin.
        return_scores: Whether to return the scores as well.
        tokens_per_batch: Most positions of a batch: its texts, times the slots
            of the search, times the most tokens of a target, or of a source
            where that is more. Bounds the memory, however many texts there
            are. On a CPU, TensorFlow decodes two batches at a time. Much text
            is faster with one batch per core, at most 8, which it does after
            `tf.config.threading.set_intra_op_parallelism_threads(1)`.
        jit_compile: Whether to compile with XLA, as for
            `Transformer.generate`.
        search: How to search in this call; by default the translator's own.
        truncate: Whether to translate the beginning of a text that is too long;
            by default it is an error.
        verbose: 0 is silent, 1 shows a progress bar, of tokens.

    Returns:
        A list of strings in the order of `texts`; with `return_scores` a pair
        of it and a float32 array `(B,)` of scores, in nats. A search for `K` >
        1 hypotheses gives lists of `K` strings and scores `(B, K)`.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If model and tokenizers differ in their vocabulary sizes or
            special tokens, a limit is not positive or `min_length` more than
            `max_length`, there are not as many prefixes as texts, or one is
            longer than its translation may be, or, unless `truncate`, a text is
            longer than the model's `max_length`, 4,096 tokens where it has
            none. Set `translator.model.max_length = 10_000` for longer texts,
            unless positions are learned; it is saved and exported.

    Example:
    >>> lines = ["the cat sees the dog", "the dog sees the cat"] * 10
    >>> tokenizer = Tokenizer.train(lines, vocabulary_size=16, verbose=0)
    >>> model = Transformer.from_preset("tiny", tokenizer.vocabulary_size)
    >>> translator = Translator(model, tokenizer)
    >>> len(translator(["the cat sees the dog", ""], max_length=4))
    2
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        search=None,
    ):
        target_tokenizer = target_tokenizer or tokenizer
        for name, value, kind in (
            ("model", model, Transformer),
            ("tokenizer", tokenizer, Tokenizer),
            ("target_tokenizer", target_tokenizer, Tokenizer),
        ):
            check_kind(name, value, kind)
        sizes = (tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
        if sizes != (model.source_vocabulary_size, model.vocabulary_size):
            raise ValueError(
                "The tokenizers must have the vocabularies of `model`. "
                f"Received: {sizes[0]} source and {sizes[1]} target pieces, "
                f"model with {model.source_vocabulary_size} and "
                f"{model.vocabulary_size}."
            )
        special = (tokenizer.start_token_id, tokenizer.end_token_id)
        if special != (model.start_token_id, model.end_token_id):
            raise ValueError(
                "`model` must start and end targets as its tokenizer does, "
                f"with {special[0]} and {special[1]}. Received: start_token_id="
                f"{model.start_token_id}, end_token_id={model.end_token_id}."
            )
        model.build_all()
        self.model = model
        self.tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer
        self.search = search

    @property
    def search(self) -> Search:
        """How to search; another may be set, `None` for `GreedySearch()`."""
        return self._search

    @search.setter
    def search(self, search):
        self._search = search_or_greedy(search)

    @property
    def longest_source(self) -> int:
        """Most tokens that a text may have, its end token included."""
        return self.model.max_length or LONGEST_SOURCE

    def __call__(
        self,
        texts,
        min_length: int = 0,
        max_length: int | None = None,
        target_prefix=None,
        return_scores: bool = False,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        jit_compile: bool | None = None,
        search: Search | None = None,
        truncate: bool = False,
        verbose: int = 0,
    ):
        """Translates texts; the class says what the arguments are."""
        check_flag(truncate=truncate)
        # Read once: another thread may set another.
        search = search_or_greedy(self.search if search is None else search)
        rows = end_sources(self.encode(check_texts("texts", texts)))
        rows = rows_to_translate(rows, self.longest_source, truncate)
        check_limits(min_length, max_length)
        prefixes = self._prefixes(target_prefix, rows, max_length)

        def translate(batch):
            prefix_ids = None
            if prefixes is not None:
                prefix_ids = pad_rows([prefixes[index] for index in batch])
            target_ids, *scores = self.model.generate(
                pad_rows([rows[index] for index in batch]),
                search=search,
                min_length=min_length,
                max_length=max_length,
                target_prefix_ids=prefix_ids,
                return_scores=return_scores,
                jit_compile=jit_compile,
            )
            found = self.target_tokenizer.decode(
                target_ids.reshape(
                    (len(batch) * search.num_hypotheses, -1)
                ).tolist()
            )
            return batch, found, scores[0] if return_scores else None

        lengths = [len(row) for row in rows]
        # XLA's operations use all cores by themselves.
        num_threads = 1 if jit_compile else batches_at_once()
        # Few texts too, so that no thread waits for the others.
        num_texts = sum(map(bool, rows))
        num_batches = min(num_threads, num_texts // LEAST_TEXTS) or 1
        batches = batches_by_length(
            lengths,
            tokens_per_batch,
            search.num_slots,
            within_model(max_length, self.model),
            max_rows=-(-num_texts // num_batches),
        )
        found = in_threads(translate, batches, num_threads)
        translations, scores = in_text_order(
            len(rows),
            search.num_hypotheses,
            with_progress(found, "Translating", lengths, verbose),
        )
        return (translations, scores) if return_scores else translations

    def encode(self, texts):
        """Splits a string into token ids, a sequence into a list of lists."""
        return self.tokenizer.encode(texts)

    def score(self, texts, translations, verbose: int = 0):
        """Computes how probable given translations are.

        Args:
            texts: A sequence of strings.
            translations: As many strings.
            verbose: 0 is silent, 1 shows a progress bar, of tokens.

        Returns:
            Float32 array `(B,)`: natural-logarithm probabilities of the
            translations with their end tokens, in nats; and a list of as many
            float32 arrays, those of their tokens (`Transformer.score` returns
            these first). The translation of empty text is empty: 0 if so, and
            negative infinity if not.

        Raises:
            TypeError: If one is not a sequence of strings.
            ValueError: If there are not as many of the one as of the other, or
                one is longer than the model's `max_length`, 4,096 tokens
                where it has none.
        """
        return self.score_rows(*self._pairs(texts, translations), verbose)

    def score_rows(self, sources, targets, verbose: int = 0):
        """Computes the scores of `score` for rows of ids.

        Args:
            sources: Lists of source ids, each through its end token.
            targets: As many of target ids, likewise.
            verbose: As for `score`.

        Returns:
            As `score`.

        Raises:
            ValueError: If a row is longer than the model's `max_length`.
        """
        scores = np.zeros(len(sources), "float32")
        token_scores = [np.zeros(0, "float32") for _ in sources]
        lengths = [*map(len, targets)]
        batches = self._batches_of_pairs(sources, targets)
        for batch, *ids in with_progress(batches, "Scoring", lengths, verbose):
            for index, of_tokens, of_all in zip(
                batch, *self.model.score(*ids), strict=True
            ):
                scores[index] = of_all
                token_scores[index] = of_tokens[: len(targets[index])]
        return scores, token_scores

    def align(self, texts, translations, layer: int = -1) -> list[Alignment]:
        """Says what the pieces of given translations attend to in the source.

        Args:
            texts: A sequence of strings.
            translations: As many strings.
            layer: Which decoder layer, from 0, or from -1 backwards; see
                `Transformer.align`.

        Returns:
            For each pair an `Alignment`: `source_pieces`, `target_pieces`, and
            their `weights` `(T, S)`; it has `links()` and can `draw(path)`.

        Raises:
            TypeError: If one is not a sequence of strings.
            ValueError: As for `score`, or if there is no such layer.

        Example:
        >>> lines = ["the cat sees the dog", "the dog sees the cat"] * 10
        >>> tokenizer = Tokenizer.train(lines, vocabulary_size=16, verbose=0)
        >>> model = Transformer.from_preset("tiny", tokenizer.vocabulary_size)
        >>> translator = Translator(model, tokenizer)
        >>> [alignment] = translator.align(["the cat"], ["the dog"])
        >>> alignment.weights.shape == (
        ...     len(alignment.target_pieces),
        ...     len(alignment.source_pieces),
        ... )
        True
        """
        sources, targets = self._pairs(texts, translations)
        found = [None] * len(sources)
        for batch, *ids in self._batches_of_pairs(sources, targets):
            weights = self.model.align(*ids, layer)
            for index, of_pair in zip(batch, weights, strict=True):
                source, target = sources[index], targets[index]
                found[index] = Alignment(
                    [self.tokenizer.pieces[token_id] for token_id in source],
                    [
                        self.target_tokenizer.pieces[token_id]
                        for token_id in target
                    ],
                    # A copy, which does not hold the batch.
                    of_pair[: len(target), : len(source)].copy(),
                )
        return found

    def with_dtype(self, dtype) -> "Translator":
        """The same translator, computing in another dtype policy.

        Args:
            dtype: A Keras dtype policy, such as `"float32"` for a translator
                that was trained in `"mixed_bfloat16"`.

        Returns:
            A `Translator`. It shares the model if the policy is the same.

        Raises:
            TypeError: If it is `None`.
            ValueError: If there is no such policy, or its model is to be made
                anew and is quantised, has LoRA or an activation that is not
                registered.
        """
        if dtype is None:
            raise TypeError(
                "`dtype` must be a dtype policy, or its name. Received: None."
            )
        dtype = keras.dtype_policies.get(dtype)
        model = self.model
        if dtype != model.dtype_policy:
            check_describable(self.model)
            model = type(model).from_config(
                {**model.get_config(), "dtype": dtype}
            )
            sync_weights(self.model)
            model.set_weights(self.model.get_weights())
        return Translator(
            model, self.tokenizer, self.target_tokenizer, self.search
        )

    def save(self, path, overwrite: bool = False):
        """Writes the translator to a folder.

        `translator.json` names the other files: the weights
        ([safetensors](https://github.com/huggingface/safetensors)) and the
        SentencePiece models. It is written last and renamed into place, so
        that a save that fails leaves the old translator as it was.

        Args:
            path: The folder, made where it is missing.
            overwrite: Whether to replace a translator that is there.

        Raises:
            FileExistsError: If the folder is not empty, unless `overwrite`.
            OSError: If the folder may not be written to, or is a file.
            TypeError: If `overwrite` is not `True` or `False`.
            ValueError: If the model is quantised, has LoRA or an activation
                that is not registered, or a weight is not a finite number; if
                the class of model or search is not registered, or it cannot
                be made again from its configuration; or if `path` is an
                address, such as `gs://`.
        """
        check_flag(overwrite=overwrite)
        check_describable(self.model)
        check_registered(model=self.model, search=self.search)
        search = keras.saving.serialize_keras_object(self.search)
        check_comes_back(self.search, search)
        self._check_tokenizers()
        weights = named_weights(self.model)
        check_finite_weights(weights.items())
        tokenizers = {"tokenizer": self.tokenizer.model}
        if self.target_tokenizer is not self.tokenizer:
            tokenizers["target_tokenizer"] = self.target_tokenizer.model
        model = keras.saving.serialize_keras_object(self.model)
        model.pop("compile_config", None)
        write_folder(
            os.fsdecode(path),
            safetensors.numpy.save(weights),
            tokenizers,
            {
                "keras_transformer": __version__,
                "model": model,
                "search": search,
            },
            overwrite,
        )

    @classmethod
    def load(cls, path) -> "Translator":
        """Reads a translator from a folder.

        Raises:
            FileNotFoundError: If there is no such folder, or a file is
                missing from it.
            ValueError: If the folder holds no translator, one of another
                format, or files that are not what was saved.
        """
        description, weights, tokenizers = read_folder(path)
        path = os.fsdecode(path)
        model, search = (
            deserialized(kind, description[name], f"{DESCRIPTION} in {path}")
            for name, kind in (("model", Transformer), ("search", Search))
        )
        assign_named_weights(model, weights, repr(path))
        return cls(model, *map(Tokenizer, tokenizers), search=search)

    @classmethod
    def from_marian(cls, path) -> "Translator":
        """Makes a translator of a Marian model.

        Such as those of [OPUS-MT](https://aclanthology.org/2020.eamt-1.61),
        more than a thousand. There are two formats:

        - Hugging Face's: a folder with what a download of
          `Helsinki-NLP/opus-mt-en-de` holds, or what `save_pretrained` of a
          `MarianMTModel` and its `MarianTokenizer` has written: `config.json`,
          `vocab.json`, `source.spm`, `target.spm`, and `model.safetensors` or
          `pytorch_model.bin`, for which torch must be installed.
        - That of [Marian](https://aclanthology.org/P18-4020) itself: the path
          of a `decoder.yml`, or of a folder with a single file whose name ends
          so. The `.npz` and the vocabularies that it names are looked for
          beside it first. A vocabulary is an `.spm`; or a `.yml`, with
          `source.spm` and `target.spm` beside it, as in a `.zip` of OPUS-MT.

        Each computes what its origin does. They are not quite the same:
        Marian's sinusoids, with which all of these models were trained, have
        other wavelengths than Hugging Face's.

        The target vocabulary has the pieces of `target.spm`, or of the second
        of `vocabs`, alone. Of `decoder.yml`, the width of the beam, `normalize`
        and `allow-unk` are taken; of `generation_config.json`, the width of the
        beam, the length penalty, `no_repeat_ngram_size` and
        `early_stopping=True`. Without the last, beam search has its own rule
        for when to stop, which is Marian's. Layers normalise with an epsilon of
        1e-6, where Hugging Face's have 1e-5, so logits differ in the fifth
        digit. A translation has at most 50 tokens more than its source, where
        the settings may allow others: pass `max_length=512` for those of
        Hugging Face. In a model for several languages, a text begins with the
        name of the one to translate into and a space: `">>fra<< Hello."`;
        without the space, the first word is split in another way than there.
        LiteRT files of it need `text=False`; `LiteRTTranslator` takes and
        returns strings all the same.

        Raises:
            FileNotFoundError: If a file is missing.
            ImportError: If torch is needed and not installed.
            ValueError: If it is not a Marian model, one of a kind that
                `Transformer` does not compute, or damaged.
        """
        from keras_transformer.marian import translator_from_marian

        return translator_from_marian(path)

    def export_saved_model(self, path, overwrite: bool = False):
        """Writes a SavedModel whose graph holds text processing and search.

        Signatures:

        - `serving_default`: `text` string `(B,)` -> `translation` string
          `(B,)`, `score` float32 `(B,)`.
        - `translate_ids`: `source_ids` int32 `(B, S)` -> `target_ids` int32
          `(B, T)`, `score` float32 `(B,)`. Rows of ids end with the end token,
          3, then padding, 0.
        - `translate_compiled` and `translate_ids_compiled`: the same, compiled
          with XLA when they are first called, and again for each of a few
          shapes; faster from then on. TensorFlow Serving on a CPU needs
          `--xla_cpu_compilation_enabled` for them.

        A search for `K` > 1 hypotheses adds an axis `K` to each output after
        `B`. The search is fixed: a translation may have 50 tokens more than its
        source, and `Sampling` draws the same for a text each time. Any number
        of sentences may come in one call: the graph sorts them by length and
        decodes them in batches of bounded size.

        A program that loads it needs tensorflow, and tensorflow-text for its
        operations, but not this library. It includes warm-up requests for
        TensorFlow Serving.

        Args:
            path: The folder; TensorFlow Serving wants a number for its name.
            overwrite: Whether to replace what is there.

        Raises:
            FileExistsError: If something is there that is not empty, unless it
                is a SavedModel and `overwrite`; or if it is the current folder,
                or one above it.
            OSError: If no folder may be made there.
            RuntimeError: If Keras does not run on TensorFlow, or this is the
                fork of a process that had a model.
            TypeError: If `overwrite` is not `True` or `False`.
            ValueError: If a weight is not a finite number, a tokenizer is of a
                class of its own, or TensorFlow could not read a folder of that
                name.
        """
        check_flag(overwrite=overwrite)
        check_is_tensorflow("A SavedModel")
        check_not_forked()
        self._check_tokenizers()
        from keras_transformer.serving.saved_model import export_saved_model

        export_saved_model(self, path, overwrite=overwrite)

    def export_litert(
        self,
        path,
        quantization: str | None = None,
        text: bool = True,
        steps: bool = True,
        source_length: int | None = None,
        screening: bool = True,
        overwrite: bool = False,
        verbose: int = 0,
    ):
        """Writes a LiteRT file that runs without operations of TensorFlow.

        Signatures, which share their weights:

        - `translate_text`: `text` string `(1,)` -> `translation` string `(1,)`,
          `score` float32 `(1,)`. One text, as LiteRT joins pieces to one string
          only. Needs the operations of tensorflow-text.
        - `translate_ids`: `source_ids` int32 `(B, S)`, `S` at least 1 ->
          `target_ids` int32 `(B, T)`, `score` float32 `(B,)`.
        - `encode`: `source_ids` -> `encoded_keys` and `encoded_values` float32
          `(L, B, N, S, H)`, one of the `L` layers after another.
        - `decode_step`: `token_ids` int32 `(B,)`, `position` int32 `(1,)`,
          `source_ids`, what `encode` gave, and the `keys` and `values` so far,
          float32 `(L, B, N, T, H)`, at first zeros, for as many positions `T`
          as a target may have -> `logits` float32 `(B, V)` of the tokens that
          follow, `keys` and `values`. For programs with a search of their own.
        - `tokenizers`: `start` int32 `(1,)` -> `source_model` and
          `target_model` uint8, the SentencePiece models from that byte, uint8
          `is_fast`, whether translations are joined as tensorflow-text's fast
          operation does, and int32 `longest_source`, the most tokens a source
          may have, `num_slots` and `num_hypotheses` of the search, and
          `hypotheses_per_batch`, how many are best decoded at once.

        A LiteRT graph cannot check anything: programs that do not use
        `LiteRTTranslator` must check lengths before they call it.

        The file computes in float32, whatever the translator computes in. Do
        not use the translator in another thread while it is written.

        A search for `K` > 1 hypotheses adds an axis `K` to target ids and
        scores, and leaves `translate_text` out. The search is fixed: a
        translation may have 50 tokens more than its source, and `Sampling`
        draws the same for a text each time.

        Args:
            path: The file.
            quantization: `None` for float32 weights, `"float16"` for matrices
                in float16, which are widened when the file is loaded, or
                `"int8"` (dynamic range: products are computed in integers).
            text: Whether to write `translate_text`.
            steps: Whether to write `encode` and `decode_step`.
                `LiteRTTranslator` needs neither these nor `text`, and without
                them takes much less memory: LiteRT arranges the weights of each
                signature for itself when it loads a file.
            source_length: Fixes all shapes, as LiteRT for browsers needs them:
                `translate_ids` takes one source `(1, source_length)`, its end
                token and padding included, and no longer one; `start` must be
                0. Leaves `translate_text`, `encode` and `decode_step` out.
            screening: Whether the file may also have the weights of the logits
                in 8 bits, which makes `GreedySearch` and `BeamSearch` faster:
                of most tokens, logits are then computed in 8 bits only. The
                best tokens are the same, their log-probabilities off by less
                than 0.001 or so, which may change the order of hypotheses whose
                scores are as close. Only from 4 million of these weights on,
                as at base size, in float32, without `source_length` and without
                a repetition penalty.
            overwrite: Whether to replace a file that is there.
            verbose: 0 is silent, 1 prints each stage to standard error;
                `TF_CPP_MIN_LOG_LEVEL=2` in the environment hides what
                TensorFlow logs.

        Raises:
            FileExistsError: If there is such a file, unless `overwrite`.
            OSError: If no file may be written there.
            RuntimeError: If Keras does not run on TensorFlow, a search or model
                of one's own has operations that LiteRT does not, or this is the
                fork of a process that had a model.
            TypeError: If `source_length` is not an integer, or a flag is not
                `True` or `False`.
            ValueError: If there is no such quantization, `source_length` is
                less than 1 or more than the model takes, `text` is asked for
                with tokenizers that LiteRT cannot run, or a weight is no finite
                number, in float16 where it is to be; if the model is
                quantised, or computes in another dtype than float32 and has
                LoRA or an activation that is not registered.
        """
        check_is_tensorflow("A LiteRT file")
        check_not_forked()
        self._check_tokenizers()
        from keras_transformer.serving.litert import export_litert

        export_litert(
            self,
            path,
            quantization=quantization,
            text=text,
            steps=steps,
            source_length=source_length,
            screening=screening,
            overwrite=overwrite,
            verbose=verbose,
        )

    def export_ctranslate2(self, folder, overwrite: bool = False):
        """Writes a CTranslate2 model, with its SentencePiece models beside it.

        The same weights in float32, for `ctranslate2.Translator(folder)`, which
        quantises them with `compute_type="int8"`. `source.spm` splits text into
        the pieces that `translate_batch` takes, `target.spm` joins those that
        it returns; where a text begins with spaces or an unknown piece, it has
        other spaces there than from a `Translator`. Add no special tokens: the
        configuration has the end token of the source and the start token of the
        target. A bias forbids padding and the start token, whose share of the
        probability goes to the other tokens.

        `translate_batch` searches as `GreedySearch` does with `beam_size=1,
        length_penalty=0, min_decoding_length=0`, and with another beam and
        length penalty as `BeamSearch` does with `patience=1,
        length_penalty_form="power"`; without length penalty it stops sooner,
        when the best hypothesis has ended. `max_decoding_length` is 256 tokens
        by default, whatever the length of the source. `verify_export` sets what
        a `Translator` does.

        The table of positions has 2048, or `max_length` of the model where that
        is more; learned positions end at `max_length`. CTranslate2 raises an
        error past the end: keep `max_decoding_length` and `max_input_length`,
        1024 by default with the end token, within.

        Args:
            folder: Where to write.
            overwrite: Whether to replace what is there.

        Raises:
            FileExistsError: If something is there that is not empty, unless it
                is a CTranslate2 model with its tokenizers and `overwrite`; or
                if it is the current folder, or one above it.
            ImportError: If ctranslate2 is not installed.
            OSError: If no folder may be made there.
            RuntimeError: If this is the fork of a process that had a model.
            TypeError: If `overwrite` is not `True` or `False`.
            ValueError: If CTranslate2 has no such model: for an activation that
                it does not compute, heads of another size than `hidden_dim /
                num_heads`, tokenizers that differ in their special pieces, or
                classes of one's own; or if a weight is quantised, or not a
                finite number.

        Example:
        >>> import tempfile, ctranslate2, sentencepiece
        >>> lines = ["the cat sees the dog", "the dog sees the cat"] * 10
        >>> tokenizer = Tokenizer.train(lines, vocabulary_size=16, verbose=0)
        >>> model = Transformer.from_preset("tiny", tokenizer.vocabulary_size)
        >>> folder = tempfile.mkdtemp()
        >>> Translator(model, tokenizer).export_ctranslate2(folder)
        >>> processor = sentencepiece.SentencePieceProcessor
        >>> source = processor(f"{folder}/source.spm")
        >>> target = processor(f"{folder}/target.spm")
        >>> engine = ctranslate2.Translator(folder)
        >>> pieces = source.id_to_piece(source.encode("the cat sees the dog"))
        >>> results = engine.translate_batch([pieces], beam_size=4)
        >>> translations = [target.decode(one.hypotheses[0]) for one in results]
        """
        check_flag(overwrite=overwrite)
        check_not_forked()
        self._check_tokenizers()
        from keras_transformer.serving.ctranslate2 import export_ctranslate2

        export_ctranslate2(self, folder, overwrite=overwrite)

    def _check_tokenizers(self):
        """Raises `ValueError` for a subclass, which files cannot hold."""
        for name in ("tokenizer", "target_tokenizer"):
            kind = type(getattr(self, name))
            if kind is not Tokenizer:
                raise ValueError(
                    f"`{name}` must be a Tokenizer itself, to be saved or "
                    "exported: its SentencePiece model is all that is "
                    f"written. Received: a {kind.__name__}. Change text before "
                    "it is translated."
                )

    def _prefixes(self, target_prefix, rows, max_length):
        """The tokens of each prefix, or `None`."""
        if target_prefix is None:
            return None
        prefixes = check_texts("target_prefix", target_prefix)
        check_as_many(target_prefix=prefixes, texts=rows)
        prefixes = self.target_tokenizer.encode(prefixes)
        check_prefix_lengths(
            [*map(len, prefixes)],
            [*map(len, rows)],
            max_length,
            self.model,
            describe="target_prefix[{}]".format,
        )
        return prefixes

    def _pairs(self, texts, translations):
        """The tokens of texts and of given translations."""
        texts = check_texts("texts", texts)
        translations = check_texts("translations", translations)
        check_as_many(texts=texts, translations=translations)
        sources = end_sources(self.encode(texts))
        targets = end_targets(self.target_tokenizer.encode(translations))
        check_row_lengths("texts", sources, self.longest_source)
        check_row_lengths("translations", targets, self.longest_source)
        return sources, targets

    def _batches_of_pairs(self, sources, targets):
        """Places, source ids and target ids of a batch at a time."""
        longest = [
            max(len(source), len(target))
            for source, target in zip(sources, targets, strict=True)
        ]
        tokens = LOGITS_PER_BATCH // self.model.vocabulary_size
        tokens = min(max(tokens, 1), TOKENS_PER_BATCH)
        # `longest` includes the target: no more room is needed.
        for batch in batches_by_length(longest, tokens, max_length=1):
            yield (
                batch,
                pad_rows([sources[index] for index in batch]),
                pad_rows([targets[index] for index in batch]),
            )

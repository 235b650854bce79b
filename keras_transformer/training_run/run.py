"""A training from two text files, which goes on where it was killed."""

import contextlib
import dataclasses
import errno
import math
import os
import signal
import sys
from pathlib import Path

import keras
import tensorflow as tf

from keras_transformer.atomic import fingerprint
from keras_transformer.bleu_callback import BleuCallback
from keras_transformer.checkpoint import Checkpoint
from keras_transformer.checks import check_file
from keras_transformer.lines import line_pairs
from keras_transformer.lines import lines_of
from keras_transformer.lines import read_lines
from keras_transformer.process import signals_handled
from keras_transformer.tensorflow_only.cores import give_cores_to_parts
from keras_transformer.text import Tokenizer
from keras_transformer.text.dataset import read_corpus
from keras_transformer.training import Adam
from keras_transformer.training import LabelSmoothedCrossentropy
from keras_transformer.training import LossScaleOptimizer
from keras_transformer.training import Muon
from keras_transformer.training import Perplexity
from keras_transformer.training import WarmupSchedule
from keras_transformer.training import WeightAveraging
from keras_transformer.training_run.callbacks import Checkpoints
from keras_transformer.training_run.callbacks import Interrupt
from keras_transformer.training_run.callbacks import OneTraining
from keras_transformer.training_run.callbacks import Report
from keras_transformer.training_run.curves import can_draw
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.distribution import counted
from keras_transformer.training_run.distribution import distributed
from keras_transformer.training_run.folder import START
from keras_transformer.training_run.folder import RunFolder
from keras_transformer.training_run.options import PLACES
from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.training_run.start import Start
from keras_transformer.translator import Translator
from keras_transformer.translator import check_line_lengths
from keras_transformer.translator import longest_source
from keras_transformer.translator_folder import DESCRIPTION
from keras_transformer.weights import assign_named_weights
from keras_transformer.weights import check_finite_weights

# Up to this `hidden_dim` training is faster with parts of a batch on the cores
# than with operations shared among them. Wider models gain little, and need
# memory for the gradients of each part.
WIDEST_IN_PARTS = 256


class TrainingRun(TrainingOptions):
    """Trains a translator into a folder, epoch by epoch.

    The folder is a translator's (`Translator.load` reads it), with a folder
    `training` in it: the settings and command lines, checkpoints, and logs
    as CSV, for TensorBoard and as a picture. A training that was stopped or
    killed goes on from its last checkpoint, and comes to what it would have
    come to.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._forget()

    def _forget(self):
        self.folder = RunFolder(self.output)
        self.distribution = Distribution()
        self.history = self.saved = None

    def train(
        self,
        source,
        target,
        validation=None,
        command: str = "",
        resume: bool = False,
        overwrite: bool = False,
    ):
        """Trains until the last epoch is done, or none improves any more.

        What is wrong with the arguments is found out before anything is
        written. A training of the same settings and text that is in the
        folder goes on.

        Args:
            source: Text file.
            target: Its translation.
            validation: A pair of files like them, or `None`.
            command: The command line, to note in the folder.
            resume: Whether there must be a training to go on with.
            overwrite: Whether to replace what is in the folder.

        Raises:
            FileExistsError: If the folder holds something else.
            FileNotFoundError: If a file is missing.
            KeyboardInterrupt: If it was stopped, once all is saved.
            OSError: If nothing may be written there, or the disk is full.
            RuntimeError: If another process trains in the folder, or one of
                the same training is lost.
            ValueError: If an argument is out of range, or differs from what
                training began with; or if both `resume` and `overwrite` are
                set.
        """
        self._forget()
        self.start_weights = None
        self.check(validation)
        self.loss = LabelSmoothedCrossentropy(self.label_smoothing)
        self.averaging = None
        if self.average_last or self.average_decay:
            self.averaging = WeightAveraging(
                last=self.average_last or None,
                decay=self.average_decay or None,
                every=self.average_every or None,
            )
        if resume and overwrite:
            raise ValueError(
                "`resume` goes on with what `overwrite` removes. Received: "
                "resume=True, overwrite=True."
            )
        texts = {"source": source, "target": target}
        if validation:
            texts["validation source"], texts["validation target"] = validation
        data = {name: _fingerprint(path) for name, path in texts.items()}
        with contextlib.ExitStack() as stack:
            self.distribution = stack.enter_context(
                distributed(self.distribute, self.seed)
            )
            self.distribution.check_same(
                settings={
                    **dataclasses.asdict(self),
                    # Each machine may have its own.
                    **dict.fromkeys(("output", *PLACES)),
                },
                data=data,
            )
            by_chief = self.distribution.by_chief
            goes_on, start = by_chief(
                lambda: self._open(
                    stack, source, target, validation, data, resume, overwrite
                )
            )
            width = start.config().get("hidden_dim", math.inf)
            if width <= WIDEST_IN_PARTS and self.distribute is None:
                give_cores_to_parts()  # before anything is computed
            tokenizers = start.tokenizers()
            self._read(source, target, validation, tokenizers)
            self._make_model(start, tokenizers)
            self._choose_translated(validation[0] if validation else source)
            with self._full_disk_explained():
                by_chief(
                    lambda: self._begin(
                        stack, goes_on, data, command, overwrite
                    )
                )
                self._fit(data)

    def state(self) -> str:
        """Says what is on disk."""
        if self.history is None and self.folder.has_removed:
            return (
                f"The training that was in {self.output} is removed; a new one "
                "has not begun."
            )
        if self.history is None:
            return f"Nothing was changed in {self.output}."
        if self.saved is None:
            return (
                f"No epoch has ended; {self.output} has no translator of this "
                "training yet."
            )
        best = ""
        if self.keep_best:
            best = f", the best of {len(self.history)} by {self.monitor},"
        translator = f"The translator after epoch {self.saved + 1}{best}"
        if not os.path.exists(os.path.join(self.output, DESCRIPTION)):
            return f"{translator} was in {self.output}, and is gone."
        return f"{translator} is in {self.output}."

    def saved_epoch(self) -> int | None:
        """The epoch, from 0, whose translator is to be on disk."""
        if not self.history:
            return None
        scored = [
            row
            for row in self.history
            if not math.isnan(row.get(self.monitor, math.nan))
        ]
        if not self.keep_best or not scored:
            return self.history[-1]["epoch"]
        best = max if self.monitor == "val_bleu" else min
        return best(scored, key=lambda row: row[self.monitor])["epoch"]

    def write_checkpoint(self, epoch, batch, model):
        """Writes what the training of a model goes on from."""
        checkpoint = Checkpoint.of(
            model, epoch, self.averaging, batch, self.history
        )
        check_finite_weights(
            (name, array)
            for name, array in checkpoint.tensors.items()
            if name.startswith("weights/")
        )
        if self.distribution.is_chief:
            checkpoint.write(self.folder.path("checkpoints"))

    def _open(self, stack, source, target, validation, data, resume, overwrite):
        """Gives whether a training goes on, and its `Start`.

        Weights to start from stay here; they are sent one by one, being large.
        """
        goes_on = not overwrite and self._is_begun(data, resume)
        if goes_on:
            self.folder.check_writable()
            stack.enter_context(self.folder.lock())  # marks the folder as ours
        else:
            if resume:
                raise ValueError(
                    "There is no training to go on with in "
                    f"{self.output}. Leave out `--resume`."
                )
            self.folder.check_free(overwrite)
            for pair in filter(None, [(source, target), validation]):
                for _ in line_pairs(*pair):
                    pass  # to raise, before minutes of work, if one is longer
        if self.start_from:
            place = self.folder.path(START) if goes_on else self.start_from
            start, self.start_weights = Start.load(place)
            self._check_longest(start)
            return goes_on, start
        if goes_on:
            tokenizers = self.folder.tokenizers()
        else:
            tokenizers = self._new_tokenizers(Path(source), Path(target))
        start = Start.new(self.model_options(), *tokenizers)
        return goes_on, start

    def _is_begun(self, data, resume):
        """Whether this training is in the folder; raises if another is."""
        if not self.folder.has_training():
            return False
        try:
            self.folder.check_same(self.settings(), data)
        except ValueError:
            # One that failed at once is no reason to refuse the next.
            if resume or self.folder.has_progress():
                raise
            return False
        return True

    def _new_tokenizers(self, source, target):
        """Those of both sides, or of the source and of the target."""
        if self.tokenizer:
            return [
                Tokenizer.from_sentencepiece(path)
                for path in (self.tokenizer, self.target_tokenizer)
                if path
            ]
        texts = [[source, target]]
        if self.separate_vocabularies:
            texts = [[source], [target]]
        coverage = self.character_coverage
        # SentencePiece would let Ctrl-C wait, and nothing is written yet.
        with signals_handled(signal.SIG_DFL, signal.SIGINT):
            return [
                Tokenizer.train(
                    text,
                    vocabulary_size=self.vocabulary_size,
                    model_type=self.model_type,
                    character_coverage=1.0 if coverage is None else coverage,
                    byte_fallback=bool(self.byte_fallback),
                    split_digits=bool(self.split_digits),
                    symbols=self.symbols.split(",") if self.symbols else (),
                )
                for text in texts
            ]

    def _begin(self, stack, goes_on, data, command, overwrite):
        """Writes what is written before training, once nothing is wrong."""
        if not goes_on:
            stack.enter_context(self.folder.lock())
            self.folder.check_free(overwrite)
            self.folder.begin(self.settings(), data, self.translator)
        self.folder.add_command(command)

    @contextlib.contextmanager
    def _full_disk_explained(self):
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            advice = "then start the same command again."
            if self.history is not None:
                advice = (
                    "the same command, without `--overwrite`, goes on from the "
                    "last checkpoint."
                )
            raise OSError(
                f"The disk is full: {error}. {self.state()} Make room; {advice}"
            ) from error

    def _check_longest(self, start):
        longest = start.config().get("max_length")
        if longest and longest < self.max_length:
            raise ValueError(
                "`max_length` must be at most that of `start_from`. Received: "
                f"max_length={self.max_length}, {self.start_from} has "
                f"{longest}."
            )

    def _read(self, source, target, validation, tokenizers):
        self.corpus = self._corpus(source, target, tokenizers)
        self.num_batches = self.corpus.num_batches()  # of an epoch
        if self.updates_per_epoch is not None:
            self.num_batches = self.updates_per_epoch * self.accumulate
        self.num_epochs = self.epochs
        if self.updates is not None:
            batches = self.updates * self.accumulate
            self.num_epochs = math.ceil(batches / self.num_batches)
        self.validation_data = self.validation_lines = None
        if validation:
            corpus = self._corpus(*validation, tokenizers)
            self.validation_data = corpus.in_order()
            self.validation_lines = [[*read_lines(path)] for path in validation]

    def _corpus(self, source, target, tokenizers):
        """Reads text, of which this process makes its part of each batch."""
        corpus = read_corpus(
            source,
            target,
            *tokenizers,
            tokens_per_batch=self.tokens_per_batch,
            max_length=self.max_length,
            verbose=int(self.distribution.is_chief),
        )
        return dataclasses.replace(
            corpus,
            num_devices=self.distribution.num_devices,
            num_parts=self.distribution.num_processes,
            part=self.distribution.process,
        )

    def _choose_translated(self, path):
        """Takes the sample of each epoch; raises if a line for BLEU is long."""
        limit = longest_source(self.translator.model)
        encode = self.translator.tokenizer.encode
        self.sample = next(
            (line for line in lines_of(path) if 0 < len(encode(line)) < limit),
            None,
        )
        if self.scores_bleu():
            check_line_lengths(self.translator, self.validation_lines[0], path)

    def _make_model(self, start, tokenizers):
        """Section 5.3. Text has many lengths, which XLA would each compile."""
        if self.deterministic:
            tf.config.experimental.enable_op_determinism()
        keras.utils.set_random_seed(self.seed)
        overrides = {"dtype": self.dtype}
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) is not None:
                overrides[name] = getattr(self, name)
        with self.distribution.scope():
            model = start.make_model(**overrides)
            if self.start_from:
                self._assign_start(model)
            make_optimizer = Muon if self.optimizer == "muon" else Adam
            optimizer = make_optimizer(
                self._schedule(model.hidden_dim),
                global_clipnorm=self.clip_norm or None,
                gradient_accumulation_steps=(
                    self.accumulate if self.accumulate > 1 else None
                ),
            )
            if self.dtype == "mixed_float16":
                optimizer = LossScaleOptimizer(optimizer)
            model.compile(
                optimizer=optimizer,
                loss=self.loss,
                weighted_metrics=[Perplexity()],
                jit_compile=keras.backend.backend() == "jax",
            )
            model.optimizer.build(model.trainable_variables)
        self.translator = Translator(
            model, *tokenizers, search=start.make_search()
        )

    def _schedule(self, hidden_dim):
        """The learning rate of equation 3, or one that falls to 0."""
        total_steps = None
        if self.decay == "cosine":
            # A training too short to warm up says so, and goes on.
            total_steps = max(self._num_updates(), self.warmup_steps + 1)
        return WarmupSchedule(
            hidden_dim=hidden_dim if self.learning_rate is None else None,
            warmup_steps=self.warmup_steps,
            peak_learning_rate=self.learning_rate,
            total_steps=total_steps,
        )

    def _num_updates(self):
        return self.num_epochs * self.num_batches // self.accumulate

    def _assign_start(self, model):
        weights = self.distribution.arrays_by_chief(lambda: self.start_weights)
        assign_named_weights(model, weights, self.start_from)
        self.start_weights = None  # as large as the model

    def _fit(self, data):
        model = self.translator.model
        start = self._newest_checkpoint()
        self.history = start.history
        self.saved = self.saved_epoch()
        if start.tensors:
            self._assign(start)
        self.curves = can_draw()
        if not self.curves and self.distribution.is_chief:
            print(
                "Without matplotlib no curves are drawn. `pip install "
                "'.[plot]'`, in a checkout of this library, installs it.",
                file=sys.stderr,
            )
        verbose = 1 if sys.stdout.isatty() else 2
        if not self.distribution.is_chief:
            verbose = 0
        with Interrupt(self.distribution.num_processes > 1) as interrupt:
            callbacks = OneTraining(
                self._callbacks(start, interrupt),
                add_history=True,
                add_progbar=True,
                model=model,
            )
            callbacks.begin()
            stop = self._replay(callbacks)
            if self.distribution.is_chief:
                has_ended = stop or start.epoch >= self.num_epochs
                if not has_ended:
                    self.folder.go_on(self.settings(), data)
                self._announce(start, has_ended)
            for epoch in range(start.epoch, self.num_epochs):
                if stop:
                    break
                skip = start.batch if epoch == start.epoch else 0
                callbacks.set_params(
                    {
                        "verbose": verbose,
                        "epochs": self.num_epochs,
                        "steps": self.num_batches - skip,
                    }
                )
                model.fit(
                    self.corpus.stretch(
                        self.seed,
                        epoch * self.num_batches + skip,
                        self.num_batches - skip,
                    ),
                    validation_data=self.validation_data,
                    initial_epoch=epoch,
                    epochs=epoch + 1,
                    callbacks=callbacks,
                )
                stop = self._stops_early()
            callbacks.end()
        if stop and self.distribution.is_chief:
            print(
                f"{self.monitor} has not improved for {self.patience} epochs.",
                file=sys.stderr,
            )

    def _announce(self, start, has_ended):
        """Says where training is, on what, and if it is too short to learn."""
        after = f"the training in {self.output} after epoch {start.epoch}"
        if has_ended:
            print(f"Nothing is left of {after}.", file=sys.stderr)
            return
        if start.tensors:
            if start.batch:
                after += f" and {counted(start.batch, 'batch', 'batches')}"
            print(f"Going on with {after}.", file=sys.stderr)
        print(f"Training on {self.distribution.devices()}.", file=sys.stderr)
        updates = self._num_updates()
        if self.updates is not None or self.updates_per_epoch is not None:
            epochs = counted(self.num_epochs, "epoch")
            print(
                f"{updates:,} updates in {epochs} of {self.num_batches:,} "
                "batches.",
                file=sys.stderr,
            )
        if updates < self.warmup_steps:
            print(
                f"Training ends after {counted(updates, 'update')}, before "
                "the learning rate peaks, after "
                f"{self.warmup_steps:,}. Pass fewer `--warmup-steps`, or more "
                f"`--{'epochs' if self.updates is None else 'updates'}`.",
                file=sys.stderr,
            )

    def _stops_early(self):
        """Whether the chief stops: BLEU may round otherwise elsewhere."""
        model = self.translator.model
        return self.distribution.by_chief(lambda: bool(model.stop_training))

    def _newest_checkpoint(self):
        """Reads it once: the other processes may not see the folder."""
        newest = None

        def read():
            nonlocal newest
            try:
                newest = Checkpoint.newest(self.folder.path("checkpoints"))
            except ValueError as error:
                raise ValueError(
                    f"{error} Pass `--overwrite` to start anew."
                ) from error
            # A process that is killed while it writes the first leaves one.
            if not newest.tensors and self.folder.epochs_logged() > 1:
                raise ValueError(
                    f"The checkpoints of the training in {self.output} are "
                    "missing. Put them back, or pass `--overwrite` to start "
                    "anew."
                )
            return dataclasses.replace(newest, tensors={})

        start = self.distribution.by_chief(read)
        start.tensors.update(
            self.distribution.arrays_by_chief(lambda: newest.tensors)
        )
        return start

    def _assign(self, start):
        model = self.translator.model
        start.assign(model, self.averaging)
        if start.batch:
            # Makes the metrics, so that their state can be put back.
            batch = next(self.corpus.stretch(0, 0, 1).as_numpy_iterator())
            model.test_on_batch(*batch)

    def _callbacks(self, start, interrupt):
        """In this order: later ones see the weights and logs of earlier."""
        callbacks = [self.averaging] if self.averaging else []
        bleu = self.scores_bleu()
        is_chief = self.distribution.is_chief
        if bleu:
            callbacks.append(
                BleuCallback(
                    self.translator,
                    *self.validation_lines,
                    samples=int(is_chief),
                    tokenize=self.tokenize or "13a",
                    log_dir=(
                        self.folder.path("tensorboard", "validation")
                        if is_chief
                        else None
                    ),
                )
            )
        callbacks.append(Report(self, None if bleu else self.sample))
        if self.patience:
            callbacks.append(
                keras.callbacks.EarlyStopping(
                    self.monitor,
                    patience=self.patience,
                    mode="max" if self.monitor == "val_bleu" else "min",
                )
            )
        callbacks.append(Checkpoints(self, start, interrupt))
        return callbacks

    def _replay(self, callbacks):
        """Lets early stopping count the epochs that have ended before."""
        model = self.translator.model
        model.stop_training = False
        for callback in callbacks.callbacks:
            if isinstance(callback, keras.callbacks.EarlyStopping):
                for row in self.history:
                    if self.monitor in row:
                        # Where it went on, with more patience, it goes on.
                        model.stop_training = False
                        callback.on_epoch_end(row["epoch"], row)
        return model.stop_training


def _fingerprint(path):
    path = check_file(path)
    if not os.path.isfile(path):
        raise ValueError(
            "Text to train on must be a file, which is read several times. "
            f"Received: {path!r}, a pipe or a device."
        )
    return fingerprint(path)

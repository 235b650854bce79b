"""A training from two text files, which goes on where it was killed."""

import collections
import contextlib
import dataclasses
import errno
import math
import os
import sys
from pathlib import Path

import keras
import tensorflow as tf

from keras_transformer.bleu_callback import BleuCallback
from keras_transformer.checkpoint import Checkpoint
from keras_transformer.extras import not_installed
from keras_transformer.lengths import check_line_lengths
from keras_transformer.lines import line_pairs
from keras_transformer.lines import lines_of
from keras_transformer.paths import check_file
from keras_transformer.paths import fingerprint
from keras_transformer.tensorflow_only.threads import give_cores_to_parts
from keras_transformer.training_run.callbacks import Checkpoints
from keras_transformer.training_run.callbacks import Interrupt
from keras_transformer.training_run.callbacks import OneTraining
from keras_transformer.training_run.callbacks import Report
from keras_transformer.training_run.check_options import check_options
from keras_transformer.training_run.curves import can_draw
from keras_transformer.training_run.data import TrainingData
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.distribution import counted
from keras_transformer.training_run.distribution import distributed
from keras_transformer.training_run.folder import CHECKPOINTS
from keras_transformer.training_run.folder import CURVES
from keras_transformer.training_run.folder import START
from keras_transformer.training_run.folder import TENSORBOARD
from keras_transformer.training_run.folder import RunFolder
from keras_transformer.training_run.options import PLACES
from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.training_run.recipe import make_averaging
from keras_transformer.training_run.recipe import make_model
from keras_transformer.training_run.start import Start
from keras_transformer.training_run.start import model_options
from keras_transformer.training_run.start import new_tokenizers
from keras_transformer.translator import Translator
from keras_transformer.translator_folder import DESCRIPTION

# Up to this `hidden_dim` training is faster with parts of a batch on the cores
# than with operations shared among them. Wider models gain little, and need
# memory for the gradients of each part.
WIDEST_IN_PARTS = 256


class TrainingRun:
    """Trains a translator into a folder, epoch by epoch.

    The folder is a translator's (`Translator.load` reads it), with a folder
    `training` in it: the settings and command lines, checkpoints, and logs
    as CSV, for TensorBoard and as a picture. A training that was stopped or
    killed goes on from its last checkpoint, and comes to what it would have
    come to.

    Args:
        options: What the training is told.

    Attributes:
        folder: The `RunFolder`.
        distribution: The `Distribution`.
        averaging: The `WeightAveraging`, if weights are averaged.
        data: The `TrainingData`, once it is read.
        translator: The `Translator` that is trained, once it is made.
        history: What each epoch has ended with; `None` until training has a
            folder, whose old content is untouched till then.
        saved: The epoch, from 0, whose translator is on disk, or `None`.
    """

    def __init__(self, options: TrainingOptions):
        self.options = options
        self.folder = RunFolder(options.output)
        self.distribution = Distribution()
        self.averaging = self.data = self.translator = None
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
        options = self.options
        check_options(options, bool(validation))
        self.averaging = make_averaging(options)
        if resume and overwrite:
            raise ValueError(
                "`resume` goes on with what `overwrite` removes. Received: "
                "resume=True, overwrite=True."
            )
        texts = {"": (source, target)}
        if validation:
            texts["validation "] = validation
        digests = _digests(texts)
        with contextlib.ExitStack() as stack:
            self.distribution = stack.enter_context(
                distributed(options.distribute, options.seed)
            )
            self.distribution.check_same(
                settings={
                    **dataclasses.asdict(options),
                    # Each machine may have its own.
                    **dict.fromkeys(("output", *PLACES)),
                },
                data=digests,
            )
            by_chief = self.distribution.by_chief
            weights = {}  # to start from, of the chief
            goes_on, start = by_chief(
                lambda: self._open(
                    stack, texts, digests, weights, resume, overwrite
                )
            )
            width = start.config().get("hidden_dim", math.inf)
            if width <= WIDEST_IN_PARTS and options.distribute is None:
                give_cores_to_parts()  # before anything is computed
            self._prepare(start, weights, (source, target), validation)
            watched = validation[0] if validation else source
            if options.scores_bleu():
                check_line_lengths(
                    self.data.validation_lines[0],
                    watched,
                    self.translator.tokenizer.encode,
                    self.translator.longest_source,
                )
            sample = choose_sample(self.translator, watched)
            with self._full_disk_explained():
                by_chief(
                    lambda: self._begin(
                        stack, goes_on, digests, command, overwrite
                    )
                )
                self._fit(digests, sample)

    def state(self) -> str:
        """Says what is on disk."""
        output = self.folder.output
        if self.history is None and self.folder.has_removed:
            return (
                f"The training that was in {output} is removed; a new one has "
                "not begun."
            )
        if self.history is None:
            return f"Nothing was changed in {output}."
        if self.saved is None:
            return (
                f"No epoch has ended; {output} has no translator of this "
                "training yet."
            )
        best = ""
        if self.options.keep_best:
            best = (
                f", the best of {len(self.history)} by {self.options.monitor},"
            )
        translator = f"The translator after epoch {self.saved + 1}{best}"
        if not os.path.exists(os.path.join(output, DESCRIPTION)):
            return f"{translator} was in {output}, and is gone."
        return f"{translator} is in {output}."

    def saved_epoch(self) -> int | None:
        """The epoch, from 0, whose translator is to be on disk."""
        if not self.history:
            return None
        monitor = self.options.monitor
        scored = [
            row
            for row in self.history
            if not math.isnan(row.get(monitor, math.nan))
        ]
        if not self.options.keep_best or not scored:
            return self.history[-1]["epoch"]
        best = max if self.options.more_is_better else min
        return best(scored, key=lambda row: row[monitor])["epoch"]

    def _open(self, stack, texts, digests, weights, resume, overwrite):
        """Gives whether a training goes on, and its `Start`.

        Weights to start from are put into `weights`; they are sent one by one,
        being large.
        """
        goes_on = not overwrite and self._is_begun(digests, resume)
        if goes_on:
            self.folder.check_writable()
            # The lock marks the folder as ours.
            stack.enter_context(self.folder.locked())
        else:
            if resume:
                raise ValueError(
                    "There is no training to go on with in "
                    f"{self.folder.output}. Leave out `--resume`."
                )
            self.folder.check_free(overwrite)
            # Raises, before minutes of work, if a side is longer.
            for pair in texts.values():
                collections.deque(line_pairs(*pair), maxlen=0)
        if self.options.start_from:
            place = self.options.start_from
            if goes_on:
                place = self.folder.path(START)
            start, found = Start.load(place)
            weights.update(found)
            self._check_longest(start)
            return goes_on, start
        if goes_on:
            tokenizers = self.folder.tokenizers()
        else:
            source, target = map(Path, texts[""])
            tokenizers = new_tokenizers(self.options, source, target)
        start = Start.new(model_options(self.options), *tokenizers)
        return goes_on, start

    def _is_begun(self, digests, resume):
        """Whether this training is in the folder; raises if another is."""
        if not self.folder.has_training():
            return False
        try:
            self.folder.check_same(self.options.settings(), digests)
        except ValueError:
            # One that failed at once is no reason to refuse the next.
            if resume or self.folder.has_progress():
                raise
            return False
        return True

    def _prepare(self, start, weights, text, validation):
        """Reads the text, and makes the translator that learns from it."""

        def take_weights():
            taken = self.distribution.arrays_by_chief(lambda: weights)
            weights.clear()  # as large as the model
            return taken

        tokenizers = start.tokenizers()
        self.data = TrainingData.read(
            self.options, text, validation, tokenizers, self.distribution
        )
        if self.options.deterministic:
            tf.config.experimental.enable_op_determinism()
        keras.utils.set_random_seed(self.options.seed)
        model = make_model(
            self.options,
            start,
            take_weights,
            self.distribution,
            self.data.num_updates,
        )
        self.translator = Translator(
            model, *tokenizers, search=start.make_search()
        )

    def _begin(self, stack, goes_on, digests, command, overwrite):
        """Writes what is written before training, once nothing is wrong."""
        if not goes_on:
            stack.enter_context(self.folder.locked())
            self.folder.check_free(overwrite)
            self.folder.begin(self.options.settings(), digests, self.translator)
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
        if longest and longest < self.options.max_length:
            raise ValueError(
                "`max_length` must be at most that of `start_from`. Received: "
                f"max_length={self.options.max_length}, "
                f"{self.options.start_from} has {longest}."
            )

    def _fit(self, digests, sample):
        model = self.translator.model
        checkpoint = self._newest_checkpoint()
        self.history = checkpoint.history
        self.saved = self.saved_epoch()
        if checkpoint.tensors:
            self._assign(checkpoint)
        if not can_draw() and self.distribution.is_chief:
            lack = not_installed(CURVES, "matplotlib", "plot")
            print(lack, file=sys.stderr)
        with Interrupt(self.distribution.num_processes > 1) as interrupt:
            callbacks = OneTraining(
                self._callbacks(checkpoint, interrupt, sample),
                add_history=True,
                add_progbar=True,
                model=model,
            )
            callbacks.begin()
            stop = self._replay(callbacks)
            if self.distribution.is_chief:
                has_ended = stop or checkpoint.epoch >= self.data.num_epochs
                if not has_ended:
                    self.folder.go_on(self.options.settings(), digests)
                self._announce(checkpoint, has_ended)
            for epoch in range(checkpoint.epoch, self.data.num_epochs):
                if stop:
                    break
                skip = checkpoint.batch if epoch == checkpoint.epoch else 0
                self._fit_epoch(epoch, skip, callbacks)
                stop = self._stops_early()
            callbacks.end()
        if stop and self.distribution.is_chief:
            print(
                f"{self.options.monitor} has not improved for "
                f"{self.options.patience} epochs.",
                file=sys.stderr,
            )

    def _fit_epoch(self, epoch, skip, callbacks):
        """Trains on the batches of an epoch behind the first `skip`."""
        data = self.data
        verbose = 0
        if self.distribution.is_chief:
            verbose = 1 if sys.stdout.isatty() else 2
        steps = data.num_batches - skip
        callbacks.set_params(
            {"verbose": verbose, "epochs": data.num_epochs, "steps": steps}
        )
        self.translator.model.fit(
            data.corpus.stretch(
                self.options.seed, epoch * data.num_batches + skip, steps
            ),
            validation_data=data.validation,
            initial_epoch=epoch,
            epochs=epoch + 1,
            callbacks=callbacks,
        )

    def _announce(self, checkpoint, has_ended):
        """Says where training is, on what, and if it is too short to learn."""
        options, data = self.options, self.data
        after = (
            f"the training in {options.output} after epoch {checkpoint.epoch}"
        )
        if has_ended:
            print(f"Nothing is left of {after}.", file=sys.stderr)
            return
        if checkpoint.tensors:
            if checkpoint.batch:
                after += f" and {counted(checkpoint.batch, 'batch', 'batches')}"
            print(f"Going on with {after}.", file=sys.stderr)
        print(f"Training on {self.distribution.devices()}.", file=sys.stderr)
        if options.updates is not None or options.updates_per_epoch is not None:
            epochs = counted(data.num_epochs, "epoch")
            print(
                f"{data.num_updates:,} updates in {epochs} of "
                f"{data.num_batches:,} batches.",
                file=sys.stderr,
            )
        if data.num_updates < options.warmup_steps:
            updates = counted(data.num_updates, "update")
            longer = "epochs" if options.updates is None else "updates"
            print(
                f"Training ends after {updates}, before the learning rate "
                f"peaks, after {options.warmup_steps:,}. Pass fewer "
                f"`--warmup-steps`, or more `--{longer}`.",
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
                newest = Checkpoint.newest(self.folder.path(CHECKPOINTS))
            except ValueError as error:
                raise ValueError(
                    f"{error} Pass `--overwrite` to start anew."
                ) from error
            # A process that is killed while it writes the first leaves one.
            if not newest.tensors and self.folder.epochs_logged() > 1:
                raise ValueError(
                    "The checkpoints of the training in "
                    f"{self.folder.output} are missing. Put them back, or pass "
                    "`--overwrite` to start anew."
                )
            return dataclasses.replace(newest, tensors={})

        checkpoint = self.distribution.by_chief(read)
        checkpoint.tensors.update(
            self.distribution.arrays_by_chief(lambda: newest.tensors)
        )
        return checkpoint

    def _assign(self, checkpoint):
        model = self.translator.model
        checkpoint.assign(model, self.averaging)
        if checkpoint.batch:
            # Makes the metrics, so that their state can be put back.
            batch = next(self.data.corpus.stretch(0, 0, 1).as_numpy_iterator())
            model.test_on_batch(*batch)

    def _callbacks(self, checkpoint, interrupt, sample):
        """In this order: later ones see the weights and logs of earlier."""
        callbacks = [self.averaging] if self.averaging else []
        bleu = self.options.scores_bleu()
        is_chief = self.distribution.is_chief
        if bleu:
            callbacks.append(
                BleuCallback(
                    self.translator,
                    *self.data.validation_lines,
                    samples=int(is_chief),
                    tokenize=self.options.tokenize or "13a",
                    log_dir=(
                        # TensorBoard follows one file in each folder.
                        self.folder.path(TENSORBOARD, "translations")
                        if is_chief
                        else None
                    ),
                )
            )
        callbacks.append(Report(self, None if bleu else sample))
        if self.options.patience:
            callbacks.append(
                keras.callbacks.EarlyStopping(
                    self.options.monitor,
                    patience=self.options.patience,
                    mode="max" if self.options.more_is_better else "min",
                )
            )
        callbacks.append(Checkpoints(self, checkpoint, interrupt))
        return callbacks

    def _replay(self, callbacks):
        """Lets early stopping count the epochs that have ended before."""
        model = self.translator.model
        model.stop_training = False
        for callback in callbacks.callbacks:
            if isinstance(callback, keras.callbacks.EarlyStopping):
                for row in self.history:
                    if self.options.monitor in row:
                        # Where it went on, with more patience, it goes on.
                        model.stop_training = False
                        callback.on_epoch_end(row["epoch"], row)
        return model.stop_training


def choose_sample(translator: Translator, path) -> str | None:
    """The first line of a file that is neither empty nor too long."""
    limit = translator.longest_source
    encode = translator.tokenizer.encode
    lines = lines_of(path)
    return next((x for x in lines if 0 < len(encode(x)) < limit), None)


def _digests(texts):
    """Fingerprints of files, by the names of their kind and side."""
    digests = {}
    for kind, pair in texts.items():
        for side, path in zip(("source", "target"), pair, strict=True):
            path = check_file(path)
            if not os.path.isfile(path):
                raise ValueError(
                    "Text to train on must be a file, which is read several "
                    f"times. Received: {path!r}, a pipe or a device."
                )
            digests[f"{kind}{side}"] = fingerprint(path)
    return digests

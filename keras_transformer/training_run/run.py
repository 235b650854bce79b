"""Training from two text files, which resumes where it was stopped."""

import contextlib
import dataclasses
import errno
import math
import os
from pathlib import Path

import keras
import tensorflow as tf

from keras_transformer.tensorflow_only.threads import give_cores_to_parts
from keras_transformer.text.lines import check_line_lengths
from keras_transformer.text.lines import lines_of
from keras_transformer.training_run.check_options import check_options
from keras_transformer.training_run.data import TextFiles
from keras_transformer.training_run.data import TrainingData
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.distribution import distributed
from keras_transformer.training_run.fitting import Fitting
from keras_transformer.training_run.fitting import newest_checkpoint
from keras_transformer.training_run.folder import START
from keras_transformer.training_run.folder import RunFolder
from keras_transformer.training_run.history import History
from keras_transformer.training_run.options import PLACES
from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.training_run.recipe import make_averaging
from keras_transformer.training_run.recipe import make_model
from keras_transformer.training_run.start import Start
from keras_transformer.training_run.start import model_options
from keras_transformer.training_run.start import new_tokenizers
from keras_transformer.translator import Translator
from keras_transformer.translator_folder import DESCRIPTION

# Up to this `hidden_dim`, training is faster if each core computes a part of
# the batch than if the cores share each operation. Larger models gain little,
# and need memory for the gradients of each part.
LARGEST_IN_PARTS = 256


class TrainingRun:
    """Trains a translator into a folder, epoch by epoch.

    The folder is a translator's (`Translator.load` reads it), with a folder
    `training` in it: the settings and command lines, checkpoints, and logs
    as CSV, for TensorBoard and as a picture. A training that was stopped or
    killed goes on from its last checkpoint, and ends with the same result as
    an uninterrupted one.

    Args:
        options: The options of the training.

    Attributes:
        folder: The `RunFolder`.
        distribution: The `Distribution`.
        fitting: The `Fitting`; `None` until data and model are ready.
        history: The `History`; `None` until the training has begun in its
            folder.
    """

    def __init__(self, options: TrainingOptions):
        self.options = options
        self.folder = RunFolder(options.output)
        self.distribution = Distribution()
        self.fitting = self.history = None

    def train(
        self,
        source,
        target,
        validation=None,
        command: str = "",
        resume: bool = False,
        overwrite: bool = False,
    ):
        """Trains until the last epoch, or until early stopping.

        Errors in the arguments are found before anything is written. If the
        folder holds a training with the same settings and text, it goes on.

        Args:
            source: Text file.
            target: Its translation, line by line.
            validation: A pair of such files, or `None`.
            command: The command line, to record in the folder.
            resume: Whether there must be a training to go on with.
            overwrite: Whether to replace what is in the folder.

        Raises:
            FileExistsError: If the folder holds something else.
            FileNotFoundError: If a file is missing.
            KeyboardInterrupt: If it was stopped, once everything is saved.
            OSError: If the folder cannot be written to, the disk is full, or
                what `tokenize` needs cannot be downloaded.
            RuntimeError: If another process trains in the folder, the folder
                is moved, removed or replaced, a process of this training is
                lost, or what `tokenize` needs is not installed.
            TypeError: If an option is of the wrong kind.
            ValueError: If an argument is out of range, or differs from what
                training began with; if both `resume` and `overwrite` are set;
                or if weights or losses are no longer finite numbers.
        """
        options = self.options
        check_options(options, bool(validation))
        averaging = make_averaging(options)
        if resume and overwrite:
            raise ValueError(
                "`resume` must not be combined with `overwrite`, which removes "
                "the training to resume. Received: resume=True, overwrite=True."
            )
        with contextlib.ExitStack() as stack:
            self.distribution = stack.enter_context(
                distributed(options.distribute, options.seed)
            )
            settings = {
                **dataclasses.asdict(options),
                # These may differ between machines.
                **dict.fromkeys(("output", *PLACES)),
            }
            check_same = self.distribution.check_same
            try:
                files = TextFiles.of(source, target, validation)
            except (OSError, ValueError):
                # The other processes wait to compare theirs.
                with contextlib.suppress(ValueError):
                    check_same(settings=settings, data=None)
                raise
            check_same(settings=settings, data=files.digests)
            by_chief = self.distribution.by_chief
            weights = {}  # to start from; only the chief fills it
            resumes, start = by_chief(
                lambda: self._open(stack, files, weights, resume, overwrite)
            )
            hidden_dim = start.config().get("hidden_dim", math.inf)
            if hidden_dim <= LARGEST_IN_PARTS and options.distribute is None:
                give_cores_to_parts()  # before anything is computed
            self.fitting = self._prepare(files, start, weights, averaging)
            with self._full_disk_explained():
                if not resumes:
                    by_chief(lambda: self._begin(stack, files, overwrite))
                by_chief(lambda: self.folder.add_command(command))
                checkpoint = newest_checkpoint(self.folder, self.distribution)
                saved = by_chief(self.folder.noted_translator)
                self.history = History(options, [*checkpoint.history], saved)
                self.fitting.fit(checkpoint, self.history)

    def state(self) -> str:
        """Says what is on disk."""
        output, history = self.folder.output, self.history
        if history is None and self.folder.has_removed:
            return (
                f"The training that was in {output} has been removed; a new "
                "one has not begun."
            )
        if history is None:
            return f"Nothing was changed in {output}."
        if not self.distribution.is_chief:
            return "What is saved is in the folder of the first process."
        if history.saved is None and history.rows and self.has_translator():
            return (
                f"The translator in {output} is not known to be of this "
                "training."
            )
        if history.saved is None:
            reason = "" if history.rows else "No epoch has ended; "
            return f"{reason}{output} has no translator of this training yet."
        epoch = history.saved["epoch"]
        translator = f"The translator after epoch {epoch + 1}"
        is_ours = history.has_saved_epoch()
        if self.options.keep_best and is_ours and epoch == history.best_epoch():
            epochs = len(history.scored())
            translator += f", the best of {epochs} by {self.options.monitor},"
        if not self.has_translator():
            return f"{translator} was in {output}, and is gone."
        if not is_ours:
            return (
                f"{translator} is in {output}, from before training went back "
                "to an earlier checkpoint."
            )
        return f"{translator} is in {output}."

    def has_translator(self) -> bool:
        """Whether the folder has a translator, of this training or another."""
        return os.path.exists(os.path.join(self.options.output, DESCRIPTION))

    def warning(self) -> str:
        """Says if the last epoch has a loss above that of guessing."""
        if self.history is None or not self.history.rows:
            return ""
        guessing = math.log(self.fitting.translator.model.vocabulary_size)
        *earlier, loss = (row["loss"] for row in self.history.rows)
        if math.isnan(loss) or loss <= guessing:
            return ""
        advice = "Train for longer."
        least = min(filter(math.isfinite, earlier), default=math.inf)
        if loss > least or math.isinf(loss):
            advice = (
                "It has risen: train anew with a lower --learning-rate, more "
                "--warmup-steps, or --clip-norm."
            )
        return (
            f"The last epoch's loss is above {guessing:.1f}, that of guessing "
            f"each token. {advice}\n"
        )

    def _open(self, stack, files, weights, resume, overwrite):
        """Returns whether a training is resumed, and its `Start`.

        Weights to start from are put into `weights` instead: they are large,
        and are sent to the other processes one by one.
        """
        resumes = not overwrite and self._is_begun(files, resume)
        if resumes:
            self.folder.check_writable()
            # The lock marks the folder as ours.
            stack.enter_context(self.folder.locked())
            self.folder.check_translator()
        else:
            if resume:
                raise ValueError(
                    "There is no training to resume in "
                    f"{self.folder.output}. Leave out `--resume`."
                )
            self.folder.check_free(overwrite)
            if self.folder.has_lock_file():
                # Raises now if one is running there.
                stack.enter_context(self.folder.locked())
            files.check_pairs()  # before minutes of work
        if self.options.start_from:
            place = self.options.start_from
            if resumes:
                place = self.folder.path(START)
            start, found = Start.load(place)
            weights.update(found)
            self._check_longest(start)
            return resumes, start
        if resumes:
            tokenizers = self.folder.tokenizers()
        else:
            tokenizers = new_tokenizers(self.options, *map(Path, files.text))
        start = Start.new(model_options(self.options), *tokenizers)
        return resumes, start

    def _is_begun(self, files, resume):
        """Whether this training is in the folder; raises if another is."""
        if not self.folder.has_training():
            return False
        try:
            self.folder.check_same(self.options.settings(), files.digests)
        except ValueError:
            # A training that failed at once does not stand in another's way.
            if resume or self.folder.has_progress():
                raise
            return False
        return True

    def _prepare(self, files, start, weights, averaging):
        """Prepares data and model; raises if lines are too long."""

        def take_weights():
            taken = self.distribution.arrays_by_chief(weights)
            weights.clear()  # as large as the model
            return taken

        tokenizers = start.tokenizers()
        data = TrainingData.read(
            self.options, files, tokenizers, self.distribution
        )
        if self.options.deterministic:
            tf.config.experimental.enable_op_determinism()
        keras.utils.set_random_seed(self.options.seed)
        model = make_model(
            self.options,
            start,
            take_weights,
            self.distribution,
            data.num_updates,
        )
        translator = Translator(model, *tokenizers, search=start.make_search())
        watched, _ = files.validation or files.text
        sample = None
        if self.options.scores_bleu():
            check_line_lengths(data.validation_lines[0], watched, translator)
        else:
            sample = choose_sample(translator, watched)
        return Fitting(
            options=self.options,
            folder=self.folder,
            distribution=self.distribution,
            data=data,
            translator=translator,
            averaging=averaging,
            sample=sample,
        )

    def _begin(self, stack, files, overwrite):
        """Writes what a new training begins with, after all checks."""
        stack.enter_context(self.folder.locked())
        self.folder.check_free(overwrite)
        self.folder.begin(
            self.options.settings(), files.digests, self.fitting.translator
        )

    @contextlib.contextmanager
    def _full_disk_explained(self):
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            advice = "then run the same command again."
            if self.history is not None and self.folder.has_progress():
                advice = (
                    "then run the same command, without `--overwrite`, to go "
                    "on from the last checkpoint."
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


def choose_sample(translator: Translator, path) -> str | None:
    """The first line of a file that is neither empty nor too long."""
    limit = translator.longest_source
    encode = translator.tokenizer.encode
    lines = lines_of(path)
    return next((x for x in lines if 0 < len(encode(x)) < limit), None)

"""The epochs of a training, from its last checkpoint to its end."""

import dataclasses
import sys

import keras

from keras_transformer.batches import first_of
from keras_transformer.checkpoint import Checkpoint
from keras_transformer.layer import frozen_parts
from keras_transformer.system.extras import not_installed
from keras_transformer.system.picture import can_draw
from keras_transformer.system.progress import print_sample
from keras_transformer.training import WeightAveraging
from keras_transformer.training_run.callbacks import BatchProgress
from keras_transformer.training_run.callbacks import Bleu
from keras_transformer.training_run.callbacks import Checkpoints
from keras_transformer.training_run.callbacks import OneTraining
from keras_transformer.training_run.data import TrainingData
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.folder import CHECKPOINTS
from keras_transformer.training_run.folder import CURVES
from keras_transformer.training_run.folder import TENSORBOARD
from keras_transformer.training_run.folder import RunFolder
from keras_transformer.training_run.history import History
from keras_transformer.training_run.interrupt import Interrupt
from keras_transformer.training_run.interrupt import Stopped
from keras_transformer.training_run.logs import Logs
from keras_transformer.training_run.options import DEFAULT_TOKENIZE
from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.training_run.wording import counted
from keras_transformer.translator import Translator
from keras_transformer.weights import check_finite_model


@dataclasses.dataclass
class Fitting:
    """Calls `fit` for each epoch that is left.

    Args:
        options: The options of the training.
        folder: The folder of the training.
        distribution: The devices and processes it runs on.
        data: The data to train on.
        translator: The translator to train.
        averaging: The average of its weights, or `None`.
        sample: A sentence to translate after each epoch, or `None`.
    """

    options: TrainingOptions
    folder: RunFolder
    distribution: Distribution
    data: TrainingData
    translator: Translator
    averaging: WeightAveraging | None
    sample: str | None

    def __post_init__(self):
        self.logs = Logs(self.folder)

    def fit(self, checkpoint: Checkpoint, history: History):
        """Trains until the last epoch, or until early stopping.

        Args:
            checkpoint: What training goes on from; its tensors are cleared.
            history: The history of the epochs so far, to which each is added.

        Raises:
            Stopped: If asked to stop, once everything is saved.
        """
        if checkpoint.tensors:
            self._assign(checkpoint)
        if not can_draw() and self.distribution.is_chief:
            lack = not_installed(CURVES, "matplotlib")
            print(lack, file=sys.stderr)
        with Interrupt(self.distribution.num_processes > 1) as interrupt:
            progress = BatchProgress(
                self.data.num_batches, self.distribution.is_chief
            )
            checkpoints = Checkpoints(
                checkpoint,
                history,
                self.averaging,
                num_batches=self.data.num_batches,
                every=self.options.save_every * self.options.accumulate,
                folder=self.folder,
                distribution=self.distribution,
                interrupt=interrupt,
            )
            callbacks = [progress, self.averaging, self._bleu(), checkpoints]
            callbacks = OneTraining(
                [callback for callback in callbacks if callback],
                add_history=True,
                add_progbar=True,
                model=self.translator.model,
            )
            callbacks.begin()
            self._make_up(checkpoint, history)
            stop = self._has_stalled(history)
            if self.distribution.is_chief:
                has_ended = stop or checkpoint.epoch >= self.data.num_epochs
                if not has_ended:
                    self.folder.add_later(
                        self.options.settings(), self.data.digests
                    )
                self._announce(checkpoint, has_ended)
            for epoch in range(checkpoint.epoch, self.data.num_epochs):
                if stop:
                    break
                skip = checkpoint.batch if epoch == checkpoint.epoch else 0
                history.add(self._fit_epoch(epoch, skip, callbacks, progress))
                # In this order: what is replaced is of an epoch that training
                # does not go back to, unless a file is damaged.
                checkpoints.write(epoch + 1)
                self._save(history)
                self._log(history, epoch)
                self._show_sample()
                is_asked = self.distribution.agrees_to_stop(
                    bool(interrupt.requested),
                    (epoch + 1) * self.data.num_batches,
                )
                stop = self._has_stalled(history)
                if is_asked and not stop and epoch + 1 < self.data.num_epochs:
                    raise Stopped(interrupt.requested)
            callbacks.end()
        if stop and self.distribution.is_chief:
            print(
                f"{self.options.monitor} has not improved for "
                f"{counted(self.options.patience, 'epoch')}.",
                file=sys.stderr,
            )

    def _fit_epoch(self, epoch, skip, callbacks, progress) -> dict:
        """Trains on the batches of an epoch after the first `skip`.

        Returns:
            What it ended with, by name.
        """
        data = self.data
        model = self.translator.model
        # A line for each epoch: the batches have a bar of their own.
        verbose = 2 if self.distribution.is_chief else 0
        steps = data.num_batches - skip
        callbacks.set_params(
            {"verbose": verbose, "epochs": data.num_epochs, "steps": steps}
        )
        with progress.of_epoch(skip):
            results = model.fit(
                data.corpus.stretch(
                    self.options.seed, epoch * data.num_batches + skip, steps
                ),
                validation_data=data.validation,
                initial_epoch=epoch,
                epochs=epoch + 1,
                callbacks=callbacks,
            ).history
        check_finite_model(model)
        return {name: float(values[-1]) for name, values in results.items()}

    def _make_up(self, checkpoint, history):
        """Has translator and log be those of the checkpoint.

        They are older if a process ended after the checkpoint, and newer if a
        later one was damaged.
        """
        if history.rows and not history.is_saved() and not checkpoint.batch:
            if self.averaging:
                self.averaging.apply()
            self._save(history)
            if self.averaging:
                self.averaging.restore()
        if history.rows and self.folder.log() != history.table():
            self._log(history, self.folder.epochs_logged())

    def _save(self, history):
        """Saves the translator, if the last epoch is the one to keep."""
        row = history.rows[-1]
        if history.epoch_to_save() != row["epoch"]:
            return
        if self.distribution.is_chief:
            self.folder.check_in_place()
            self.folder.note_translator(row, before=history.saved)
            self.translator.save(self.folder.output, overwrite=True)
            self.folder.check_in_place()
            self.folder.note_saved()
        history.saved = row

    def _log(self, history, epoch):
        """Writes the results of the epochs from one on, and all as a table."""
        if self.distribution.is_chief:
            self.logs.write(history, epoch)

    def _show_sample(self):
        """Translates a sentence; all processes do, and the chief prints it."""
        if self.sample is None:
            return
        translation = first_of(self.translator([self.sample]))[0]
        if self.distribution.is_chief:
            print_sample(self.sample, translation)

    def _has_stalled(self, history):
        """Whether the chief stops: elsewhere, rounding may change BLEU."""
        return self.distribution.by_chief(history.has_stalled)

    def _announce(self, checkpoint, has_ended):
        """Says where training is, on what, and if it ends before the peak."""
        options, data = self.options, self.data
        after = (
            f"the training in {options.output} after epoch {checkpoint.epoch}"
        )
        if has_ended:
            print(f"Nothing is left to do for {after}.", file=sys.stderr)
            return
        if checkpoint.tensors:
            if checkpoint.batch:
                after += f" and {counted(checkpoint.batch, 'batch', 'batches')}"
            print(f"Resuming {after}.", file=sys.stderr)
            began_on, now_on = self.folder.backend(), keras.backend.backend()
            if began_on != now_on:
                print(
                    f"It began on Keras's backend {began_on!r}: on {now_on!r}, "
                    "dropout has other random numbers.",
                    file=sys.stderr,
                )
        print(f"Training on {self.distribution.devices()}.", file=sys.stderr)
        if frozen := frozen_parts(self.translator.model):
            print(
                f"Frozen, so left as they are: {', '.join(frozen)}.",
                file=sys.stderr,
            )
        if data.digests["source"] == data.digests["target"]:
            print("Source and target are the same text.", file=sys.stderr)
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
                f"peaks, at {options.warmup_steps:,}. Pass fewer "
                f"`--warmup-steps`, or more `--{longer}`.",
                file=sys.stderr,
            )

    def _assign(self, checkpoint):
        model = self.translator.model
        checkpoint.assign(model, self.averaging)
        if checkpoint.batch:
            # Creates the metrics, so that their state can be restored. Keras
            # gives each device all of a batch here: a sentence for each is
            # enough.
            batch = next(self.data.corpus.stretch(0, 0, 1).as_numpy_iterator())
            few = self.distribution.num_devices
            model.test_on_batch(
                *keras.tree.map_structure(lambda x: x[:few], batch)
            )

    def _bleu(self):
        """The callback that scores translations, or `None`."""
        if not self.options.scores_bleu():
            return None
        is_chief = self.distribution.is_chief
        return Bleu(
            self.translator,
            *self.data.validation_lines,
            self.folder,
            samples=int(is_chief),
            tokenize=self.options.tokenize or DEFAULT_TOKENIZE,
            log_dir=(
                # TensorBoard follows only one file per folder.
                self.folder.path(TENSORBOARD, "translations")
                if is_chief
                else None
            ),
        )


def newest_checkpoint(
    folder: RunFolder, distribution: Distribution
) -> Checkpoint:
    """The checkpoint that a training goes on from, empty at the start.

    Only the chief reads it: the other processes may not see the folder.

    Args:
        folder: The folder of the training.
        distribution: The processes, to all of which the chief sends it.
    """
    newest = Checkpoint()  # as other processes than the chief have it

    def read():
        nonlocal newest
        try:
            newest = Checkpoint.newest(folder.path(CHECKPOINTS))
        except ValueError as error:
            raise ValueError(
                f"{error} Pass `--overwrite` to start again."
            ) from error
        if not newest.tensors and folder.has_ended():
            raise ValueError(
                f"The checkpoints of the training in {folder.output} are "
                "missing. Put them back, or pass `--overwrite` to start again."
            )
        return dataclasses.replace(newest, tensors={})

    checkpoint = distribution.by_chief(read)
    checkpoint.tensors.update(distribution.arrays_by_chief(newest.tensors))
    return checkpoint

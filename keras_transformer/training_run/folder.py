"""The folder of a training run: what is in it, and who may write to it."""

import contextlib
import json
import os
import shlex
import sys

import keras

from keras_transformer.checkpoint import checkpoints_in
from keras_transformer.files import read_json
from keras_transformer.system.atomic import remove
from keras_transformer.system.atomic import write_file
from keras_transformer.system.lock import lock
from keras_transformer.system.paths import check_folder_to_write
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training_run.options import PLACES
from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.translator import Translator
from keras_transformer.translator_folder import DESCRIPTION
from keras_transformer.translator_folder import TRAINING
from keras_transformer.translator_folder import check_free
from keras_transformer.translator_folder import weights_digest
from keras_transformer.version import __version__

FORMAT = 1  # of `SETTINGS`
LOCK = "lock"
SETTINGS = "settings.json"
TOKENIZER = "tokenizer.model"
TARGET_TOKENIZER = "target_tokenizer.model"
COMMANDS = "commands.txt"
START = "start"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
SAVED = "saved.json"
LOG = "log.csv"
CURVES = "curves.png"
# All that a training writes besides its lock.
WRITTEN = (
    SETTINGS,
    TOKENIZER,
    TARGET_TOKENIZER,
    COMMANDS,
    START,
    CHECKPOINTS,
    TENSORBOARD,
    SAVED,
    LOG,
    CURVES,
)


class _OtherFormatError(ValueError):
    """A training is of a format that this version does not know."""


class RunFolder:
    """A translator's folder, with a folder `training` in it.

    Args:
        output: The folder.

    Attributes:
        has_removed: Whether an older training was removed from it.
    """

    def __init__(self, output: str):
        self.output = output
        self.has_removed = False
        self._lock = None  # the open file, while this process has the lock

    def path(self, *names: str) -> str:
        """A path in `training`."""
        return os.path.join(self.output, TRAINING, *names)

    def has_training(self) -> bool:
        """Whether a training has begun here."""
        return os.path.isfile(self.path(SETTINGS))

    def has_progress(self) -> bool:
        """Whether a training here has a checkpoint, or had one."""
        return bool(checkpoints_in(self.path(CHECKPOINTS))) or self.has_ended()

    def has_ended(self) -> bool:
        """Whether an epoch has ended here: it is logged, or its translator."""
        is_noted = os.path.exists(self.path(SAVED))
        return is_noted or self.epochs_logged() > 0

    @contextlib.contextmanager
    def locked(self):
        """Keeps other processes out; the system unlocks when this one ends.

        Once more inside, it has no effect.

        Raises:
            RuntimeError: If another process has the lock.
        """
        if self._lock is not None:
            yield
            return
        # Of a link, what it leads to.
        os.makedirs(os.path.realpath(self.path()), exist_ok=True)
        with open(self.path(LOCK), "a+") as file:
            try:
                has_locks = lock(file, wait=False)
            except BlockingIOError:
                file.seek(0)
                raise RuntimeError(
                    f"Another training is writing to {self.output}, process "
                    f"{file.read().strip()}. Wait until it has ended, or "
                    "choose another `--output`."
                ) from None
            if not has_locks:
                print(
                    f"The file system of {self.output} has no locks: make sure "
                    "that no other training writes there.",
                    file=sys.stderr,
                )
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            self._lock = file
            try:
                yield
            finally:
                self._lock = None

    def check_in_place(self):
        """Raises `RuntimeError` if the folder that was locked is elsewhere.

        Whatever is written then would make another folder of that name, or go
        into that of another training.
        """
        try:
            found = os.stat(self.path(LOCK))
        except (FileNotFoundError, NotADirectoryError):
            found = None
        ours = os.fstat(self._lock.fileno())
        if found is None or not os.path.samestat(found, ours):
            raise RuntimeError(
                f"{self.output} was moved, removed or replaced while a "
                "training wrote there. To go on from its last checkpoint, put "
                "it back and run the same command again."
            )

    def has_lock_file(self) -> bool:
        """Whether a training has locked it, which may still run."""
        return os.path.exists(self.path(LOCK))

    def check_free(self, overwrite: bool):
        """Raises `OSError` if nothing can be written there.

        `FileExistsError` if there is something to overwrite, or a folder
        `training` that something else has made, which is never overwritten.
        """
        began = self.has_lock_file()
        if not began and os.path.isdir(self.path()) and os.listdir(self.path()):
            raise FileExistsError(
                f"{self.path()!r} holds something other than a training, and "
                "nothing in it was touched. Choose another `--output`."
            )
        self.check_writable()
        try:
            check_free(self.output, overwrite)
        except FileExistsError:
            # Left by a process that ended before there was anything to lose.
            is_lossless = began and not self.has_progress()
            if not is_lossless or os.listdir(self.output) != [TRAINING]:
                raise

    def check_writable(self):
        """Raises `OSError` if nothing can be written there."""
        folders = [self.output, self.path(), self.path(CHECKPOINTS)]
        folders += [path for path, _, _ in os.walk(self.path(TENSORBOARD))]
        for path in folders:  # another user may have begun the training
            check_folder_to_write(path)

    def check_same(self, settings: dict, data: dict) -> dict:
        """Raises `ValueError` unless the training here has these settings.

        Returns:
            The content of `SETTINGS`.
        """
        path = self.path(SETTINGS)
        advice = "Pass `--overwrite` to start again."
        try:
            begun = read_json(path)
            self._check_format(begun.get("format", 1))  # older files have none
            old_settings = dict(begun["settings"])
            old_data = dict(begun["data"])
            old_places = dict(begun["places"])
        except _OtherFormatError:
            raise
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is damaged, or of another version: {error!r}. {advice}"
            ) from None
        # An option that there was not yet did what it does by default.
        defaults = TrainingOptions(self.output).settings()
        for name, value in settings.items():
            old = old_settings.get(name, defaults.get(name))
            # No epoch was scored yet, or another option determines it.
            is_unused = name not in old_settings and (
                name == "tokenize" or value is None
            )
            is_same_place = (
                bool(value)
                and name in old_places
                and old_places[name] == os.path.realpath(value)
            )
            if not (old == value or is_unused or is_same_place):
                begun_with = "the default" if old is None else repr(old)
                raise ValueError(
                    f"`{name}` must be what the training in {self.output} "
                    f"began with, {begun_with}. Received: {name}={value!r}. "
                    f"{self._advice()}"
                )
        for name, value in data.items():
            if old_data.get(name, value) != value:
                raise ValueError(
                    f"`{name}` must be the text that the training in "
                    f"{self.output} has used. Received: other text. "
                    f"{self._advice()}"
                )
        return begun

    def _advice(self):
        """How to train otherwise than the training here."""
        advice = "Pass `--overwrite` to start again"
        if os.path.exists(os.path.join(self.output, DESCRIPTION)):
            advice += (
                ", or go on from its translator elsewhere, with `--start-from "
                f"{shlex.quote(self.output)}` and another `--output`"
            )
        return f"{advice}."

    def _check_format(self, found):
        if found != FORMAT:
            raise _OtherFormatError(
                f"The training must be of format {FORMAT}. Received: "
                f"{self.path(SETTINGS)} of format {found!r}. Was it begun by a "
                "newer keras-transformer?"
            )

    def backend(self) -> str:
        """The backend of Keras that the training here began on."""
        begun = read_json(self.path(SETTINGS))
        return begun.get("backend", keras.backend.backend())

    def add_later(self, settings: dict, data: dict):
        """Records text, and how it is scored, that earlier epochs had not."""
        begun = self.check_same(settings, data)
        now = {
            **begun,
            "settings": settings | begun["settings"],
            "data": data | begun["data"],
        }
        if now != begun:
            self._write(now)

    def begin(self, settings: dict, data: dict, translator: Translator):
        """Writes what a training begins with; removes an older training."""
        new_start = self.path("start.new")
        remove(new_start)
        if settings["start_from"]:
            try:  # first, as the disk may be full
                translator.save(new_start)
            except BaseException:
                with contextlib.suppress(OSError):
                    remove(new_start)
                raise
        self.has_removed = self.has_progress()
        remove(self.path(SETTINGS))  # the rest alone is no training
        partial = tuple(f".{name}." for name in WRITTEN)
        for name in os.listdir(self.path()):
            if name in WRITTEN or name.startswith(partial):
                remove(self.path(name))
        if settings["start_from"]:
            os.rename(new_start, self.path(START))
        else:
            tokenizer = translator.tokenizer
            target_tokenizer = translator.target_tokenizer
            write_file(self.path(TOKENIZER), tokenizer.model)
            if target_tokenizer is not tokenizer:
                write_file(self.path(TARGET_TOKENIZER), target_tokenizer.model)
        begun = {
            "format": FORMAT,
            "keras_transformer": __version__,
            "backend": keras.backend.backend(),
            "settings": settings,
            # Absolute, as resolved where training began.
            "places": {
                name: os.path.realpath(settings[name])
                for name in PLACES
                if settings.get(name)
            },
            "data": data,
        }
        self._write(begun)

    def _write(self, begun):
        text = json.dumps(begun, indent=2) + "\n"
        write_file(self.path(SETTINGS), text.encode())

    def tokenizers(self) -> list[Tokenizer]:
        """The vocabulary that training began with, or one per side."""
        names = [TOKENIZER]
        if os.path.exists(self.path(TARGET_TOKENIZER)):
            names.append(TARGET_TOKENIZER)
        try:
            return [Tokenizer.load(self.path(name)) for name in names]
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(
                f"{error} Put back the vocabulary that the training in "
                f"{self.output} began with, or pass `--overwrite` to start "
                "again."
            ) from None

    def note_translator(self, row: dict, before: dict | None):
        """Notes whose translator is about to be saved here.

        Args:
            row: The row of its epoch.
            before: That of the one that it replaces, if of this training.
        """
        noted = {
            "row": row,
            "before": {"row": before, "sha256": self._weights_digest()},
        }
        write_file(self.path(SAVED), json.dumps(noted).encode() + b"\n")

    def note_saved(self):
        """Notes the weights of the translator that has been saved.

        Raises:
            OSError: If there is no note, or no translator.
            ValueError: If one of them is damaged.
        """
        noted = read_json(self.path(SAVED))
        noted["sha256"] = weights_digest(self.output)
        write_file(self.path(SAVED), json.dumps(noted).encode() + b"\n")

    def noted_translator(self) -> dict | None:
        """The row of the epoch whose translator is here, or was.

        The one that was noted last, unless it has not replaced the one before.
        `None` if there is none of this training, or no readable note.
        """
        try:
            noted = read_json(self.path(SAVED))
            row, before = noted["row"], noted["before"]
            if before["sha256"] == self._weights_digest():
                row = before["row"]
            return None if row is None else {**row, "epoch": int(row["epoch"])}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def check_translator(self):
        """Raises `FileExistsError` if another translator was put here.

        One that can be read, beside a note that can.
        """
        found = self._weights_digest()
        try:
            noted = read_json(self.path(SAVED))
            before, saved = noted["before"]["sha256"], noted.get("sha256")
        except (OSError, ValueError, KeyError, TypeError):
            return
        if found in (None, before, saved):
            return
        if saved is None:  # the process ended before it could note it
            self.note_saved()
            return
        raise FileExistsError(
            f"The translator in {self.output} is not the one that this "
            "training saved, and a further epoch may replace it. Move its "
            "files, all but the folder `training`, elsewhere to go on."
        )

    def _weights_digest(self):
        try:
            return weights_digest(self.output)
        except (OSError, ValueError):  # there is none, or it is damaged
            return None

    def log(self) -> str:
        """The training's log, empty without one."""
        try:
            with open(self.path(LOG), "rb") as file:
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def epochs_logged(self) -> int:
        """The number of epochs in the training's log."""
        return max(len(self.log().splitlines()) - 1, 0)  # without the header

    def add_command(self, command: str):
        """Appends the command line of this start to those before it."""
        lines = b""
        with contextlib.suppress(FileNotFoundError):
            with open(self.path(COMMANDS), "rb") as file:
                lines = file.read()
        # A file's name need not be UTF-8.
        line = f"{command}\n".encode(errors="surrogateescape")
        write_file(self.path(COMMANDS), lines + line)

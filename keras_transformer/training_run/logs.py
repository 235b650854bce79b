"""The results of a training's epochs, for programs and people to read."""

from keras_transformer.event_log import EventLog
from keras_transformer.system.atomic import write_file
from keras_transformer.system.picture import can_draw
from keras_transformer.training_run.curves import draw_curves
from keras_transformer.training_run.folder import CURVES
from keras_transformer.training_run.folder import LOG
from keras_transformer.training_run.folder import TENSORBOARD
from keras_transformer.training_run.folder import RunFolder
from keras_transformer.training_run.history import History


class Logs:
    """Writes results as CSV, for TensorBoard, and as a picture.

    Args:
        folder: The `RunFolder`.
    """

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self.event_logs = {
            part: EventLog(folder.path(TENSORBOARD, part))
            for part in ("train", "validation")
        }

    def write(self, history: History, epoch: int):
        """Writes the epochs from one on, which are new; the table has all."""
        self.folder.check_in_place()
        for row in history.rows[epoch:]:
            self._write_events(**row)
        write_file(self.folder.path(LOG), history.table().encode())
        if can_draw():
            draw_curves(self.folder.path(CURVES), history.rows)

    def _write_events(self, epoch, **values):
        for part, log in self.event_logs.items():
            of_part = {
                name.removeprefix("val_"): value
                for name, value in values.items()
                if name.startswith("val_") == (part == "validation")
            }
            if of_part:
                log.write(epoch, of_part)

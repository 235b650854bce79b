"""The results of a training's epochs, and which epoch is kept."""

import csv
import dataclasses
import io
import math

from keras_transformer.training_run.options import TrainingOptions


@dataclasses.dataclass
class History:
    """The results of each epoch, and the one whose translator is on disk.

    Args:
        options: Options that say which epoch is kept.
        rows: For each epoch its number from 0, as `"epoch"`, and values by
            name.

    Attributes:
        saved: The epoch, from 0, whose translator is on disk, or `None`.
    """

    options: TrainingOptions
    rows: list[dict]

    def __post_init__(self):
        self.saved = self.epoch_to_save()  # `SaveTranslator` sees to it

    def epoch_to_save(self) -> int | None:
        """The epoch, from 0, whose translator is to be on disk."""
        if not self.rows:
            return None
        scored = self.scored()
        if not self.options.keep_best or not scored:
            return self.rows[-1]["epoch"]
        best = max if self.options.more_is_better else min
        return best(scored, key=lambda row: row[self.options.monitor])["epoch"]

    def scored(self) -> list[dict]:
        """The rows of the epochs that `monitor` has a number for."""
        monitor = self.options.monitor
        return [
            row
            for row in self.rows
            if not math.isnan(row.get(monitor, math.nan))
        ]

    def table(self) -> str:
        """All epochs as CSV."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        file = io.StringIO()
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return file.getvalue()

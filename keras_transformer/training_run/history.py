"""The results of a training's epochs, and which epoch is kept."""

import csv
import dataclasses
import io
import json
import math

from keras_transformer.training_run.options import TrainingOptions


@dataclasses.dataclass
class History:
    """The results of each epoch, and the one whose translator is on disk.

    Args:
        options: Options that say which epoch is kept.
        rows: For each epoch its number from 0, as `"epoch"`, and values by
            name.
        saved: The row of the epoch whose translator was saved last, `None`
            without one. It is not in `rows` if its checkpoint was damaged.
    """

    options: TrainingOptions
    rows: list[dict]
    saved: dict | None = None

    def add(self, values: dict):
        """Adds an epoch, with what it ended with by name.

        Raises:
            ValueError: If its losses show that training has diverged.
        """
        _check_losses(values, self.rows)
        self.rows.append({"epoch": len(self.rows), **values})

    def epoch_to_save(self) -> int | None:
        """The epoch, from 0, whose translator is to be on disk."""
        if not self.rows:
            return None
        best = self.best_epoch() if self.options.keep_best else None
        return self.rows[-1]["epoch"] if best is None else best

    def is_saved(self) -> bool:
        """Whether the translator on disk is the one that is to be there."""
        epoch = self.epoch_to_save()
        return epoch is not None and _are_same(self.saved, self.rows[epoch])

    def has_saved_epoch(self) -> bool:
        """Whether the translator on disk is of an epoch that still counts."""
        return any(_are_same(self.saved, row) for row in self.rows)

    def best_epoch(self) -> int | None:
        """The first epoch, from 0, of those with the best `monitor`."""
        scored = self.scored()
        if not scored:
            return None
        best = max if self.options.more_is_better else min
        return best(scored, key=lambda row: row[self.options.monitor])["epoch"]

    def has_stalled(self) -> bool:
        """Whether `patience` epochs have followed the best one.

        If `monitor` never was a number, they are counted from its first epoch.
        """
        watched = [
            row["epoch"] for row in self.rows if self.options.monitor in row
        ]
        if not self.options.patience or not watched:
            return False
        best = self.best_epoch()
        best = watched[0] if best is None else best
        return sum(epoch > best for epoch in watched) >= self.options.patience

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


def _are_same(row, other):
    return json.dumps(row) == json.dumps(other)  # NaN is equal to itself here


def _check_losses(values, rows):
    """Raises `ValueError` if losses show that training has diverged.

    In float16 weights stay finite even then, as updates that overflow are
    skipped. But one skipped update is harmless, and makes the mean loss of its
    epoch NaN. So a second loss must not be finite either: that of validation
    or, without it, that of the epoch before.

    Args:
        values: Results of the epoch, by name.
        rows: Results of the epochs before.
    """
    loss, other = values["loss"], values.get("val_loss")
    if other is None:
        other = rows[-1]["loss"] if rows else 0.0
    if not (math.isfinite(loss) or math.isfinite(other)):
        raise ValueError(
            "Losses must be finite numbers to go on. Received: "
            f"{loss} in training, {other} in validation or the epoch before. "
            "Training has diverged: train again with a lower "
            "`learning_rate`, more `warmup_steps` or `clip_norm`."
        )

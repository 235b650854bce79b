"""How long a training lasts, and how its learning rate rises and falls."""

import dataclasses

import keras_transformer as kt


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings in which recipes differ.

    Attributes:
        normalize_first: Whether layers normalise before each sublayer.
        dropout: Share of activations that training drops.
        batches_per_update: Batches whose gradients make one update.
        most_updates: Most updates of a training, in whole epochs.
        peak_learning_rate: The highest learning rate.
        warmup_steps: Updates until the learning rate peaks.
        falls_to_zero: Whether the learning rate falls to 0 by the last update,
            along a cosine, rather than by the inverse square root of
            equation 3.
        averaged_epochs: Last epochs whose mean weights are kept.
        patience: Epochs without a lower validation loss after which training
            ends; `None` for no such limit.
        has_muon: Whether Muon updates the matrices of the layers; otherwise
            Adam updates all weights.
    """

    normalize_first: bool
    dropout: float
    batches_per_update: int
    most_updates: int
    peak_learning_rate: float
    warmup_steps: int
    falls_to_zero: bool
    averaged_epochs: int
    patience: int | None
    has_muon: bool

    def num_epochs(self, num_batches: int) -> int:
        """Most epochs of a training with this many batches per epoch."""
        return max(
            self.most_updates * self.batches_per_update // num_batches, 1
        )

    def optimizer(self, num_batches: int):
        """Makes the optimizer for epochs of this many batches."""
        schedule = self._schedule(num_batches)
        accumulated = None
        if self.batches_per_update > 1:
            accumulated = self.batches_per_update
        if self.has_muon:
            return kt.Muon(schedule, gradient_accumulation_steps=accumulated)
        return kt.Adam(
            schedule, epsilon=1e-8, gradient_accumulation_steps=accumulated
        )

    def _schedule(self, num_batches):
        total_steps = None
        if self.falls_to_zero:
            batches = self.num_epochs(num_batches) * num_batches
            updates = batches // self.batches_per_update
            total_steps = max(updates, self.warmup_steps + 1)
        return kt.WarmupSchedule(
            peak_learning_rate=self.peak_learning_rate,
            warmup_steps=self.warmup_steps,
            total_steps=total_steps,
        )


RECIPES = {
    "published": Recipe(
        normalize_first=False,
        dropout=0.3,
        batches_per_update=2,
        most_updates=8000,
        peak_learning_rate=0.005,
        warmup_steps=2000,
        falls_to_zero=False,
        averaged_epochs=10,
        patience=10,
        has_muon=False,
    ),
    # Normalises first: after each sublayer, it would learn more slowly.
    "hour": Recipe(
        normalize_first=True,
        dropout=0.35,
        batches_per_update=1,
        most_updates=8000,
        peak_learning_rate=0.01,
        warmup_steps=500,
        falls_to_zero=True,
        averaged_epochs=5,
        patience=None,
        has_muon=True,
    ),
}

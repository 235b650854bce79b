"""How long a training takes, and how its learning rate rises and falls."""

import dataclasses

import keras_transformer as kt


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What the recipes differ in.

    Attributes:
        normalize_first: Whether layers normalise before each sublayer.
        dropout: Share of activations that training leaves out.
        batches_per_update: Batches whose gradients are one update's.
        most_updates: Updates that training has at most, in whole epochs.
        peak_learning_rate: The highest.
        warmup_steps: Updates until it is reached.
        falls_to_zero: Whether it falls to 0 with the last update, along a
            cosine, rather than by the inverse square root of equation 3.
        averaged_epochs: Last epochs whose mean of the weights is kept.
        patience: Epochs without a lower validation loss that end training;
            `None` for none.
        has_muon: Whether Muon updates the matrices of the layers, rather than
            Adam all weights.
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
        """Epochs of so many batches that training has at most."""
        return max(
            self.most_updates * self.batches_per_update // num_batches, 1
        )

    def optimizer(self, num_batches: int):
        """Makes the optimizer for epochs of so many batches."""
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
    # Normalised after each sublayer, it learns slower.
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

"""The model of a training, and how it learns: section 5.3 and later work."""

import keras

from keras_transformer.training import Adam
from keras_transformer.training import LabelSmoothedCrossentropy
from keras_transformer.training import LossScaleOptimizer
from keras_transformer.training import Muon
from keras_transformer.training import Perplexity
from keras_transformer.training import WarmupSchedule
from keras_transformer.training import WeightAveraging
from keras_transformer.training_run.distribution import Distribution
from keras_transformer.training_run.options import TrainingOptions
from keras_transformer.training_run.start import Start
from keras_transformer.transformer import Transformer
from keras_transformer.weights import assign_named_weights


def make_model(
    options: TrainingOptions,
    start: Start,
    weights,
    distribution: Distribution,
    num_updates: int,
) -> Transformer:
    """Makes the model of a training, ready for `fit`.

    Args:
        options: The options of the training.
        start: The model that it starts with.
        weights: Function that returns the weights to start from, by name.
        distribution: The devices that the model is on.
        num_updates: Updates until training ends.

    Raises:
        ValueError: If all parts of the model to start with are frozen.
    """
    overrides = {"dtype": options.dtype}
    if options.rematerialize or start.config().get("rematerialize"):
        overrides["rematerialize"] = options.rematerialize
    for name in ("dropout", "attention_dropout"):
        if getattr(options, name) is not None:
            overrides[name] = getattr(options, name)
    with distribution.scope():
        model = start.make_model(**overrides)
        if options.start_from:
            assign_named_weights(model, weights(), options.start_from)
        if not model.trainable_variables:
            raise ValueError(
                "`start_from` must have a part that is not frozen. Received: "
                f"{options.start_from}, where all are. Load it as a "
                "`Translator`, set `trainable = True` on its model and on the "
                "parts to train, and save it elsewhere."
            )
        model.compile(
            optimizer=_optimizer(options, model.hidden_dim, num_updates),
            loss=LabelSmoothedCrossentropy(options.label_smoothing),
            weighted_metrics=[Perplexity()],
            # Text has many lengths, and XLA would compile for each of them.
            jit_compile=keras.backend.backend() == "jax",
        )
        model.optimizer.build(model.trainable_variables)
    return model


def make_averaging(options: TrainingOptions) -> WeightAveraging | None:
    """Makes the average of weights to validate and save, or `None`."""
    if not options.average_last and not options.average_decay:
        return None
    return WeightAveraging(
        last=options.average_last or None,
        decay=options.average_decay or None,
        every=options.average_every or None,
    )


def _optimizer(options, hidden_dim, num_updates):
    make = Muon if options.optimizer == "muon" else Adam
    optimizer = make(
        _schedule(options, hidden_dim, num_updates),
        global_clipnorm=options.clip_norm or None,
        gradient_accumulation_steps=(
            options.accumulate if options.accumulate > 1 else None
        ),
    )
    if options.dtype == "mixed_float16":
        optimizer = LossScaleOptimizer(optimizer)
    return optimizer


def _schedule(options, hidden_dim, num_updates):
    """The learning rate of equation 3, or one that falls to 0."""
    total_steps = None
    if options.decay == "cosine":
        # A training too short to warm up is warned about, not refused.
        total_steps = max(num_updates, options.warmup_steps + 1)
    return WarmupSchedule(
        hidden_dim=hidden_dim if options.learning_rate is None else None,
        warmup_steps=options.warmup_steps,
        peak_learning_rate=options.learning_rate,
        total_steps=total_steps,
    )

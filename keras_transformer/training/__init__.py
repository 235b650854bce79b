"""What `compile` and `fit` need: schedule, loss and metrics, section 5."""

from keras_transformer.training.loss import (
    LabelSmoothedCrossentropy as LabelSmoothedCrossentropy,
)
from keras_transformer.training.metrics import Perplexity as Perplexity
from keras_transformer.training.metrics import TokenAccuracy as TokenAccuracy
from keras_transformer.training.schedule import WarmupSchedule as WarmupSchedule

"""What `compile` and `fit` need: section 5, and the averages of section 6.1."""

from keras_transformer.training.adam import Adam as Adam
from keras_transformer.training.averaging import (
    WeightAveraging as WeightAveraging,
)
from keras_transformer.training.loss import (
    LabelSmoothedCrossentropy as LabelSmoothedCrossentropy,
)
from keras_transformer.training.loss_scale import (
    LossScaleOptimizer as LossScaleOptimizer,
)
from keras_transformer.training.metrics import Perplexity as Perplexity
from keras_transformer.training.metrics import TokenAccuracy as TokenAccuracy
from keras_transformer.training.muon import Muon as Muon
from keras_transformer.training.schedule import WarmupSchedule as WarmupSchedule
from keras_transformer.training.updates import Updates as Updates

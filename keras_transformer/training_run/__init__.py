"""What `keras-transformer train` does: from two text files to a translator."""

from keras_transformer.training_run.run import TrainingRun as TrainingRun

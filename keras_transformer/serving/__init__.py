"""Exported models: what their graphs contain, and how files are written."""

from keras_transformer.serving.saved_model import (
    export_saved_model as export_saved_model,
)

"""`python -m keras_transformer` is the `keras-transformer` command."""

from keras_transformer.cli import main

main()

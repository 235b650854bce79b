"""`python -m keras_transformer` is the `keras-transformer` command."""

from keras_transformer.cli import main

if __name__ == "__main__":
    main()

"""The `keras-transformer` command.

Heavy imports wait until a command runs, so that `--help` answers at once.
"""

from keras_transformer.cli.commands import app as app
from keras_transformer.cli.commands import main as main

"""Event files for TensorBoard, written without TensorBoard."""

import errno
import os

import tensorflow as tf


class EventLog:
    """Writes an event file into a TensorBoard log folder.

    `tf.summary.scalar` and `tf.summary.text` need TensorBoard installed, which
    only whoever reads the log should need.

    Args:
        folder: The folder, made with the first values.
    """

    def __init__(self, folder):
        self.folder = os.fspath(folder)
        self._writer = None

    def write(self, step: int, scalars=None, texts=None):
        """Adds numbers and Markdown texts, by tag, at a step.

        Raises:
            OSError: If the disk is full.
        """
        try:
            self._write(step, scalars, texts)
        except tf.errors.ResourceExhaustedError as error:
            raise OSError(
                errno.ENOSPC, os.strerror(errno.ENOSPC), self.folder
            ) from error

    def _write(self, step, scalars, texts):
        if self._writer is None:
            folder = os.fsencode(self.folder)  # its name may not be UTF-8
            self._writer = tf.summary.create_file_writer(folder)
        with self._writer.as_default():
            for tag, value in (scalars or {}).items():
                value = tf.cast(value, tf.float32)
                tf.summary.write(tag, value, step, _metadata("scalars"))
            for tag, text in (texts or {}).items():
                text = tf.constant(text)
                tf.summary.write(tag, text, step, _metadata("text"))
        self._writer.flush()


def _metadata(plugin):
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    return metadata

"""What TensorBoard shows, written without TensorBoard."""

import os

import tensorflow as tf


def write_events(folder, step: int, scalars=None, texts=None):
    """Adds an event file to a folder of TensorBoard's.

    `tf.summary.scalar` and `tf.summary.text` are TensorBoard's own and need
    it installed; only the one who looks at the log does.

    Args:
        folder: The folder, made where it is missing.
        step: Where on the axis the values belong.
        scalars: Numbers by tag.
        texts: Markdown by tag.
    """
    with tf.summary.create_file_writer(os.fspath(folder)).as_default():
        for tag, value in (scalars or {}).items():
            value = tf.cast(value, tf.float32)
            tf.summary.write(tag, value, step, _metadata("scalars"))
        for tag, text in (texts or {}).items():
            tf.summary.write(tag, tf.constant(text), step, _metadata("text"))


def _metadata(plugin):
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    return metadata

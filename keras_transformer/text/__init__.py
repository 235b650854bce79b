"""Text in and out: vocabularies, and batches for training."""

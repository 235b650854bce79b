"""What `keras-transformer train` does: from two text files to a translator."""

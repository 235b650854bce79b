"""What the operating system has: files, locks, signals, cores, a terminal.

Nothing here knows of text, models or Keras.
"""

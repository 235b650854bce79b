"""What the operating system has: files, locks, signals, cores, a terminal.

Nothing here knows of models, and nothing imports Keras until it is used.
"""

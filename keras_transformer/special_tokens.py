"""Ids of the special tokens, the same in every vocabulary of this library."""

PAD_TOKEN_ID = 0
UNKNOWN_TOKEN_ID = 1
START_TOKEN_ID = 2
END_TOKEN_ID = 3

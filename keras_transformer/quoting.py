"""Values in messages."""

import reprlib

_quote = reprlib.Repr()
_quote.maxlevel = 3
_quote.maxstring = _quote.maxother = 200


def quoted(value) -> str:
    """The representation of a value, cut short where it is long or deep.

    With aliases, a few lines of a YAML file stand for lists of any size.
    """
    return _quote.repr(value)

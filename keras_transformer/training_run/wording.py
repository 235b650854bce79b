"""The wording of messages."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """The number with the noun, in the plural unless it is one."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"

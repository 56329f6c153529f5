"""Rows that the scripts of the console answer with: what is in them may be anything that somebody wrote to Redis."""

from typing import Final

PIECE: Final = 16
"""Entries per script call: the script holds their bodies, which may be large."""


def text(part: bytes | int) -> str:
    """One part of a row as text."""
    return part.decode(errors="replace") if isinstance(part, bytes) else str(part)


def number(shown: str) -> int | None:
    """The whole number that `shown` is; None where it is none."""
    return int(shown) if shown.isascii() and shown.isdigit() and len(shown) <= 18 else None

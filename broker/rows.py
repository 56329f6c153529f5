"""Parsing for rows from the console's scripts, which may contain anything that was written to Redis."""

from typing import Final

PIECE: Final = 16
"""Entries per script call: the script holds their bodies, which may be large."""


def text(part: bytes | int) -> str:
    """Return one part of a row as text."""
    return part.decode(errors="replace") if isinstance(part, bytes) else str(part)


def number(shown: str) -> int | None:
    """Return `shown` as a whole number; None if it is not one."""
    return int(shown) if shown.isascii() and shown.isdigit() and len(shown) <= 18 else None

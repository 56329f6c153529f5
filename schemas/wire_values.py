"""Checks on the single values of a decoded event: a value of the wrong type makes it no event at all.

All functions raise TypeError, which the event's decoder turns into InvalidRequest.
"""

from typing import Any

from orcastream.schemas.errors import shown
from orcastream.schemas.limits import MAX_SEED, MIN_SEED


def integer(value: Any) -> int:
    """Return a count or a position: from 0 to 63 bits, which every reader can hold."""
    if type(value) is not int or not 0 <= value <= MAX_SEED:
        raise TypeError(f"{shown(value)} is not an integer of at most 63 bits")
    return value


def seed(value: Any) -> int:
    """Return a seed: a signed integer of 64 bits, which every engine can hold."""
    if type(value) is not int or not MIN_SEED <= value <= MAX_SEED:
        raise TypeError(f"{shown(value)} is not a signed integer of 64 bits")
    return value


def number(value: Any) -> float:
    """Return a finite number that is not negative."""
    if type(value) not in (int, float) or not 0 <= value <= MAX_SEED:
        raise TypeError(f"{shown(value)} is not a finite number")
    found: float = value
    return found


def text(value: Any) -> str:
    """Return text that can be written again as UTF-8: JSON may contain lone surrogates."""
    if type(value) is not str:
        raise TypeError(f"{shown(value)} is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TypeError(f"{shown(value)} is not UTF-8 text") from None
    return value

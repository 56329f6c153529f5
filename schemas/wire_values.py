"""Single values of an event as they were read: each of the type that the contract says, or no event at all.

All raise TypeError; whoever decodes the event turns that into InvalidRequest.
"""

from typing import Any

from orcastream.schemas.errors import shown
from orcastream.schemas.limits import MAX_SEED


def integer(value: Any) -> int:
    """A count, a position or a seed: from 0 to 63 bits, which every reader and every engine can hold."""
    if type(value) is not int or not 0 <= value <= MAX_SEED:
        raise TypeError(f"{shown(value)} is no integer of at most 63 bits")
    return value


def number(value: Any) -> float:
    """A finite number that is not negative."""
    if type(value) not in (int, float) or not 0 <= value <= MAX_SEED:
        raise TypeError(f"{shown(value)} is no finite number")
    found: float = value
    return found


def text(value: Any) -> str:
    """Text that can be written again as UTF-8: JSON may bring lone surrogates."""
    if type(value) is not str:
        raise TypeError(f"{shown(value)} is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TypeError(f"{shown(value)} is no UTF-8 text") from None
    return value

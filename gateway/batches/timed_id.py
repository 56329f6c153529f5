"""Ids that begin with the time of creation, so that a page of a list can follow an object that is gone."""

import re
from secrets import token_hex
from typing import Final

_UNIQUE_BYTES: Final = 10
TIMED_ID: Final = re.compile(rf"(?:file-|batch_)[0-9a-f]{{{12 + 2 * _UNIQUE_BYTES}}}(?:-[a-z]+)?")
"""Such ids with the same prefix sort by age."""


def timed_id(prefix: str, created_ms: int, unique: str | None = None) -> str:
    """Return the id of an object created at that time; `unique`: its end, random by default."""
    return f"{prefix}{created_ms:012x}{unique or token_hex(_UNIQUE_BYTES)}"


def unique_part(timed: str) -> str:
    """Return the random part of an id."""
    return timed[-2 * _UNIQUE_BYTES :]

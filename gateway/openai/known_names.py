"""Checks the names in an object of a body: unknown names are refused, never ignored."""

from collections.abc import Mapping
from typing import Any, Final

from orcastream.schemas.errors import InvalidRequest

_EMPTY: Final[tuple[Any, ...]] = (None, [], {}, "")


def check_names(
    field: str, value: Mapping[str, Any], known: tuple[str, ...], extras: frozenset[str] = frozenset()
) -> None:
    """Raise InvalidRequest naming a member that is neither `known` nor one of `extras` with an empty value."""
    for name, each in value.items():
        if name not in known and not (name in extras and each in _EMPTY):
            raise InvalidRequest(f"{field}.{name}", each, f"{', '.join(known)}; nothing else is implemented")

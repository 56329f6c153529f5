"""The names in an object of a body: what is not known is refused, never passed over."""

from collections.abc import Mapping
from typing import Any, Final

from orcastream.schemas.errors import InvalidRequest

_EMPTY: Final[tuple[Any, ...]] = (None, [], {}, "")


def check_names(
    field: str, value: Mapping[str, Any], known: tuple[str, ...], extras: frozenset[str] = frozenset()
) -> None:
    """InvalidRequest naming what is neither `known` nor, of `extras`, empty."""
    for name, each in value.items():
        if name not in known and not (name in extras and each in _EMPTY):
            raise InvalidRequest(f"{field}.{name}", each, f"{', '.join(known)}; nothing else is implemented")

"""The query of a URL: unknown parameters are refused, never ignored."""

import re
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request

from orcastream.gateway.http.url_secrets import without_keys
from orcastream.schemas.errors import InvalidRequest

_DIGITS: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_NAME: Final = re.compile(r"(?!sk-)[a-z]{1,20}([_-][a-z]{1,20}){0,3}")


def check_query(request: Request, *known: str, repeatable: Sequence[str] = ()) -> None:
    """Raise InvalidRequest naming the first parameter that is unknown, or repeated although not `repeatable`.

    Quotes only plain names, because people put API keys into queries.
    """
    known = (*known, *repeatable)
    allowed = f"{', '.join(known)}, once each" if known else "no parameters in the query"
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known or (name in seen and name not in repeatable):
            raise InvalidRequest(name if _NAME.fullmatch(name) else "query", "a parameter", allowed)
        seen.add(name)


def read_number(request: Request, name: str, *, least: int, most: int) -> int | None:
    """Return a whole-number parameter; None if absent."""
    value = request.query_params.get(name)
    if value is None:
        return None
    if not _DIGITS.fullmatch(value) or not least <= int(value) <= most:
        raise InvalidRequest(name, without_keys(value), f"a number from {least} to {most}")
    return int(value)


def read_flag(request: Request, name: str) -> bool:
    """Return a parameter that is true or false; false if absent."""
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(name, without_keys(value), "true, false")
    return value == "true"

"""What pages of other origins may do and read, if the settings allow them to use the gateway."""

from collections.abc import Collection
from typing import Final

from orcastream.gateway.http.request_id import REQUEST_ID

ANY: Final = "*"
METHODS: Final = ("GET", "POST", "DELETE")
EXPOSED_HEADERS: Final = ("Retry-After", REQUEST_ID, "X-Should-Retry")


def readable_by(origin: str | None, allowed: Collection[str]) -> dict[str, str]:
    """Return the headers that let a page read an answer which no middleware sees; none if its origin is not allowed."""
    exposed = {"Access-Control-Expose-Headers": ", ".join(EXPOSED_HEADERS)}
    if ANY in allowed:
        return {"Access-Control-Allow-Origin": ANY, **exposed}
    if origin is None or origin not in allowed:
        return {}
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", **exposed}

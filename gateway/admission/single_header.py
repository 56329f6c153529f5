"""Headers that a request may set once: of several values, this service and a proxy might take different ones."""

from starlette.datastructures import Headers

from orcastream.schemas.errors import InvalidRequest


def single_header(headers: Headers, name: str) -> str | None:
    """Return the value of a header; None if absent. Raises InvalidRequest if it has several values."""
    values = list(dict.fromkeys(headers.getlist(name)))
    if len(values) > 1:
        raise InvalidRequest(name, f"{len(values)} different values", "one")
    return values[0] if values else None

"""The query of a URL: what it may say, and nothing else in it is ignored."""

from starlette.requests import Request

from schemas.errors import InvalidRequest


def check_query(request: Request, *known: str) -> None:
    """InvalidRequest naming the first parameter that is not `known`, or that stands more than once."""
    allowed = f"{', '.join(known)}, once each" if known else "no parameters in the query"
    seen: set[str] = set()
    for name, value in request.query_params.multi_items():
        if name not in known or name in seen:
            raise InvalidRequest(name, value, allowed)
        seen.add(name)


def read_flag(request: Request, name: str) -> bool:
    """A parameter that is true or false; false where it is not there."""
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(name, value, "true, false")
    return value == "true"

"""The answers with which a connection ends before a request reaches its handler."""

import json
from collections.abc import Collection, Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from orcastream.gateway.errors import ApiError, unavailable
from orcastream.gateway.http.arrival import MAX_HEADER_BYTES
from orcastream.gateway.http.backlog import MUCH_BYTES
from orcastream.gateway.http.cross_origin import readable_by
from orcastream.gateway.http.request_id import REQUEST_ID, new_request_id


def headers_too_large() -> ApiError:
    message = f"The headers are too large; allowed: at most {MAX_HEADER_BYTES} bytes."
    return ApiError(431, message, code="headers_too_large")


def unknown_expectation() -> ApiError:
    """417 for a header Expect that nobody here can meet (RFC 9110, section 10.1.1)."""
    return ApiError(417, "The header Expect is unknown; allowed: 100-continue.", code="unknown_expectation")


def not_in_time(what: str, timeout_s: float) -> ApiError:
    """408 for headers or a body that did not arrive in time."""
    return ApiError(408, f"The {what} did not arrive within {timeout_s:g} s.", code=f"{what}_timeout")


def too_much_behind(held_s: float) -> ApiError:
    """503 for requests behind one whose answer takes so long that nothing more of its connection was read."""
    told = f"The requests before it kept more than {MUCH_BYTES} bytes on this connection waiting for {held_s:g} s."
    return unavailable(told, "connection_full")


def whole_answer(error: ApiError, arrived: Iterable[tuple[bytes, bytes]], cors_origins: Collection[str]) -> bytes:
    """Return a whole answer, after which the connection is closed, to a request of which these headers have arrived."""
    body = json.dumps(error.body()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    origin = next((value.decode("latin-1") for name, value in arrived if name == b"origin"), None)
    headers |= {REQUEST_ID: new_request_id(), **error.headers, **readable_by(origin, cors_origins)}
    lines = [f"{name.lower()}: {value}\r\n" for name, value in headers.items()]
    return STATUS_LINE[error.status] + "".join(lines).encode() + b"\r\n" + body

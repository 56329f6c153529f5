"""Reads request bodies and bounds the memory that all of them take at once."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.datastructures import Headers
from starlette.requests import Request

from orcastream.gateway.errors import ApiError, invalid, unavailable
from orcastream.schemas.errors import InvalidRequest


class BodyMemory:
    """Bounds the bytes of all bodies that are being received or parsed, including those of slow clients."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    @asynccontextmanager
    async def body_of(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the whole body of a request; it counts until the context exits.

        Raises ApiError 503 if there is no room for it, 400 if it is compressed.
        """
        check_encoding(request.headers)
        parts: list[bytes] = []
        counted = 0
        try:
            async for part in request.stream():
                if part and self.held_bytes + len(part) > self._max_bytes:
                    raise _full()
                parts.append(part)
                counted += len(part)
                self.held_bytes += len(part)
            raw = b"".join(parts)
            parts.clear()
            yield raw
        finally:
            self.held_bytes -= counted

    @contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """Reserve `num_bytes` for a body that is passed on while it arrives.

        Raises ApiError 503 if there is no room.
        """
        if self.held_bytes + num_bytes > self._max_bytes:
            raise _full()
        self.held_bytes += num_bytes
        try:
            yield
        finally:
            self.held_bytes -= num_bytes


def check_encoding(headers: Headers) -> None:
    """Raise ApiError 400 for a compressed body: nothing here decompresses it, and limits would miss its real size."""
    for name, plain in (("Content-Encoding", "identity"), ("Transfer-Encoding", "chunked")):
        encoding = ", ".join(headers.getlist(name))
        if encoding.strip().lower() not in ("", plain):
            raise invalid(InvalidRequest(name, encoding, f"{plain}: send the body uncompressed"))


def _full() -> ApiError:
    return unavailable("The gateway is reading as many bodies as its memory allows.", "bodies_full")

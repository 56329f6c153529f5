"""Bodies on their way from their clients to whoever parses them, and how much of them is held at once."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.datastructures import Headers
from starlette.requests import Request

from orcastream.gateway.errors import ApiError, invalid, unavailable
from orcastream.schemas.errors import InvalidRequest


class BodyMemory:
    """Bounds the bytes of all bodies that are being received or read, those of clients that send slowly among them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    @asynccontextmanager
    async def body_of(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body of a request, which counts until this is left.

        ApiError 503 where there is no room for it, 400 where it is encoded.
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
        """What a body needs at most that is passed on while it comes. ApiError 503 where there is no room for it."""
        if self.held_bytes + num_bytes > self._max_bytes:
            raise _full()
        self.held_bytes += num_bytes
        try:
            yield
        finally:
            self.held_bytes -= num_bytes


def check_encoding(headers: Headers) -> None:
    """ApiError 400 for a body that is compressed: nothing here takes it apart, and no limit would count its bytes."""
    encoding = headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise invalid(InvalidRequest("Content-Encoding", encoding, "identity: bodies come as they are"))


def _full() -> ApiError:
    return unavailable("The gateway is reading as many bodies as it has memory for.", "bodies_full")

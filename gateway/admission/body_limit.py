"""Rejects request bodies over a limit, announced or not, before anything stores them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orcastream.gateway.errors import ApiError, body_too_large

_DIGITS = 18


def announced_in(content_length: bytes) -> int | None:
    """Return the bytes that a Content-Length announces (the first digits of a huge number); None if it is invalid."""
    if not content_length.isdigit():
        return None
    return int(content_length.lstrip(b"0")[:_DIGITS] or 0)  # int() refuses thousands of digits, even zeros


class _TooLarge(Exception):
    """The body exceeded the limit while it was read."""


class BodyLimit:
    """ASGI middleware: 413 by Content-Length at once, or as soon as a chunked body exceeds the limit."""

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        refused: Callable[[ApiError], None],
        larger: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Call `refused` with each error before it is sent; `larger` maps paths to their own limits."""
        self._app = app
        self._refused = refused
        self._max_body_bytes = max_body_bytes
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most_bytes = self._larger.get(scope["path"], self._max_body_bytes)
        announced_bytes = announced_in(dict(scope["headers"]).get(b"content-length", b""))
        if announced_bytes is not None and announced_bytes > most_bytes:
            await self._refuse(scope, receive, send, most_bytes)
            return
        seen_bytes = 0

        async def counted() -> Message:
            nonlocal seen_bytes
            message = await receive()
            if message["type"] == "http.request":
                seen_bytes += len(message.get("body", b""))
                if seen_bytes > most_bytes:
                    raise _TooLarge
            return message

        try:
            await self._app(scope, counted, send)
        except _TooLarge:
            await self._refuse(scope, receive, send, most_bytes)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, most_bytes: int) -> None:
        error = body_too_large(most_bytes)
        self._refused(error)
        await JSONResponse(error.body(), status_code=error.status)(scope, receive, send)

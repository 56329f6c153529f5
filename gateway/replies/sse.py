"""Server-sent events: how they are written, and the response that streams them until the client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from orcastream.gateway.openai.encoded_json import encoded

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b"\n"
"""An empty line, which clients ignore. Many take a comment for an event: they parse every other line as JSON."""
_HEADERS: Final[dict[str, str]] = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SERVERS_SEND = "orcastream.send"
"""Key of the server's own `send` in a request's scope: middleware around it inspects the begin and end of an answer."""


def event(data: Mapping[str, Any]) -> bytes:
    """Return one event."""
    return b"data: %b\n\n" % encoded(data)


def head_of_stream() -> Response:
    """Return the answer to HEAD at the address of a stream: its headers, without reading anything."""
    response = Response(headers=_HEADERS, media_type=EventStream.media_type)
    del response.headers["content-length"]
    return response


class EventStream(Response):
    """A response that writes what `events` yields, until it ends or the client leaves.

    `closed` is always awaited at the end, with `left` true if the client left before the end.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], *, closed: Callable[..., Awaitable[None]]) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        writing = asyncio.ensure_future(self._write(send, scope.get(SERVERS_SEND, send)))
        leaving = asyncio.ensure_future(disconnected(receive))
        left = True
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
            left = not writing.done() or isinstance(writing.exception(), OSError)
        finally:
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)
            await self._closed(left=left)
        if not left:
            writing.result()

    async def _write(self, send: Send, send_part: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events):
            async for part in self._events:
                await send_part({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def disconnected(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass

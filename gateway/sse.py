"""Server-sent events: how they are written, and the response that carries them until the client goes away."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def event(data: Mapping[str, Any], event_id: str | None = None) -> bytes:
    """One event; `event_id` is what a client sends back as Last-Event-ID to go on behind it."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def comment(text: str) -> bytes:
    """A line that clients skip."""
    return f": {' '.join(text.split())}\n\n".encode()


class EventStream:
    """An ASGI response that writes what `produce` yields. `gone` is awaited if the client leaves before the end."""

    def __init__(
        self,
        produce: AsyncIterator[bytes],
        *,
        headers: Mapping[str, str],
        gone: Callable[[], Awaitable[None]],
    ) -> None:
        self._produce = produce
        self._headers = headers
        self._gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if writing.done() and not isinstance(writing.exception(), OSError):
                writing.result()
            else:
                await self._gone()
        finally:
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        fixed = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        headers = [(name.lower().encode(), value.encode()) for name, value in {**fixed, **self._headers}.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in self._produce:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass

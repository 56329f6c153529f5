"""An HTTP server on its own port that sends the responses that a test scripts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The parts of a body, each a chunk, then its end, unless it `hangs` or is `cut`."""

    parts: Sequence[bytes]
    status: int = 200
    hangs: bool = False
    cut: bool = False


Says = Callable[[dict[str, str], dict[str, Any]], Answer]
"""From a request's headers, by their names in small letters, and its body; {} where it has none."""


@asynccontextmanager
async def scripted_gateway(says: Says) -> AsyncIterator[str]:
    """Serve scripted responses; yield the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _answered(says, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _answered(says: Says, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Read a request and send the scripted response; return whether another may follow on this connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    answer = says(headers, json.loads(body or b"{}"))
    writer.write(b"HTTP/1.1 %d Said\r\nTransfer-Encoding: chunked\r\n\r\n" % answer.status)
    for part in answer.parts:
        writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        await writer.drain()
    if answer.hangs:
        await reader.read()
    elif not answer.cut:
        writer.write(b"0\r\n\r\n")
    return not (answer.hangs or answer.cut)

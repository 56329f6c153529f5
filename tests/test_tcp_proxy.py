"""The proxy in front of Redis: connections that arrive while it stops accepting them."""

import asyncio
import gc
from contextlib import suppress

import pytest

from tests.tcp_proxy import TcpProxy


async def _say(port: int) -> None:
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"hello")
            await reader.read()
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


@pytest.mark.parametrize("turns", range(12))
async def test_connections_that_arrive_while_refusing_are_closed(turns: int) -> None:
    """In whatever state the event loop has them: the garbage collector would report a connection left open."""
    async with await asyncio.start_server(_answer, "127.0.0.1", 0) as target:
        proxy = TcpProxy(target.sockets[0].getsockname()[1])
        for _ in range(20):
            await proxy.listen()
            clients = [asyncio.create_task(_say(proxy.port)) for _ in range(8)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await proxy.refuse()
            async with asyncio.timeout(30):
                await asyncio.gather(*clients)
    gc.collect()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(100):
            writer.write(data)
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()

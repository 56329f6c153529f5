"""The proxy of the suite: what it delays arrives late, but arrives."""

import asyncio

from tests.chaos.proxy import Proxy
from tests.ports import free_port


async def test_delayed_commands_arrive_after_their_sender_has_gone() -> None:
    arrived = asyncio.Queue[bytes]()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            arrived.put_nowait(data)
        writer.close()

    async with await asyncio.start_server(receive, "127.0.0.1", 0) as target:
        proxy = Proxy(target.sockets[0].getsockname()[1], free_port())
        await proxy.listen()
        _, first = await asyncio.open_connection("127.0.0.1", proxy.port)
        first.write(b"before")
        assert await arrived.get() == b"before"
        async with proxy.delay(1):
            first.write(b"late")
            await first.drain()
            first.close()
            _, second = await asyncio.open_connection("127.0.0.1", proxy.port)
            second.write(b"in time")
            assert await arrived.get() == b"in time"
        assert await arrived.get() == b"late"
        second.close()
        await proxy.refuse()

"""A TCP proxy between the services and Redis: it refuses connections, and cuts them in mid-command."""

import asyncio
from contextlib import suppress

_CHUNK_BYTES = 65536


class Proxy:
    """Forwards bytes both ways between `port` and the server's."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._pairs: set[asyncio.Task[None]] = set()
        self._num_to_cut = {"commands": 0, "replies": 0}

    async def listen(self) -> None:
        """Take connections, as it may do already."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def refuse(self) -> None:
        """Cut all connections, and refuse new ones until `listen`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut_all()

    def cut(self, which: str, count: int) -> None:
        """Of the next `count` chunks of `commands`, or of `replies`, let half through, and cut those connections."""
        self._num_to_cut[which] = count

    async def close(self) -> None:
        """End."""
        await self.refuse()

    async def _cut_all(self) -> None:
        pairs = list(self._pairs)
        for pair in pairs:
            pair.cancel()
        await asyncio.gather(*pairs, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pairs.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # cut on purpose; a cancelled handler would be reported as an error
        finally:
            self._pairs.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        pumps = [
            asyncio.create_task(self._pump(reader, up_writer, which="commands")),
            asyncio.create_task(self._pump(up_reader, writer, which="replies")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for one in (writer, up_writer):
                one.transport.abort()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, which: str) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                if self._num_to_cut[which] > 0:
                    self._num_to_cut[which] -= 1
                    sink.write(data[: len(data) // 2])
                    with suppress(TimeoutError):
                        await asyncio.wait_for(sink.drain(), 1)
                    return
                sink.write(data)
                await sink.drain()

"""A TCP proxy whose subclasses decide what of a piece arrives, and where connections break."""

import asyncio
from contextlib import suppress

_PIECE_BYTES = 65536
_LAST_WORDS_S = 1.0


class TcpProxy:
    """Forwards bytes both ways between `port` (0: a free one, known once it listens) and `target_port`."""

    def __init__(self, target_port: int, port: int = 0) -> None:
        self.port = port
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._pairs: set[asyncio.Task[None]] = set()
        self._num_connections = 0

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        """What of `data` arrives, and whether its connection (numbered from 0) is cut behind it."""
        return data, False

    async def listen(self) -> None:
        """Take connections, as it may do already."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Cut all connections, and refuse new ones until `listen`."""
        if self._server is not None:
            self._server.close()
            self._server = None
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
        number = self._num_connections
        self._num_connections += 1
        pumps = [
            asyncio.create_task(self._pump(reader, up_writer, number, reply=False)),
            asyncio.create_task(self._pump(up_reader, writer, number, reply=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for one in (writer, up_writer):
                one.transport.abort()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, number: int, *, reply: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(_PIECE_BYTES):
                arrives, cut = self.let_through(data, number, reply=reply)
                sink.write(arrives)
                if cut:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LAST_WORDS_S):
                            await sink.drain()
                    return
                await sink.drain()

"""A TCP proxy whose subclasses decide how much of a piece arrives, and where connections break."""

import asyncio
import socket
from contextlib import suppress

_PIECE_BYTES = 65536
_LAST_WORDS_S = 1.0
_BACKLOG = 100
_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TcpProxy:
    """Forwards bytes both ways between `port` (0: a free one, known once the proxy listens) and `target_port`."""

    def __init__(self, target_port: int, port: int = 0) -> None:
        self.port = port
        self._target_port = target_port
        self._listening: socket.socket | None = None
        self._pairs: set[asyncio.Task[None]] = set()
        self._num_connections = 0

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        """Return the part of `data` that arrives, and whether its connection (numbered from 0) is cut after it."""
        return data, False

    async def hold(self, connection: int, *, reply: bool) -> None:
        """Wait until what was read from a connection may be forwarded."""

    def lead_to(self, target_port: int) -> None:
        """Forward new connections to another port."""
        self._target_port = target_port

    async def listen(self) -> None:
        """Accept connections; no effect if already listening."""
        if self._listening is None:
            self._listening = socket.create_server(("127.0.0.1", self.port), backlog=_BACKLOG)
            self._listening.setblocking(False)
            self.port = self._listening.getsockname()[1]
            asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    async def refuse(self) -> None:
        """Cut all connections, and refuse new ones until `listen`."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        pairs = list(self._pairs)
        for pair in pairs:
            pair.cancel()
        await asyncio.gather(*pairs, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        """Track a connection from its acceptance: an asyncio server forgets those accepted shortly before it closes."""
        with suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = listening.accept()
            pair = asyncio.create_task(self._serve(connection))
            self._pairs.add(pair)
            pair.add_done_callback(self._pairs.discard)
            pair.add_done_callback(lambda _: connection.close())  # a task canceled before it began

    async def _serve(self, connection: socket.socket) -> None:
        ends: list[asyncio.StreamWriter] = []
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
            ends.append(writer)
            with suppress(OSError):
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
                ends.append(up_writer)
                await self._forward((reader, writer), (up_reader, up_writer))
        finally:
            for end in ends:
                end.transport.abort()
            for end in ends:
                with suppress(OSError):
                    await end.wait_closed()

    async def _forward(self, client: _Stream, target: _Stream) -> None:
        """Forward until either end closes or is cut."""
        number = self._num_connections
        self._num_connections += 1
        pumps = [
            asyncio.create_task(self._pump(client[0], target[1], number, reply=False)),
            asyncio.create_task(self._pump(target[0], client[1], number, reply=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, number: int, *, reply: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(_PIECE_BYTES):
                await self.hold(number, reply=reply)
                arrives, cut = self.let_through(data, number, reply=reply)
                sink.write(arrives)
                if cut:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LAST_WORDS_S):
                            await sink.drain()
                    return
                await sink.drain()

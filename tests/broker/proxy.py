"""A TCP proxy in front of Redis that loses replies, or commands, when told to."""

import asyncio
from contextlib import suppress


class LossyProxy:
    """Forwards bytes both ways. `lose_next_reply()` cuts a connection when the server's next bytes arrive,
    `lose_command()` when a client sends these bytes, which never arrive."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._losing = False
        self._losing_command: bytes | None = None
        self.lost = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        """Where to connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def lose_next_reply(self) -> None:
        """Swallow the server's next bytes, then cut that connection."""
        self._losing = True
        self.lost.clear()

    def lose_command(self, packed: bytes) -> None:
        """Cut the first connection that sends `packed`, before it arrives."""
        self._losing_command = packed
        self.lost.clear()

    async def close(self) -> None:
        """Cut everything."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        pumps = [
            asyncio.create_task(self._pump(reader, up_writer, replies=False)),
            asyncio.create_task(self._pump(up_reader, writer, replies=True)),
        ]
        with suppress(asyncio.CancelledError):
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for one in (writer, up_writer):
            one.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, replies: bool) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if replies and self._losing:
                    self._losing = False
                    self.lost.set()
                    return
                if not replies and self._losing_command is not None and self._losing_command in data:
                    self._losing_command = None
                    self.lost.set()
                    return
                sink.write(data)
                await sink.drain()

"""A TCP proxy that breaks each connection after so many bytes of what comes back."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress


class CuttingProxy:
    """Forwards to `port`; the n-th connection is reset behind the n-th number of `limits`, later ones never."""

    def __init__(self, port: int, limits: Iterator[int]) -> None:
        self._port = port
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.num_cut = 0
        self.url = ""

    async def __aenter__(self) -> "CuttingProxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
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
        ends = [writer]
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
            ends.append(up_writer)
            asking = asyncio.create_task(self._forward(reader, up_writer))
            try:
                await self._answer(up_reader, writer, next(self._limits, None))
            finally:
                asking.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in ends:
                one.transport.abort()

    async def _answer(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, limit: int | None) -> None:
        left = limit
        while data := await source.read(65536):
            sink.write(data if left is None else data[:left])
            await sink.drain()
            if left is not None and len(data) >= left:
                self.num_cut += 1
                await asyncio.sleep(0)
                return
            left = None if left is None else left - len(data)

    @staticmethod
    async def _forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()

"""A TCP proxy that breaks each connection after a given number of reply bytes."""

from collections.abc import Iterator

from tests.tcp_proxy import TcpProxy


class CuttingProxy(TcpProxy):
    """For `async with`: the n-th connection is reset after the n-th number of bytes in `limits`, later ones never."""

    def __init__(self, target_port: int, limits: Iterator[int]) -> None:
        super().__init__(target_port)
        self._limits = limits
        self._left: dict[int, int | None] = {}
        self.num_cut = 0

    @property
    def url(self) -> str:
        """The URL to connect to."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "CuttingProxy":
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        """Forward as many reply bytes as the connection has left."""
        if not reply:
            return data, False
        if connection not in self._left:
            self._left[connection] = next(self._limits, None)
        left = self._left[connection]
        if left is None or len(data) < left:
            self._left[connection] = None if left is None else left - len(data)
            return data, False
        self.num_cut += 1
        return data[:left], True

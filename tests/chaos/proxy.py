"""A TCP proxy between the services and Redis: it refuses connections, and cuts them in the middle of a command."""

from tests.tcp_proxy import TcpProxy


class Proxy(TcpProxy):
    """A proxy that accepts no connections before `listen`."""

    def __init__(self, target_port: int, port: int) -> None:
        super().__init__(target_port, port)
        self._num_to_cut = {"commands": 0, "replies": 0}

    def cut(self, which: str, count: int) -> None:
        """Let half of each of the next `count` `commands` or `replies` pieces through, then cut the connection."""
        self._num_to_cut[which] = count

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        """Forward a piece: all of it, or half if it is to be cut."""
        which = "replies" if reply else "commands"
        if self._num_to_cut[which] == 0:
            return data, False
        self._num_to_cut[which] -= 1
        return data[: len(data) // 2], True

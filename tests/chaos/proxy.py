"""A TCP proxy between the services and Redis: it refuses connections, and cuts them in mid-command."""

from tests.tcp_proxy import TcpProxy


class Proxy(TcpProxy):
    """Takes no connections before `listen`."""

    def __init__(self, target_port: int, port: int) -> None:
        super().__init__(target_port, port)
        self._num_to_cut = {"commands": 0, "replies": 0}

    def cut(self, which: str, count: int) -> None:
        """Of the next `count` pieces of `commands`, or of `replies`, let half through, and cut those connections."""
        self._num_to_cut[which] = count

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        """All, or half of what is to be cut."""
        which = "replies" if reply else "commands"
        if self._num_to_cut[which] == 0:
            return data, False
        self._num_to_cut[which] -= 1
        return data[: len(data) // 2], True

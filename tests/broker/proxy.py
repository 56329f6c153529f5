"""A TCP proxy in front of Redis that loses replies or commands on demand."""

import asyncio

from tests.tcp_proxy import TcpProxy


class LossyProxy(TcpProxy):
    """`lose_next_reply()` cuts a connection when the server's next bytes arrive, `lose_command()` when a client sends
    the given bytes, which never arrive, `lose_reply_to()` when the server has answered them.
    """

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self._losing_reply = False
        self._losing_command: bytes | None = None
        self._losing_reply_to: bytes | None = None
        self._answering: int | None = None
        """The connection that waits for that reply."""
        self.lost = asyncio.Event()

    @property
    def url(self) -> str:
        """The URL to connect to."""
        return f"redis://127.0.0.1:{self.port}/0"

    def lose_next_reply(self) -> None:
        """Swallow the server's next bytes, then cut that connection."""
        self._losing_reply = True
        self.lost.clear()

    def lose_command(self, packed: bytes) -> None:
        """Cut the first connection that sends `packed`, before it arrives."""
        self._losing_command = packed
        self.lost.clear()

    def lose_reply_to(self, packed: bytes) -> None:
        """Let the next `packed` arrive, swallow the server's next bytes to its sender, then cut that connection."""
        self._losing_reply_to = packed
        self.lost.clear()

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        """Forward everything except the bytes that it was told to lose."""
        if not reply and self._losing_reply_to is not None and self._losing_reply_to in data:
            self._losing_reply_to, self._answering = None, connection
            return data, False
        if reply and self._answering == connection:
            self._answering = None
        elif reply and self._losing_reply:
            self._losing_reply = False
        elif not reply and self._losing_command is not None and self._losing_command in data:
            self._losing_command = None
        else:
            return data, False
        self.lost.set()
        return b"", True

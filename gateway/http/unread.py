"""Ends the connection of a client that has stopped reading."""

import asyncio
from array import array
from fcntl import ioctl
from termios import TIOCOUTQ


class Unread:
    """Aborts a connection with a full write buffer of which nothing is read for `timeout_s`.

    How long the whole buffer takes does not matter: a large answer is one write, and a client may be slow. The kernel
    has a buffer too, often of several MB; it takes nothing more before a good part of that is read.
    """

    def __init__(self, transport: asyncio.Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The buffer is full."""
        self.end()
        self._wait()

    def end(self) -> None:
        """The buffer is no longer full, or the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._timeout_s, self._look, self._unread_bytes())

    def _look(self, before_bytes: int) -> None:
        if self._unread_bytes() < before_bytes:
            self._wait()
        else:
            self._transport.abort()

    def _unread_bytes(self) -> int:
        """Return the bytes that the client's side has not acknowledged, in both buffers."""
        in_kernel = array("i", [0])
        ioctl(self._transport.get_extra_info("socket").fileno(), TIOCOUTQ, in_kernel)
        return self._transport.get_write_buffer_size() + in_kernel[0]

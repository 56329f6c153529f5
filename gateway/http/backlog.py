"""What has arrived behind a request that waits for the one before it, and when a connection is read."""

import asyncio
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

_PIECE_BYTES: Final = 4096
"""What is parsed at once: the requests of so many bytes may wait behind another."""
MUCH_BYTES: Final = 64 * 1024
"""How much may arrive behind them before reading pauses: only a connection that is read tells that its client left."""


class Backlog:
    """Bytes that are not parsed yet: the requests of one read take far more memory than its bytes."""

    def __init__(self) -> None:
        self._unparsed = memoryview(b"")

    def __len__(self) -> int:
        """Return their number."""
        return len(self._unparsed)

    @property
    def is_much(self) -> bool:
        """Whether nothing more is read until they are parsed."""
        return len(self._unparsed) > MUCH_BYTES

    def add(self, data: bytes) -> None:
        """Some bytes have arrived."""
        self._unparsed = memoryview(bytes(self._unparsed) + data)

    def take(self) -> bytes:
        """Return the next piece to parse."""
        piece, self._unparsed = self._unparsed[:_PIECE_BYTES], self._unparsed[_PIECE_BYTES:]
        return bytes(piece)

    def drop(self) -> None:
        """Forget them."""
        self._unparsed = memoryview(b"")


class HeldFlow(FlowControl):
    """uvicorn's flow control, which resumes reading, whoever asks for it, only while the backlog is not much."""

    def __init__(self, transport: asyncio.Transport, backlog: Backlog) -> None:
        super().__init__(transport)
        self._backlog = backlog

    def resume_reading(self) -> None:
        """Read on, unless much is to be parsed first."""
        if not self._backlog.is_much:
            super().resume_reading()

"""When a connection is read."""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl


class HeldFlow(FlowControl):
    """uvicorn's flow control, which resumes reading, whoever asks for it, only while `is_held` is false."""

    def __init__(self, transport: asyncio.Transport, is_held: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._is_held = is_held

    def resume_reading(self) -> None:
        """Read on, unless reading is held."""
        if not self._is_held():
            super().resume_reading()

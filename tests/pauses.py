"""The pauses after failures, seen by a test."""

import asyncio

import pytest

from orcastream.broker.back_off import BackOff
from tests.patience import PATIENCE_S


class Pauses:
    """The longest pause that any BackOff of a module has asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        self._longest_s = 0.0
        pauses = self

        class Seen(BackOff):
            def failed(self) -> float:
                pause_s = super().failed()
                pauses._longest_s = max(pauses._longest_s, pause_s)
                return pause_s

        monkeypatch.setattr(f"{module}.BackOff", Seen)

    async def reach(self, seconds: float) -> None:
        """Wait until there was a pause that long."""
        async with asyncio.timeout(PATIENCE_S):
            while self._longest_s < seconds:  # noqa: ASYNC110 (what it waits for has no event)
                await asyncio.sleep(0.01)

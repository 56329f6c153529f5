"""Publishes engine statistics to observers; records nothing while there are none."""

import asyncio
import logging
from typing import Final

from orcastream.schemas.stats import encode_stats
from orcastream.worker.session import Session
from orcastream.worker.stats.recorder import IterationRecorder
from orcastream.worker.stats.story import EngineStory

log = logging.getLogger("orcastream.worker")

TELL_S: Final = 0.25
"""Pause between two entries."""
_QUIET_ENTRIES: Final = 4
"""While nothing is computed, only one of this many entries is published, to show that the worker is there."""


class StatsTeller:
    """Woken by the control stream; asks once per session whether it missed a wake-up before."""

    def __init__(self, recorder: IterationRecorder, story: EngineStory) -> None:
        self._recorder = recorder
        self._story = story
        self._wanted = asyncio.Event()
        self._asked: Session | None = None
        self._num_quiet = 0

    def wake(self) -> None:
        """Start publishing: somebody watches."""
        self._wanted.set()

    async def step(self, session: Session) -> None:
        """Publish what happened since the last call; while nobody watches, wait until somebody does.

        Raises LinkLost, ResponseError.
        """
        if self._asked is not session:
            if await session.stats.is_watched():
                self._wanted.set()
            self._asked = session
        if not self._wanted.is_set():
            self._recorder.on = False
            await self._wanted.wait()
        if not self._recorder.on:
            self._recorder.take()
            self._story.begin()
            self._recorder.on = True
        await self._tell(session)

    async def _tell(self, session: Session) -> None:
        records = self._recorder.take()
        self._num_quiet = 0 if records else self._num_quiet + 1
        if self._num_quiet % _QUIET_ENTRIES:
            return
        try:
            stats = self._story.tell(records, asyncio.get_running_loop().time(), session.server_ms)
        except Exception:
            log.exception("statistics failed, and are omitted until somebody watches again")
            self._wanted.clear()
            return
        self._wanted.clear()  # a wake-up that arrives meanwhile is newer than the answer
        is_watched = True
        try:
            is_watched = await session.stats.tell(encode_stats(stats))
        finally:
            if is_watched:
                self._wanted.set()

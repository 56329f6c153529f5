"""Which batches a gateway runs, and which of them gives its turn to another."""

import asyncio
import time
from collections.abc import Container, Coroutine, Iterable
from typing import Final

from orcastream.gateway.batches.batch_run import BatchRun
from orcastream.gateway.log import log_event

_AT_ONCE: Final = 4
"""Maximum number of batches that one gateway runs; others wait, or another gateway runs them."""

_LATELY_S: Final = 30.0


class BatchTurns:
    """The running batches. One whose models have no workers keeps its turn only until another batch needs it: that may
    be for another model.
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._left: dict[str, float] = {}
        """Batches that gave up a turn, and when: they come after all others, in this order."""

    def __contains__(self, batch_id: object) -> bool:
        return batch_id in self._running

    @property
    def has_room(self) -> bool:
        """Whether another batch may begin."""
        return len(self._running) < _AT_ONCE

    def in_order(self, batch_ids: Iterable[str]) -> list[str]:
        """Return the batches in the order of their turns: by age, those that gave one up last."""
        return sorted(batch_ids, key=lambda batch_id: (self._left.get(batch_id, float("-inf")), batch_id))

    @property
    def rotates(self) -> bool:
        """Whether a batch gave up its turn lately: others need not wait for the end of one."""
        return time.monotonic() - max(self._left.values(), default=float("-inf")) < _LATELY_S

    async def idle(self) -> str | None:
        """Return a batch that would give up its turn. Raises LinkLost, ResponseError."""
        for batch_id, (run, _) in list(self._running.items()):
            if await run.waits_for_workers():
                return batch_id
        return None

    def begin(self, batch_id: str, run: BatchRun, work: Coroutine[None, None, None]) -> None:
        """Run a batch: `work` runs it."""
        task = asyncio.create_task(work)
        self._running[batch_id] = run, task
        task.add_done_callback(lambda _: self._running.pop(batch_id))

    async def give_up(self, batch_id: str) -> None:
        """End a batch's turn; it continues in a later one, or at another gateway."""
        if batch_id not in self._running:
            return
        log_event("batch left", batch=batch_id, why="its models have no workers, and others wait")
        self._left[batch_id] = time.monotonic()
        await self._end(self._running[batch_id][1])

    def keep(self, open_ids: Container[str]) -> None:
        """Forget batches that are no longer open."""
        self._left = {batch_id: at for batch_id, at in self._left.items() if batch_id in open_ids}

    async def close(self) -> None:
        """Stop running batches."""
        await self._end(*(task for _, task in self._running.values()))

    @staticmethod
    async def _end(*tasks: asyncio.Task[None]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

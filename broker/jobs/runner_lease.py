"""The right to run a bulk job: one runner holds it, and another gets it once that runner is dead."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import ResponseError

from orcastream.broker.errors import BrokerError
from orcastream.broker.jobs.job import Held, Job

_BEAT_S: Final = 1.0
"""How often a runner renews its right and checks whether its job was cancelled."""
_LEAVING_S: Final = 1.0
"""How long releasing the right may take, for example while Redis is unreachable."""


class RunnerLease:
    """Limits a job's requests in flight to one window. Nothing else depends on it: if two runners both believe that
    they hold it, one loses it at the next beat, and each line has one result whoever answers.
    """

    def __init__(self, job: Job, runner: str, *, lease_ms: int) -> None:
        """`runner`: a unique name; `lease_ms`: a runner that is silent for this long is dead."""
        self._job = job
        self._runner = runner
        self._lease_ms = lease_ms
        self.cancelled = asyncio.Event()
        """Set once the job is cancelled."""

    async def take(self) -> bool:
        """Whether this runner now holds the right. Raises as `Job`."""
        held = await self._job.lease(self._runner, self._lease_ms)
        if held is Held.CANCELLING:
            self.cancelled.set()
        return held is not Held.BY_ANOTHER

    async def keep(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` under the right, then release it; False if another runner got the right before `work` was done.

        Raises what the work raises, and as `Job`.
        """
        working, keeping = asyncio.ensure_future(work), asyncio.ensure_future(self._keep_taking())
        try:
            await asyncio.wait((working, keeping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            keeping.result()
            return False
        finally:
            for task in (working, keeping):
                task.cancel()
            await asyncio.gather(working, keeping, return_exceptions=True)
            await self._give_back()

    async def _keep_taking(self) -> None:
        """Return once another runner has it."""
        while await self.take():  # noqa: ASYNC110 (the state is Redis')
            await asyncio.sleep(min(_BEAT_S, self._lease_ms / 3000))

    async def _give_back(self) -> None:
        with suppress(BrokerError, ResponseError, TimeoutError):
            async with asyncio.timeout(_LEAVING_S):
                await self._job.lease(self._runner, 0)

"""What a worker claims, when, and how much of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from redis.exceptions import ResponseError

from broker.claimed import Claimed
from broker.errors import Unwritable
from broker.unblock import unblock
from worker.parts import Parts
from worker.session import Session

log = logging.getLogger("orcastream.worker")

_RETRY_DELAY_S = 0.2
_BLOCK_MS = 2000


class Intake:
    """Claims what can run soon, a few per iteration so that work spreads, until `draining` is set.

    `begin` is called with each claimed request; several calls may be under way.
    """

    def __init__(
        self, session: Session, parts: Parts, draining: asyncio.Event, begin: Callable[[Claimed], Awaitable[None]]
    ) -> None:
        self._session = session
        self._parts = parts
        self._draining = draining
        self._begin = begin
        self._look_for_expired_at = 0.0
        self._waiting = False

    async def run(self) -> None:
        """Return once `draining` is set and no claim is in flight any more. Raises LinkLost."""
        recover = True
        while not self._draining.is_set():
            if recover:  # what a lost answer, or a refusal half-way, left under this worker's name
                recover = not await self._done(self._recover())
            recover = not await self._done(self._claim()) or recover

    async def _done(self, step: Awaitable[None]) -> bool:
        """Take a step; False, after a moment, where Redis refused something: refusals for one request stop no other."""
        try:
            await step
        except (Unwritable, ResponseError) as error:
            log.warning("claiming failed", extra={"why": str(error)})
            await asyncio.sleep(_RETRY_DELAY_S)
            return False
        return True

    async def _recover(self) -> None:
        await self._admit(await self._session.claimer.unknown(self._parts.roster))

    async def end_wait(self) -> None:
        """Once the drain begins, end the claim that waits for requests: to be run beside `run`. Raises LinkLost."""
        await self._draining.wait()
        await unblock(self._session.link, self._session.claim_link.client_id, lambda: self._waiting)

    async def _claim(self) -> None:
        room, claimer, now = self._parts.room(), self._session.claimer, asyncio.get_running_loop().time()
        if room == 0 or self._draining.is_set():
            await self._next_iteration()
            return
        claimed: list[Claimed] = []
        if now >= self._look_for_expired_at:
            claimed = await claimer.expired(room)
            self._look_for_expired_at = now + (0 if claimed else self._parts.keeper.interval_s)
        if len(claimed) < room:
            claimed += await claimer.new(room - len(claimed))
        if claimed:
            await self._admit(claimed)
            await self._next_iteration()
        elif not self._draining.is_set():
            await self._admit(await self._wait_for_work(room))

    async def _wait_for_work(self, room: int) -> list[Claimed]:
        self._waiting = True
        try:
            return await self._session.claimer.wait_for_work(self._session.claim_link, _BLOCK_MS, count=room)
        finally:
            self._waiting = False

    async def _next_iteration(self) -> None:
        """Until the engine has run once more or a place became free, so that claims follow its pace."""
        roster, outbox = self._parts.roster, self._parts.outbox
        if not len(roster) or self._draining.is_set():
            return
        roster.changed.clear()
        outbox.iterated.clear()
        events = [roster.changed, self._draining]
        if roster.free:  # without a free place nothing follows from another iteration
            events.append(outbox.iterated)
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _admit(self, claims: Sequence[Claimed]) -> None:
        """Begin with what was claimed; what was claimed just when the drain began goes to other workers at once."""
        if self._draining.is_set():
            await self._session.leases.hand_over(claimed.ref for claimed in claims)
            return
        outcomes = await asyncio.gather(*(self._begin(claimed) for claimed in claims), return_exceptions=True)
        for error in outcomes:
            if error is not None:
                raise error

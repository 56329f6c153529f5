"""Decides what a worker claims, when, and how much of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from math import ceil

from redis.exceptions import ResponseError

from orcastream.broker.back_off import BackOff
from orcastream.broker.claim import SETTLE_S
from orcastream.broker.claimed import Claimed
from orcastream.broker.errors import Unwritable
from orcastream.broker.lease import Given
from orcastream.worker.parts import Parts
from orcastream.worker.session import Session

log = logging.getLogger("orcastream.worker")

_RECOVER_S = 1.0
_LOOK_S = 0.5
"""A worker with room looks for requests to take over at least this often."""
_TURN_S = 0.02
"""How long a request waits for idle workers before a worker takes it that yields to them, with up to 4 lanes."""
_LEAST_AGE = 2
"""How old a request is before a worker takes it in a long iteration, in such turns. Redis gives a waiting worker one
request; for the next ones it looks one turn later."""
_LONG_S = 0.2
"""A request that comes after this much of an iteration would wait long for the next one."""
_EMPTY_LOOK_S = 2.0
"""The same while there is no request at all; at most half a lease, which any request claimed since still has."""


class Intake:
    """Claims what can run soon, a few requests per iteration so that work spreads, until `draining` is set.

    It also claims while an iteration computes: what has arrived by its end can be in the next one. But once it has
    claimed something in an iteration, or the iteration takes long, it takes only what no idle worker waits for. `begin`
    is called with each claimed request; several calls may run concurrently.
    """

    def __init__(
        self, session: Session, parts: Parts, draining: asyncio.Event, begin: Callable[[Claimed], Awaitable[None]]
    ) -> None:
        self._session = session
        self._parts = parts
        self._draining = draining
        self._begin = begin
        self._turn_s = _TURN_S * ceil(len(session.keys.each_lane) / 4)  # a look takes a script per lane
        self._look_for_expired_at = 0.0
        self._is_to_look = False
        """Whether requests were handed over since the last look for them began."""
        self._back_off = BackOff(4 * SETTLE_S)  # long enough that a failed claim's requests are no longer under way
        self._is_to_recover = True
        self._recover_at = 0.0
        self._num_waits = 0
        self._is_read_to_end = False
        """Whether the last look at the queue, a moment ago, left nothing there: then waiting for more is enough."""
        self._iteration = -1
        self._num_claimed = 0
        """Claims since that iteration of the engine ended; 0 while the engine is idle."""
        self.queue_was_empty = False
        """Whether the last look at the queue, a moment ago, found neither a waiting nor a running request."""
        self.saturated = False
        """Whether every slot is taken, or the last claim returned as many requests as this iteration may begin."""

    async def run(self) -> None:
        """Return once `draining` is set and no claim is in flight. Raises LinkLost."""
        while not self._draining.is_set():
            if self._is_to_recover and asyncio.get_running_loop().time() >= self._recover_at:
                self._is_to_recover = False
                if not await self._recovered():
                    self._is_to_recover = True
            if not await self._done(self._claim()):
                self._is_to_recover = True

    async def hand_over(self, given: Sequence[Given]) -> None:
        """Hand over requests that no longer run here; if Redis refuses that, they are claimed again.

        Raises LinkLost, Unwritable.
        """
        try:
            await self._session.leases.hand_over(given)
        except Unwritable:
            self._is_to_recover = True
            raise

    async def _done(self, step: Awaitable[None]) -> bool:
        """Await a step; False, after a pause, if Redis refused it: a refusal for one request stops no other."""
        try:
            await step
        except (Unwritable, ResponseError) as error:
            log.warning("claiming failed", extra={"why": str(error)})
            await asyncio.sleep(self._back_off.failed())
            return False
        self._back_off.succeeded()
        return True

    async def _recovered(self) -> bool:
        """Begin requests that a lost or partly refused claim left under this worker's name; False if some remain."""
        try:
            await self._admit(await self._session.claimer.unknown(self._parts.roster))
        except (Unwritable, ResponseError) as error:
            log.warning("looking for lost claims failed", extra={"why": str(error)})
            self._recover_at = asyncio.get_running_loop().time() + _RECOVER_S
            return False
        return True

    async def end_wait(self) -> None:
        """Once the drain begins, end the claim that waits for requests; runs alongside `run`. Raises LinkLost."""
        await self._draining.wait()
        await self._session.waits.end(lambda: True)

    async def look_now(self) -> None:
        """Look for requests that were handed over, instead of waiting for new ones. Raises LinkLost."""
        self._is_to_look, wait = True, self._num_waits
        await self._session.waits.end(lambda: self._num_waits == wait)

    async def stop_waiting(self) -> None:
        """End the wait for requests if idle workers go first by now. Raises LinkLost."""
        if self._yields:
            wait = self._num_waits
            await self._session.waits.end(lambda: self._num_waits == wait and self._yields)

    @property
    def _yields(self) -> bool:
        """Whether idle workers go first: Redis serves waiting workers in turn, so this one must not wait."""
        return self._num_claimed > 0 or self._is_long

    @property
    def _is_long(self) -> bool:
        """Whether the iteration takes long."""
        return self._parts.engine_loop.stalled_for_s() > _LONG_S

    async def _claim(self) -> None:
        """Claim, unless the engine is stalled or can begin no more requests in its next iteration."""
        self._look_at_iteration()
        if self._yields:
            await self._next_iteration(self._turn_s)
            self._look_at_iteration()
        most, now = self._parts.room(self._num_claimed), asyncio.get_running_loop().time()
        is_read_to_end, self._is_read_to_end = self._is_read_to_end and not self._yields, False
        if most == 0 or self._parts.engine_loop.hesitates or self._draining.is_set():
            self.queue_was_empty, self.saturated = False, most == 0
            # Requests that are about to begin still count as waiting: soon there may be room.
            await self._next_iteration(self._turn_s if self._parts.engine_loop.plans else None)
            return
        claimed: list[Claimed] = []
        if self._is_to_look or now >= self._look_for_expired_at:
            self._is_to_look, self._look_for_expired_at = False, now  # again if the look fails
            claimed = await self._expired(most)
            self._look_for_expired_at = now + (0 if claimed else self._pause_s())
        is_long = self._is_long
        if len(claimed) < most and not is_read_to_end:
            least_age_ms = int(1000 * _LEAST_AGE * self._turn_s) if is_long else 0
            claimed += await self._session.claimer.new(most - len(claimed), least_age_ms=least_age_ms)
            self._is_read_to_end = len(claimed) < most and not is_long
        self.saturated = len(claimed) >= most
        self._look_at_iteration()
        if not claimed and (is_long or self._yields):
            return
        if not claimed and not self._draining.is_set():
            claimed = await self._wait_for_work(most)
            self._is_read_to_end = not claimed
            self.saturated = len(claimed) >= most
            self._look_at_iteration()
        self._num_claimed += len(claimed)
        await self._admit(claimed)

    def _look_at_iteration(self) -> None:
        """Count claims anew if an iteration has ended, or there is none."""
        engine_loop = self._parts.engine_loop
        if not engine_loop.busy or engine_loop.iterations != self._iteration:
            self._iteration, self._num_claimed = engine_loop.iterations, 0

    async def _expired(self, room: int) -> list[Claimed]:
        """Claim requests to take over. An idle worker does not look for leases if the queue is empty."""
        self.queue_was_empty = not len(self._parts.roster) and await self._session.queue.is_empty()
        return [] if self.queue_was_empty else await self._session.claimer.expired(room)

    def _pause_s(self) -> float:
        """Return the pause until the next look for requests to take over, after one that found nothing."""
        quarter_s = self._parts.keeper.interval_s
        return min(_EMPTY_LOOK_S, 2 * quarter_s) if self.queue_was_empty else min(_LOOK_S, quarter_s)

    async def _wait_for_work(self, room: int) -> list[Claimed]:
        """Return what arrives before the next look for requests to take over."""
        self._num_waits += 1
        left_s = 0.0 if self._is_to_look else self._look_for_expired_at - asyncio.get_running_loop().time()
        return await self._session.claimer.wait_for_work(self._session.waits, max(1, int(left_s * 1000)), count=room)

    async def _next_iteration(self, timeout_s: float | None = None) -> None:
        """Wait until the engine has run once more or a slot became free, so that claims follow its pace."""
        roster, outbox = self._parts.roster, self._parts.outbox
        if self._draining.is_set() or not (self._parts.engine_loop.busy or (len(roster) and not self._parts.room())):
            return
        roster.changed.clear()
        outbox.iterated.clear()
        events = [roster.changed, self._draining]
        if roster.free:  # without a free slot, another iteration changes nothing
            events.append(outbox.iterated)
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _admit(self, claims: Sequence[Claimed]) -> None:
        """Begin claimed requests; if a drain or a stall has begun, hand them over at once."""
        if claims:
            self.queue_was_empty = False  # requests may have arrived since; with no slot free, nothing looks again
        if self._draining.is_set() or self._parts.engine_loop.hesitates:
            await self._session.leases.hand_over(Given(claimed.ref, suspect=claimed.suspect) for claimed in claims)
            return
        if len(claims) == 1:  # the usual case for a waiting worker: no task needed
            await self._begin(claims[0])
            return
        outcomes = await asyncio.gather(*(self._begin(claimed) for claimed in claims), return_exceptions=True)
        for error in outcomes:
            if error is not None:
                raise error

"""The worker's tasks while its connection holds: claim, publish, renew leases, obey cancels."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from redis.exceptions import ResponseError

from orcastream.broker.back_off import BackOff
from orcastream.broker.cancel import cancelled
from orcastream.broker.claimed import Claimed
from orcastream.broker.ending import Ender
from orcastream.broker.errors import BrokerError, LinkLost, Unwritable
from orcastream.broker.origin import find_origin
from orcastream.broker.presence import forget_dead
from orcastream.broker.sweep import Sweeper
from orcastream.schemas.errors import ErrorCode
from orcastream.telemetry.names import Outcome
from orcastream.worker.attacher import Attacher
from orcastream.worker.intake import Intake
from orcastream.worker.meter import LOOK_S
from orcastream.worker.parts import Parts
from orcastream.worker.running import Running
from orcastream.worker.session import Session
from orcastream.worker.stats.teller import TELL_S

log = logging.getLogger("orcastream.worker")

_BLOCK_MS = 2000
_SWEEP_INTERVAL_S = 1.0
_FORGET_AFTER_LEASES = 10
_IDLE_CLOCK_AGE_S = 10.0
"""How old the reading of the server's clock may get while no deadline depends on it."""


class Serving:
    """The tasks of one session. `run` returns once `draining` is set; LinkLost (in a group) ends it at any time."""

    def __init__(self, session: Session, parts: Parts, draining: asyncio.Event) -> None:
        self._session = session
        self._parts = parts
        self._draining = draining
        self._drained: asyncio.Future[None] | None = None
        self._tasks = asyncio.TaskGroup()
        self._attacher = Attacher(session, parts, self._tasks, lambda: self._has_drained)
        self._intake = Intake(session, parts, draining, self._admit)
        lifecycle, retention_ms = parts.lifecycle, parts.retention_ms
        on_end, on_set_aside = lifecycle.ended_unowned, lifecycle.set_aside
        self._ender = Ender(parts.keys, parts.name, retention_ms=retention_ms, on_end=on_end)
        self._sweeper = Sweeper(
            session.link,
            parts.keys,
            parts.name,
            retention_ms=retention_ms,
            on_end=on_end,
            on_set_aside=on_set_aside,
        )

    async def run(self, drained: "asyncio.Future[None]") -> None:
        """Serve until the drain begins, then keep publishing until `drained` is done."""
        self._drained = drained
        async with self._tasks:
            background = [self._tasks.create_task(work) for work in (self._watch(), self._intake.end_wait())]
            await self._renew()
            publishing = self._tasks.create_task(self._publish(drained))
            for running in self._parts.roster:
                if running not in self._parts.isolation:
                    self._attacher.attach_soon(running)
            background.append(self._tasks.create_task(self._attacher.run_suspects()))
            for interval_s, step in (
                (self._parts.keeper.interval_s, self._renew),
                (self._parts.keeper.interval_s, self._report),
                (LOOK_S, self._look),
                (_SWEEP_INTERVAL_S, self._sweep),
                (self._parts.keeper.interval_s, self._restore),
                (_FORGET_AFTER_LEASES * self._parts.presence_ttl_ms / 1000, self._forget),
                (0, self._obey),
                (TELL_S, self._tell_stats),
            ):
                background.append(self._tasks.create_task(self._every(interval_s, step)))
            await self._intake.run()
            await asyncio.wait([drained])
            self._parts.adapter_waits.abandon_all()
            self._parts.publisher.wake.set()
            await publishing
            for task in background:
                task.cancel()

    async def _watch(self) -> None:
        raise LinkLost(await self._session.wait_lost())

    async def _admit(self, claimed: Claimed) -> None:
        before = self._parts.roster.by_ref(claimed.ref)
        if before is not None:  # the lease was lost and regained before anybody noticed: the newer claim counts
            self._parts.let_go(before, Outcome.LEASE_LOST)
        running = await self._parts.admission.admit(self._session, claimed)
        if running is not None:
            running.last_epoch = 0 if before is None else before.last_epoch
            if running.suspect:
                self._parts.isolation.add(running)
            elif self._attacher.is_at_hand(running):
                await self._attacher.attach(running)
            else:  # meanwhile, other requests are claimed
                self._attacher.attach_soon(running)

    @property
    def _has_drained(self) -> bool:
        """Whether nothing is started any more: remaining requests go to other workers."""
        return self._drained is not None and self._drained.done()

    async def _publish(self, drained: "asyncio.Future[None]") -> None:
        """Write the engine's output as it arrives. One write is in flight at a time, so every log is in order."""
        publisher, outbox, engine_loop = self._parts.publisher, self._parts.outbox, self._parts.engine_loop
        while not drained.done():
            await publisher.wake.wait()
            engine_loop.check()
            num_events = outbox.take(engine_loop)
            try:
                flushed = await publisher.flush(self._session)
            finally:
                engine_loop.published(num_events)
            self._parts.isolation.look()
            for running, terminal in flushed.ended:
                if terminal.error is None:
                    self._parts.meter.ended(running.request.payload, terminal.usage)
                self._parts.forget(running)
            for running in flushed.fenced:
                self._attacher.attach_later(running, 0)
            for running in flushed.unwritable:
                self._attacher.attach_later(running, running.back_off.failed())

    async def _every(self, interval_s: float, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat `step`; if the server refuses it, try again the next time."""
        back_off = BackOff()
        while True:
            try:
                await step()
                back_off.succeeded()
            except (Unwritable, ResponseError) as error:
                log.warning("Redis refused", extra={"why": str(error)})
                await asyncio.sleep(back_off.failed())
            await asyncio.sleep(interval_s)

    async def _report(self) -> None:
        """Report that this worker is alive, and what it serves. Apart from the renewals: a refusal delays the next."""
        if len(self._parts.roster) or self._session.clock_age_s > _IDLE_CLOCK_AGE_S:
            await self._session.read_clock()
        info = self._parts.describe(draining=self._draining.is_set())
        ttl_ms = self._parts.presence_ttl_ms
        await self._session.presence.beat(info, ttl_ms=ttl_ms)
        serves = not (self._draining.is_set() or self._parts.keeper.stalled)
        throughput = self._parts.meter.report(self._parts.roster) if serves else None
        await self._session.throughput.tell(throughput, ttl_ms=ttl_ms)

    async def _look(self) -> None:
        """Do the frequent work: one wake-up for all of it."""
        self._measure()
        self._expire()
        await self._intake.stop_waiting()
        await self._pass_on()

    def _measure(self) -> None:
        """Read the engine's counts of computed tokens."""
        engine, stats = self._parts.engine_loop, self._parts.engine.stats()
        self._parts.meter.look(
            asyncio.get_running_loop().time(),
            stats.prompt_tokens + stats.output_tokens,
            engine.iterations,
            is_saturated=self._intake.saturated,
        )

    async def _tell_stats(self) -> None:
        """Publish the engine's statistics to observers."""
        await self._parts.stats.step(self._session)

    def _expire(self) -> None:
        """End requests past their deadline."""
        for running in self._parts.keeper.expired(self._session.now_ms):
            self._end(running, ErrorCode.EXPIRED, "the deadline passed")

    async def _pass_on(self) -> None:
        """Hand over requests outside an iteration that takes much too long: they need not wait for its end."""
        if not self._parts.engine_loop.hesitates:
            return
        waiting = self._parts.not_computed()
        given = [running.given for running in waiting]
        for running in waiting:
            self._parts.let_go(running, Outcome.HANDED_OVER)
        if given:
            log.warning("engine stands still, requests handed over", extra={"requests": len(given)})
            await self._intake.hand_over(given)

    async def _renew(self) -> None:
        lost, cancelled = await self._parts.keeper.renew(self._session)
        for running in lost:
            log.info("lease lost", extra=running.log_fields())
            self._parts.let_go(running, Outcome.LEASE_LOST)
            self._parts.restorer.add(running)
        for running in cancelled:
            self._cancel(running)

    async def _restore(self) -> None:
        await self._parts.restorer.step(self._session)

    def _cancel(self, running: Running) -> None:
        self._end(running, ErrorCode.CANCELLED, "the request was cancelled")

    def _end(self, running: Running, code: ErrorCode, message: str) -> None:
        running.fail(code, message)
        if self._parts.isolation.remove(running):
            self._attacher.attach_soon(running)
        self._parts.adapter_waits.abandon(running)
        self._parts.publisher.mark([running])

    async def _obey(self) -> None:
        """Check the cancel keys named in the control stream, and drain when asked to."""
        for control in await self._session.control.read(_BLOCK_MS):
            is_me = control.target == self._parts.name
            match control.kind:
                case "cancel":
                    await self._cancel_if_told(control.target)
                case "waiting" if not is_me:
                    await self._intake.look_now()
                case "watch":
                    self._parts.stats.wake()
                case "policy":
                    self._parts.policy_switch.switch(control.target)
                case "drain" if is_me:
                    log.info("told to drain", extra={"running": len(self._parts.roster)})
                    self._draining.set()

    async def _cancel_if_told(self, request_id: str) -> None:
        """Check one cancel key; a defect of its request must not stop other wake-ups."""
        try:
            await self._look_at_cancel(request_id)
        except LinkLost:
            raise
        except (BrokerError, ResponseError) as error:
            log.warning("cancel failed", extra={"request": request_id, "why": str(error)})
        except Exception:
            log.exception("cancel failed", extra={"request": request_id})

    async def _look_at_cancel(self, request_id: str) -> None:
        """Cancel a running request, which then ends within an iteration, or end a waiting one at once."""
        link, keys = self._session.link, self._parts.keys
        running = self._parts.roster.by_id(request_id)
        if running is None:
            origin = await find_origin(link, keys, request_id, self._session.now_ms)
            if origin is None or origin.request is None or origin.ref is None:
                return
            if await cancelled(link, keys, [request_id]):
                await self._ender.end_if_waiting(link, origin.request, origin.ref, "cancelled while it waited")
        elif await cancelled(link, keys, [request_id]):
            self._cancel(running)

    async def _forget(self) -> None:
        """Delete the consumers of workers that are gone: every process start leaves one behind."""
        min_idle_ms = _FORGET_AFTER_LEASES * self._parts.presence_ttl_ms
        for name in await forget_dead(self._session.link, self._parts.keys, min_idle_ms=min_idle_ms):
            log.info("worker that is gone forgotten", extra={"worker": name})

    async def _sweep(self) -> None:
        """End overdue requests that nobody works on."""
        if self._intake.queue_was_empty:
            return
        for ref in (await self._sweeper.step()).expired:
            log.info("expired request ended", extra={"entry": str(ref)})

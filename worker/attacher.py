"""Opens epochs: attaches claimed requests to their logs, and starts the engine's work on them."""

import asyncio
import logging
from collections.abc import Callable

from redis.exceptions import ResponseError

from orcastream.broker.aside import aside
from orcastream.broker.errors import BrokerError, Fenced, LinkLost, Unusable, Unwritable
from orcastream.schemas.errors import InvalidRequest, without_values
from orcastream.telemetry.names import Outcome
from orcastream.worker.parts import Parts
from orcastream.worker.running import Running
from orcastream.worker.session import Session

log = logging.getLogger("orcastream.worker")


class Attacher:
    """Attaches requests in one session, in `tasks` where nobody waits for it; nothing once it `has_drained`."""

    def __init__(
        self, session: Session, parts: Parts, tasks: asyncio.TaskGroup, has_drained: Callable[[], bool]
    ) -> None:
        self._session = session
        self._parts = parts
        self._tasks = tasks
        self._has_drained = has_drained

    async def attach(self, running: Running) -> None:
        """Open an epoch; the engine starts, restarts, continues or lets go, depending on the log. Raises LinkLost."""
        try:
            await self._attach(running)
        finally:
            self._resume_others(running)  # it may not have begun after all

    async def _attach(self, running: Running) -> None:
        before = running.engine_ids()
        try:
            await self._prepare(running)
            if running.closed or self._has_drained():
                self._parts.isolation.look()
                return
            is_new = running.is_new(self._session.now_ms)
            if is_new:  # the engine need not wait for Redis
                running.begin(self._parts.engine.eos_token_ids)
                self._parts.submit(running)
                before = running.engine_ids()
            restart = await self._parts.admission.attach(self._session, running, is_new=is_new)
            if running.closed or running.engine_ids() != before:
                self._parts.withdraw(before)
            if restart and await self._may_begin(running):
                self._parts.submit(running)
        except LinkLost:
            raise
        except Exception as error:
            await self._failed(running, error)
            return
        self._parts.isolation.look()
        self._parts.publisher.mark([running])

    def attach_soon(self, running: Running) -> None:
        """Attach it in a task of its own."""
        self._tasks.create_task(self.attach(running))

    def attach_later(self, running: Running, delay_s: float) -> None:
        """Attach it after a delay."""
        self._tasks.create_task(self._attach_after(running, delay_s))

    async def run_suspects(self) -> None:
        """Run each suspect alone, so that a crash of this worker can only be its own fault. Raises LinkLost."""
        while True:
            await self.attach(await self._parts.isolation.next())

    def is_at_hand(self, running: Running) -> bool:
        """Whether it can start at once: its adapter is in memory, and its constraint prepared."""
        return self._parts.adapter_waits.has_none(running) and not running.has_to_prepare

    async def _prepare(self, running: Running) -> None:
        """Read its adapter and prepare its constraint. If one of these may have ended its last worker, record this
        attempt in its log first.
        """
        if running.blamed and running.error is None and not self.is_at_hand(running):
            if not await self._parts.admission.attach(self._session, running, is_new=False):
                return
            if not await self._may_begin(running):
                return
            self._resume_others(running)  # its adapter may have to wait until another request ends
            running.put_off()
            self._parts.lifecycle.epoch_over(running, Outcome.PUT_OFF)
        await self._parts.adapter_waits.ready(running)
        if running.closed or self._has_drained() or not running.has_to_prepare:
            return
        try:
            await aside(running.prepare)
        except InvalidRequest as error:
            log.warning("request refused", extra=running.log_fields(why=without_values(str(error))))
            running.fail(error.code, str(error), error.field)

    async def _may_begin(self, running: Running) -> bool:
        """Whether it has not ended. The attempt of a suspect is counted here, in case it ends the worker; before that,
        the iteration under way must have ended, because another request may end the worker in it.
        """
        if running is not self._parts.isolation.current:
            return True
        try:
            await self._pause_engine()
            if running.closed or running.ended or self._has_drained():
                return False
            if not running.counted:
                self._session.leases.count_attempt(running.ref)
                running.blamed = running.counted = True
        except BaseException:
            running.put_off()  # the session is over, and the next attach must not take it for begun
            raise
        return True

    async def _pause_engine(self) -> None:
        """Return once the iteration under way has ended."""
        engine_loop, iterated = self._parts.engine_loop, self._parts.outbox.iterated
        engine_loop.pause()
        while engine_loop.busy:
            iterated.clear()
            await iterated.wait()

    def _resume_others(self, running: Running) -> None:
        """End the pause of `_may_begin`, if it was for `running`."""
        if running is self._parts.isolation.current:
            self._parts.engine_loop.resume()

    async def _failed(self, running: Running, error: Exception) -> None:
        """Retry later what the server refuses now; end a request that would always fail, and only that one."""
        passing = isinstance(error, Fenced | Unwritable | ResponseError) and not isinstance(error, Unusable)
        foreseen = isinstance(error, BrokerError | ResponseError)
        why = str(error) if foreseen else type(error).__name__
        log.warning("attach failed", extra=running.log_fields(why=why), exc_info=None if foreseen else error)
        outcome = Outcome.FENCED if isinstance(error, Fenced) else Outcome.UNWRITABLE
        self._parts.lifecycle.epoch_over(running, outcome)
        if not passing:
            running.put_off()  # if it cannot be set aside now, the next attach must not take it for begun
            self._parts.withdraw(running.engine_ids())
            try:
                await self._parts.admission.set_aside(self._session, running, why)
                self._parts.forget(running)
                return
            except (Unwritable, ResponseError) as refused:
                log.warning("setting aside failed", extra=running.log_fields(why=str(refused)))
        self.attach_later(running, running.back_off.failed())

    async def _attach_after(self, running: Running, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if running.closed or self._has_drained():
            return  # a request without an epoch at the end of a drain is handed over as it is
        await self.attach(running)

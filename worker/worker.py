"""The life of a worker: connect, serve, reconnect, drain."""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

from redis.exceptions import ResponseError

from orcastream.broker.aside import aside
from orcastream.broker.back_off import BackOff
from orcastream.broker.errors import LinkLost, Unwritable
from orcastream.broker.lease import Given
from orcastream.engine import OrcaEngine
from orcastream.schemas.keys import Keys
from orcastream.telemetry.names import Outcome
from orcastream.text.tokenizer import Tokenizer
from orcastream.worker.adapter_shelf import AdapterShelf
from orcastream.worker.assembly import assemble
from orcastream.worker.engine_loop import EngineFailed
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.serving import Serving
from orcastream.worker.session import Session
from orcastream.worker.settings import WorkerSettings

log = logging.getLogger("orcastream.worker")

_AWAKE_INTERVAL_S = 0.5


class Worker:
    """Connects one engine to one model's queue. Created and used on one asyncio loop; `run` returns after a drain."""

    def __init__(
        self,
        settings: WorkerSettings,
        url: str,
        keys: Keys,
        name: str,
        engine: OrcaEngine,
        tokenizer: Tokenizer | None,
        shelf: AdapterShelf | None = None,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        """`shelf` None: no adapters. `metrics` None: new ones."""
        self._settings = settings
        self._url = url
        self._draining = asyncio.Event()
        self._connected = False
        self._operators = engine.operators.as_dict()
        shelf = shelf or AdapterShelf({}, None, 0)
        self._parts = assemble(settings, keys, name, engine, tokenizer, shelf, metrics or WorkerMetrics(keys.model))

    @property
    def state(self) -> str:
        """`connecting` until Redis was reached for the first time, then `serving`, finally `draining`."""
        if self._draining.is_set():
            return "draining"
        return "serving" if self._connected else "connecting"

    @property
    def operators(self) -> Mapping[str, str]:
        """The operators that the engine computes with."""
        return self._operators

    def stalled_for_s(self) -> float:
        """Return the seconds since the engine last made progress; 0 while it is idle. Any thread may ask."""
        return self._parts.engine_loop.stalled_for_s()

    def drain(self) -> None:
        """Stop claiming, finish what fits into the grace period, hand over the rest; `run` then returns."""
        if not self._draining.is_set():
            log.info("draining", extra={"running": len(self._parts.roster)})
            self._draining.set()

    async def run(self) -> None:
        """Serve until drained. A broken connection ends every epoch; the next session attaches again."""
        self._parts.engine_loop.start()
        drained = asyncio.ensure_future(self._drained())
        awake = asyncio.ensure_future(self._stay_awake())
        session: Session | None = None
        reconnected = False
        back_off = BackOff()
        try:
            while not drained.done():
                session = await self._connect(drained, reconnected)
                if session is not None:
                    self._connected = True
                    opened_s = time.monotonic()
                    await self._serve(session, drained)
                    reconnected = True
                    back_off.held(time.monotonic() - opened_s)
                    await asyncio.wait([drained], timeout=back_off.failed())
        finally:
            drained.cancel()
            awake.cancel()
            if session is not None:
                await session.close()
            await self._stop_engine()
        self._parts.engine_loop.check()

    async def _stay_awake(self) -> None:
        """Ask regularly how long the engine has stalled, with or without a session: the clock needs these calls."""
        while True:
            self.stalled_for_s()
            await asyncio.sleep(_AWAKE_INTERVAL_S)

    async def _stop_engine(self) -> None:
        """Wait for the current iteration: an interpreter that exits while a thread computes aborts."""
        engine_loop, timeout_s = self._parts.engine_loop, self._settings.stall_timeout_s
        engine_loop.stop()
        await aside(partial(engine_loop.join, max(0.0, timeout_s - engine_loop.stalled_for_s())))
        if engine_loop.is_alive():
            raise EngineFailed(f"the current iteration did not end within {timeout_s:.0f} s")

    async def _connect(self, drained: "asyncio.Future[None]", reconnected: bool) -> Session | None:
        """Return a new session; None if the drain ended first."""
        back_off = BackOff()
        while not drained.done():
            try:
                return await Session.open(
                    self._settings,
                    self._url,
                    self._parts.keys,
                    self._parts.name,
                    reconnected=reconnected,
                    observer=self._parts.metrics.redis,
                )
            except (LinkLost, Unwritable, ResponseError) as error:  # ResponseError: for example, Redis is loading
                log.warning("Redis cannot be reached", extra={"why": str(error)})
                reconnected = True
            await asyncio.wait([drained], timeout=back_off.failed())
        return None

    async def _serve(self, session: Session, drained: "asyncio.Future[None]") -> None:
        roster = self._parts.roster
        outcome = Outcome.CONNECTION_LOST
        try:
            await Serving(session, self._parts, self._draining).run(drained)
            await self._hand_over(session)
            outcome = Outcome.HANDED_OVER
        except* (LinkLost, Unwritable, ResponseError) as lost:
            log.warning("connection lost", extra={"why": str(lost.exceptions[0]), "running": len(roster)})
        except* EngineFailed:
            outcome = Outcome.ENGINE_FAILED
            raise
        finally:
            for running in roster:
                running.detach()
                self._parts.lifecycle.epoch_over(running, outcome)
            await session.close()
            self._parts.publisher.tokens.forget()

    async def _drained(self) -> None:
        """Return when the drain may end: nothing is running any more, or the grace period is over."""
        await self._draining.wait()
        roster = self._parts.roster
        try:
            async with asyncio.timeout(self._settings.drain_grace_s):
                while len(roster):
                    roster.changed.clear()
                    await roster.changed.wait()
        except TimeoutError:
            log.info("grace period over", extra={"running": len(roster)})

    async def _hand_over(self, session: Session) -> None:
        """Publish the engine's output, then let other workers continue the rest at once, at its token index."""
        parts = self._parts
        await self._stop_engine()
        parts.outbox.take(parts.engine_loop)
        for running in await parts.publisher.finish(session):
            parts.roster.remove(running)
        for step in (
            lambda: session.leases.hand_over([running.given for running in parts.roster]),
            lambda: self._hand_over_unknown(session),
            lambda: parts.restorer.step(session),
            lambda: session.presence.leave(),
            lambda: session.throughput.tell(None, ttl_ms=parts.presence_ttl_ms),
        ):
            try:
                await step()
            except (Unwritable, ResponseError) as error:  # a refusal for one request must not hold up the others
                log.warning("Redis refused", extra={"why": str(error)})
        log.info("drained", extra={"handed_over": len(parts.roster)})

    async def _hand_over_unknown(self, session: Session) -> None:
        """Hand over what a lost claim left under this worker's name."""
        unknown = await session.claimer.unknown(self._parts.roster)
        await session.leases.hand_over([Given(claimed.ref, suspect=claimed.suspect) for claimed in unknown])

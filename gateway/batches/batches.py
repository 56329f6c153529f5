"""The batches of a gateway: state shared by its routes, and the tasks that run batches without a runner."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from redis.exceptions import ResponseError
from starlette.requests import Request

from orcastream.broker.errors import WRONG_TYPE, BrokerError, error_code
from orcastream.broker.files.file_store import FileStore
from orcastream.broker.jobs.batch_index import BatchIndex
from orcastream.broker.jobs.job import Job, JobSeen, see_jobs
from orcastream.broker.jobs.order import JOB_ID, JobOrder, JobProgress
from orcastream.broker.jobs.runner_lease import RunnerLease
from orcastream.gateway.admission.api_key import Grant
from orcastream.gateway.batches.batch_gauges import BatchGauges
from orcastream.gateway.batches.batch_metrics import BatchMetrics
from orcastream.gateway.batches.batch_object import check_marks, has_ended, status_of
from orcastream.gateway.batches.batch_request import BatchTerms
from orcastream.gateway.batches.batch_run import BatchRun
from orcastream.gateway.batches.batch_turns import BatchTurns
from orcastream.gateway.batches.failed_runs import FailedRuns
from orcastream.gateway.batches.timed_id import timed_id
from orcastream.gateway.batches.unreadable_batches import UnreadableBatch, UnreadableBatches
from orcastream.gateway.errors import batches_full
from orcastream.gateway.http.body_memory import BodyMemory
from orcastream.gateway.log import LOGGER, log_event
from orcastream.gateway.service import Gateway
from orcastream.gateway.settings import GatewaySettings

_LOOK_S: Final = 1.0
"""Interval between searches for batches without a runner."""


class Batch:
    """One batch as read from Redis; `runs`: a gateway runs it."""

    def __init__(self, job: Job, order: JobOrder, terms: BatchTerms, progress: JobProgress, *, runs: bool) -> None:
        self.job = job
        self.order = order
        self.terms = terms
        self.progress = progress
        self.runs = runs


class Batches:
    """Stateless, like its gateway: a batch is a bulk job in Redis, and any gateway can continue another's batch."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._keys = gateway.models.default.keys
        self._patience_s = gateway.settings.redis_patience_s
        self.settings: GatewaySettings = gateway.settings
        self.bodies: BodyMemory = gateway.bodies
        self.files = FileStore(gateway.redis, self._keys, patience_s=self._patience_s)
        self._index = BatchIndex(gateway.redis, self._keys, patience_s=self._patience_s)
        self._turns = BatchTurns()
        self._metrics = BatchMetrics()
        self._unreadable = UnreadableBatches()
        self._failed = FailedRuns()
        self._new = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to run batches that have no runner; does not wait for Redis."""
        works = [self._keep_looking()]
        if self._gateway.telemetry.on:
            gauges = BatchGauges(self._gateway, self._index, self._metrics, self._unreadable)
            works.append(gauges.keep(lambda: self._turns.has_room or self._turns.rotates))
        self._tasks = [asyncio.create_task(work) for work in works]

    async def close(self) -> None:
        """Stop running batches; another gateway continues them at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._turns.close()

    @property
    def now_ms(self) -> int:
        """The Redis server's clock."""
        return self._gateway.redis.now_ms

    def grant_of(self, request: Request) -> Grant:
        """Return what the sender of a request may do. Raises ApiError 401."""
        return self._gateway.tenants.of(request.headers)

    async def create(self, terms: BatchTerms) -> Batch:
        """Create a batch. Raises ApiError 429 if its tenant has the maximum number of open ones."""
        now_ms = self.now_ms
        job = self._job(timed_id("batch_", now_ms))
        order = await job.create(terms.order(now_ms, retention_s=self.settings.files_retention_s))
        if not await self._index.open(job.id, order.tenant, max_open=self.settings.max_batches):
            await job.delete()
            raise batches_full(self.settings.max_batches)
        await self._index.add(job.id, order)
        self._new.set()
        log_event("batch taken", batch=job.id, tenant=order.tenant)
        return Batch(job, order, terms, await job.progress(), runs=False)

    async def find(self, batch_id: str, tenant: str) -> Batch | None:
        """Return the tenant's batch; None if it has none with that id.

        Raises UnreadableBatch, whichever tenant's it is.
        """
        seen = await self.see([batch_id], tenant)
        found = seen[0] if seen else None
        if isinstance(found, UnreadableBatch):
            raise found
        return found

    async def see(self, batch_ids: Sequence[str], tenant: str) -> list[Batch | UnreadableBatch]:
        """Return the tenant's existing batches among these, in one round trip, and all unreadable ones.

        Raises LinkLost, Unwritable.
        """
        ids = [batch_id for batch_id in batch_ids if JOB_ID.fullmatch(batch_id)]
        redis, until = self._gateway.redis, time.monotonic() + self._patience_s
        seen = await redis.patiently(lambda link: see_jobs(link, self._keys, ids), until)
        read = [self._read(batch_id, job) for batch_id, job in seen.items()]
        return [one for one in read if isinstance(one, UnreadableBatch) or (one and one.order.tenant == tenant)]

    def _read(self, batch_id: str, seen: JobSeen | ValueError) -> Batch | UnreadableBatch | None:
        """Return the batch; None if the job is not a batch."""
        if isinstance(seen, ValueError):
            return UnreadableBatch(batch_id, seen)
        try:
            terms = BatchTerms.of(seen.order)
            if terms is None:
                return None
            check_marks(seen.progress)
        except ValueError as error:
            return UnreadableBatch(batch_id, error)
        return Batch(self._job(batch_id), seen.order, terms, seen.progress, runs=seen.runs)

    async def keep_open(self, batch: Batch) -> None:
        """Have a batch run that has not ended and that no gateway runs, in case Redis has lost that it is open.

        In a Cluster, a node that lost its newest writes may have done so alone. While Redis takes no writes, the next
        call does it.
        """
        if batch.runs or has_ended(batch.progress):
            return
        with suppress(BrokerError, ResponseError):
            if await self._index.reopen(batch.job.id, batch.order.tenant):
                log_event("batch opened again", level=logging.WARNING, batch=batch.job.id)
                self._new.set()

    async def is_listed(self, batch_id: str, tenant: str) -> bool:
        """Whether a batch is among the tenant's, readable or not."""
        return await self._index.has(batch_id, tenant)

    async def list_ids(self, tenant: str) -> list[str]:
        """Return the ids of a tenant's batches, the oldest first; some may have expired."""
        return await self._index.list(tenant)

    def _job(self, batch_id: str) -> Job:
        return Job(self._gateway.redis, self._keys, batch_id, patience_s=self._patience_s)

    async def _keep_looking(self) -> None:
        """Run batches that have no runner, forever."""
        while True:
            self._new.clear()
            try:
                await self._look()
            except (BrokerError, ResponseError) as error:
                log_event("batches not looked for", level=logging.WARNING, why=error)
            except Exception:
                LOGGER.exception("looking for batches failed")
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._new.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        open_ones = await self._index.list_open()
        self._unreadable.keep(open_ones)
        self._failed.keep(open_ones)
        self._turns.keep(open_ones)
        idle = None
        for batch_id in self._turns.in_order(open_ones):
            if batch_id not in self._turns and not self._failed.pauses(batch_id):
                if self._turns.has_room:
                    idle = None
                elif idle not in self._turns and (idle := await self._turns.idle()) is None:
                    return
                try:
                    await self._take_up(batch_id, open_ones[batch_id], idle)
                except (BrokerError, ResponseError):
                    raise
                except Exception:
                    LOGGER.exception("taking up the batch %s failed", batch_id)
                    self._failed.add(batch_id)

    async def _take_up(self, batch_id: str, tenant: str, idle: str | None) -> None:
        """Run a batch, unless another gateway runs it; the batch `idle` gives up its turn for it."""
        try:
            batch = await self.find(batch_id, tenant)
        except UnreadableBatch as error:
            self._unreadable.tell(batch_id, error.why)
            return
        if batch is None or has_ended(batch.progress):
            await self._index.close(batch_id)
            return
        if idle is not None and not self._turns.has_room:
            if batch.runs:
                return
            await self._turns.give_up(idle)
        lease = RunnerLease(batch.job, self._gateway.name, lease_ms=int(self.settings.gateway_lease_s * 1000))
        if await lease.take():
            run = BatchRun(self._gateway, self.files, batch.job, batch.order, batch.terms, self._metrics)
            self._turns.begin(batch_id, run, self._run(batch, run, lease))

    async def _run(self, batch: Batch, run: BatchRun, lease: RunnerLease) -> None:
        job = batch.job
        log_event("batch run", level=logging.INFO, batch=job.id, status=status_of(batch.progress))
        try:
            if not await lease.keep(run.run(lease)):
                log_event("batch left", batch=job.id, why="another gateway runs it")
                return
            await self._index.close(job.id)
        except (BrokerError, ResponseError) as error:
            log_event("batch interrupted", level=logging.WARNING, batch=job.id, why=error)
            if isinstance(error, ResponseError) and error_code(error) == WRONG_TYPE:
                self._failed.add(job.id)
        except Exception:
            LOGGER.exception("running the batch %s failed", job.id)
            self._failed.add(job.id)

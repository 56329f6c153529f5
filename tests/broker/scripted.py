"""Workers without an engine, built from the broker's own parts: each call is one step of a test."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orcastream.broker.attach import Attached, Attachment, attach
from orcastream.broker.claim import Claimer
from orcastream.broker.claimed import Claimed
from orcastream.broker.cleanup import finish
from orcastream.broker.connect import connect
from orcastream.broker.connection import Connection
from orcastream.broker.entry import EntryRef
from orcastream.broker.fold import Fold
from orcastream.broker.lane_waits import LaneWaits
from orcastream.broker.lease import Held, Lease, Leases
from orcastream.broker.queue import Enqueued, RequestQueue
from orcastream.broker.reply_log import ReplyLog
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Ending, Run, Started, Terminal, Usage, encode_event
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest, parse_payload
from orcastream.schemas.seed import derived_seed
from orcastream.schemas.stopping import FinishReason

RETENTION_MS = 60_000
LEASE_MS = 60_000
MAX_DELIVERIES = 3
"""Longer than a test lasts: who is to take over has a lease of a millisecond instead."""
EOS = 9999


def make_request(request_id: str = "r1", **changes: Any) -> GenerationRequest:
    """Return a request with a deadline a minute away; `changes` apply to the payload, or to the request by field."""
    own = {name: changes.pop(name) for name in ("deadline_ms", "priority_class", "form") if name in changes}
    own.setdefault("deadline_ms", int(time.time() * 1000) + 60_000)
    payload = parse_payload({"prompt": [1, 2, 3], "max_tokens": 8, **changes})
    return GenerationRequest(id=request_id, payload=payload, **own)


async def enqueue(link: Connection, keys: Keys, request: GenerationRequest, **options: Any) -> Enqueued:
    """Put a request into the queue, and create its groups."""
    queue = RequestQueue(link, keys)
    await queue.ensure_groups()
    return await queue.enqueue(request, **{"terms": None, "retention_ms": RETENTION_MS, **options})


@dataclass
class Job:
    """A request claimed by a scripted worker."""

    claimed: Claimed
    request: GenerationRequest
    log: ReplyLog
    fold: Fold
    tokens: list[list[int]] = field(default_factory=list)

    @property
    def ref(self) -> EntryRef:
        return self.claimed.ref


class ScriptedWorker:
    """One worker process; its model's token at a position is `position * 10 + salt`, so workers can differ."""

    def __init__(
        self,
        url: str,
        keys: Keys,
        name: str,
        *,
        salt: int = 0,
        lease_ms: int = LEASE_MS,
        max_deliveries: int = MAX_DELIVERIES,
    ) -> None:
        self.url, self.keys, self.name, self.salt, self.lease_ms = url, keys, name, salt, lease_ms
        self.max_deliveries = max_deliveries
        self.epochs: dict[str, int] = {}
        self.link: Connection
        self.claimer: Claimer
        self.leases: Leases
        self.waits: LaneWaits

    async def connect(self, *, url: str | None = None, not_before: float = 0.0) -> "ScriptedWorker":
        """Open a new link; everything on the old one is void."""
        self.link = await connect(url or self.url, name=self.name)
        options: dict[str, int] = {"lease_ms": self.lease_ms, "retention_ms": RETENTION_MS}
        options["max_deliveries"] = self.max_deliveries
        self.claimer = Claimer(self.link, self.keys, self.name, not_before=not_before, **options)
        self.leases = Leases(self.link, self.keys, self.name)
        self.waits = LaneWaits(self.link, self.keys, self.name)
        return self

    async def wait_for_work(self, timeout_ms: int, **options: int) -> list[Claimed]:
        """Block until something arrives."""
        return await self.claimer.wait_for_work(self.waits, timeout_ms, **options)

    async def close(self) -> None:
        await self.waits.close()
        await self.link.close()

    def model(self, position: int, choice: int = 0) -> int:
        return choice * 1000 + position * 10 + self.salt

    def parse(self, claimed: Claimed) -> GenerationRequest:
        now_ms = int(time.time() * 1000)
        return GenerationRequest.from_fields(claimed.fields, stream_class=claimed.ref.priority_class, now_ms=now_ms)

    async def attach(self, claimed: Claimed, *, is_new: bool | None = None) -> Attachment:
        """Attach as a worker does; `is_new` False: the worker does not know whether the request has been begun."""
        request = self.parse(claimed)
        if is_new is None:
            is_new = not (claimed.taken_over or claimed.suspect or request.id in self.epochs)
        started = Started(
            worker=self.name,
            model=self.keys.model,
            tenant=request.payload.tenant,
            priority_class=claimed.ref.priority_class,
            entry=str(claimed.ref),
            seed=derived_seed(request.id) if request.payload.seed is None else request.payload.seed,
            prompt_tokens=len(request.payload.prompt),
            n=request.payload.n,
        )
        attachment = await attach(
            self.link,
            self.keys,
            request_id=request.id,
            worker=self.name,
            started=started,
            ref=claimed.ref,
            form=request.form,
            log_expire_at_ms=request.deadline_ms + RETENTION_MS,
            retention_ms=RETENTION_MS,
            above_epoch=self.epochs.get(request.id, 0),
            first_claim_until_ms=claimed.ref.order[0] + self.lease_ms if is_new else None,
        )
        if isinstance(attachment, Attached):
            self.epochs[request.id] = attachment.log.epoch
        return attachment

    async def open(self, claimed: Claimed) -> Job:
        """Attach, expecting success, and adopt the log."""
        attachment = await self.attach(claimed)
        assert isinstance(attachment, Attached), attachment
        tokens = [list(choice) for choice in attachment.fold.tokens]
        return Job(claimed, self.parse(claimed), attachment.log, attachment.fold, tokens)

    async def take(self) -> Job:
        """Claim one new request and attach."""
        return await self.open((await self.claimer.new(1))[0])

    def next_run(self, job: Job, count: int = 1, choice: int = 0) -> Run:
        """Compute the next tokens of a choice."""
        position = len(job.tokens[choice])
        tokens = tuple(self.model(position + offset, choice) for offset in range(count))
        job.tokens[choice].extend(tokens)
        return Run(choice, position, tokens)

    async def step(self, job: Job, count: int = 1, choice: int = 0) -> None:
        """Compute and publish."""
        await job.log.append([self.next_run(job, count, choice)])

    async def end(self, job: Job, runs: Sequence[Run] = (), *, error: ErrorCode | None = None) -> Terminal:
        """Publish the terminal event and clean up."""
        terminal = self.terminal(job, runs, error)
        await job.log.end(terminal)
        await finish(
            self.link,
            self.keys,
            request_id=job.request.id,
            tenant=job.request.payload.tenant,
            ref=job.ref,
            terminal=terminal,
            retention_ms=RETENTION_MS,
        )
        return terminal

    def terminal(self, job: Job, runs: Sequence[Run] = (), error: ErrorCode | None = None) -> Terminal:
        reason = None if error else FinishReason.LENGTH
        endings = tuple(Ending(reason, len(tokens)) for tokens in job.tokens)
        return Terminal(endings, Usage(3, sum(ending.tokens for ending in endings)), tuple(runs), error=error)

    async def renew(self, *jobs: Job) -> dict[EntryRef, Lease]:
        held = [Held(job.ref, job.request.id, job.request.deadline_ms + RETENTION_MS) for job in jobs]
        return await self.leases.renew(held)


def bare_fields(request: GenerationRequest) -> list[str | bytes]:
    """Return the fields that a producer without the enqueue script would XADD."""
    return [part for item in request.fields().items() for part in item]


async def take_over(worker: ScriptedWorker) -> Claimed:
    """Return the next find of the worker's search for expired leases; for workers with a lease time of 1 ms."""
    while True:
        claimed = await worker.claimer.expired(1)
        if claimed:
            return claimed[0]


async def take_jobs(link: Connection, keys: Keys, worker: ScriptedWorker, count: int, **options: Any) -> list[Job]:
    """Let the worker claim this number of new requests."""
    jobs = []
    for index in range(count):
        await enqueue(link, keys, make_request(f"{worker.name}-{index}", **options))
        jobs.append(await worker.take())
    return jobs


async def fence(link: Connection, keys: Keys, job: Job) -> None:
    """Begin a higher epoch in the job's log, as another worker would."""
    started = job.fold.started
    assert started is not None
    entry = encode_event(started, job.request.form)
    await link.call("XADD", keys.reply(job.request.id), f"{job.log.epoch + 1}-0", *entry)

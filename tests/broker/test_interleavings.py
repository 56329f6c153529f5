"""Random interleavings of workers whose numerics differ, readers, and faults; each run is told by its seed."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from broker.attach import Attached
from broker.claim import Claimed
from broker.errors import BrokerError
from broker.link import Link
from broker.loss import LossCheck, Watch
from broker.queue import RequestQueue
from broker.reader import ReplyReader
from schemas.keys import Keys
from schemas.request import GenerationRequest
from tests.broker.conftest import MakeReader, OpenLink
from tests.broker.following import Seen, follow
from tests.broker.scripted import RETENTION_MS, Job, ScriptedWorker, bare_fields, enqueue, make_request
from tests.redis_server import RedisServer

LENGTH = 8
SEEDS = range(25)


class Process:
    """A scripted worker that takes one step at a time and may lose its connection, its memory or its lease anywhere."""

    def __init__(self, worker: ScriptedWorker, dice: random.Random) -> None:
        self.worker = worker
        self.dice = dice
        self.claimed: Claimed | None = None
        self.job: Job | None = None

    async def step(self) -> None:
        """Do whatever is next; after any broken connection the next write to the log is an attach."""
        try:
            await self._work()
        except BrokerError:
            self.job = None
            if not self.worker.link.alive:
                await self.worker.connect()
                unknown = await self.worker.claimer.unknown({self.claimed.ref} if self.claimed else ())
                self.claimed = self.claimed or (unknown[0] if unknown else None)

    async def _work(self) -> None:
        if self.claimed is None:
            found = await self.worker.claimer.new(1) or await self.worker.claimer.expired(1)
            self.claimed = found[0] if found else None
        elif self.job is None:
            await self._attach(self.claimed)
        elif len(self.job.tokens[0]) >= LENGTH:
            await self.worker.end(self.job)
            self.claimed = self.job = None
        else:
            count = min(self.dice.randint(1, 3), LENGTH - len(self.job.tokens[0]))
            await self.worker.step(self.job, count)

    async def _attach(self, claimed: Claimed) -> None:
        attachment = await self.worker.attach(claimed)
        if isinstance(attachment, Attached):
            tokens = [list(choice) for choice in attachment.fold.tokens]
            self.job = Job(claimed, self.worker.parse(claimed), attachment.log, attachment.fold, tokens)
        else:
            self.claimed = None

    async def crash(self) -> None:
        """A new process under a new name takes this one's place."""
        await self.worker.close()
        self.claimed = self.job = None
        self.worker.name += "'"
        self.worker.epochs.clear()
        await self.worker.connect()

    async def drain(self) -> None:
        """Hand over and forget."""
        if self.claimed is not None:
            with suppress(BrokerError):
                await self.worker.leases.hand_over([self.claimed.ref])
            self.claimed = self.job = None


async def _run(
    dice: random.Random, link: Link, keys: Keys, processes: list[Process], request: GenerationRequest, watch: Watch
) -> None:
    check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS)
    stream = keys.requests(request.priority_class)

    async def kill_connection() -> None:
        victim = dice.choice(processes).worker.link.client_id
        await link.call_many([("CLIENT", "KILL", "ID", victim)])

    async def lose_entry() -> None:
        if watch.ref is not None:
            await link.call("XDEL", stream, watch.ref.entry_id)

    async def add_twin() -> None:
        if await RequestQueue(link, keys).depth() < 3:
            await link.call("XADD", stream, "*", *bare_fields(request))

    async def look_for_loss() -> None:
        await check.check(link, watch)

    async def nothing() -> None:
        return

    faults: list[Callable[[], Awaitable[object]]] = [
        kill_connection,
        kill_connection,
        lose_entry,
        add_twin,
        look_for_loss,
        lambda: dice.choice(processes).crash(),
        lambda: dice.choice(processes).drain(),
        *[nothing] * 14,
    ]
    for turn in range(2000):
        calm = turn > 60
        if not calm:
            await dice.choice(faults)()
        await asyncio.gather(*(process.step() for process in processes if calm or dice.random() < 0.6))
        if calm:
            await look_for_loss()
            if await RequestQueue(link, keys).depth() == 0:
                return
    pytest.fail("the request did not end")


def _valid(tokens: list[int]) -> bool:
    """Each token is what some worker would have said at its position, and none is missing."""
    return len(tokens) == LENGTH and all(token // 10 == position for position, token in enumerate(tokens))


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_interleaving_reads_as_one_sequence_with_one_end(
    redis_server: RedisServer, link: Link, keys: Keys, make_reader: MakeReader, open_link: OpenLink, seed: int
) -> None:
    """Faults fall between any two steps; live, late and resumed readers see the same valid sequence."""
    dice = random.Random(seed)
    request = make_request()
    accepted = await enqueue(link, keys, request)
    watch = Watch(request.id, "default", accepted.entry, request)
    workers = [ScriptedWorker(redis_server.url, keys, f"w{i}", salt=i, lease_ms=20) for i in range(3)]
    processes = [Process(await worker.connect(), dice) for worker in workers]
    reader: ReplyReader = await make_reader(redis_server.url, loss_check_s=60)
    live = asyncio.create_task(follow(reader.subscribe(Watch(request.id, "default"))))
    try:
        await _run(dice, link, keys, processes, request, watch)
        seen = await asyncio.wait_for(live, 10)
    finally:
        live.cancel()
        for process in processes:
            await process.worker.close()
    late: Seen = await follow((await make_reader(redis_server.url)).subscribe(Watch(request.id, "default")))
    assert _valid(seen.tokens[0]), seen
    assert (late.tokens, late.resume_id) == (seen.tokens, seen.resume_id)
    assert len(seen.terminals) == len(late.terminals) == 1
    entries = await link.call("XRANGE", keys.reply(request.id), "-", "+")
    assert len([entry for entry in entries if entry[1][1] == b"finished"]) == 1

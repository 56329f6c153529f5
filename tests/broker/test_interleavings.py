"""Random interleavings of workers with different numerics, readers, and faults; the seed determines each run."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from orcastream.broker.attach import Attached
from orcastream.broker.claimed import Claimed
from orcastream.broker.errors import BrokerError, ReplyConflict
from orcastream.broker.fold import decode_entry
from orcastream.broker.link import Link
from orcastream.broker.loss import LossCheck, Watch
from orcastream.broker.queue import RequestQueue
from orcastream.broker.reader import ReplyReader
from orcastream.schemas.events import Started, Terminal
from orcastream.schemas.keys import Keys
from tests.broker.conftest import MakeReader
from tests.broker.following import Seen, follow_until
from tests.broker.rewind import Snapshot
from tests.broker.scripted import RETENTION_MS, Job, ScriptedWorker, bare_fields, enqueue, make_request
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

Log = Sequence[Any]
"""Raw entries of a reply log."""
LENGTH = 16
SEEDS = range(25)


class Process:
    """A scripted worker that takes one step at a time and may lose its connection, memory or lease at any point."""

    def __init__(self, worker: ScriptedWorker, dice: random.Random) -> None:
        self.worker = worker
        self.dice = dice
        self.claimed: Claimed | None = None
        self.job: Job | None = None

    async def step(self) -> None:
        """Do the next step; after a broken connection the next write to the log is an attach."""
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
            count = min(self.dice.randint(1, 2), LENGTH - len(self.job.tokens[0]))
            await self.worker.step(self.job, count)

    async def _attach(self, claimed: Claimed) -> None:
        attachment = await self.worker.attach(claimed)
        if isinstance(attachment, Attached):
            tokens = [list(choice) for choice in attachment.fold.tokens]
            self.job = Job(claimed, self.worker.parse(claimed), attachment.log, attachment.fold, tokens)
        else:
            self.claimed = None

    async def crash(self) -> None:
        """Replace this process by a new one under a new name."""
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


class Chaos:
    """Injects faults into a run. With `rewind`, Redis also loses its newest writes, and every connection notices."""

    def __init__(
        self, dice: random.Random, link: Link, keys: Keys, processes: list[Process], watch: Watch, rewind: str | None
    ) -> None:
        self.dice, self.link, self.keys, self.processes, self.watch = dice, link, keys, processes, watch
        self.rewind = rewind
        self.snapshot: Snapshot | None = None
        self.on_forget: Callable[[], None] = lambda: None
        self.logs: list[Log] = []
        """The reply log as it was each time before it was forgotten."""
        self.check = LossCheck(keys, "gateway", retention_ms=RETENTION_MS)
        self.stream = keys.requests("normal")

    async def strike(self, server: RedisServer) -> None:
        """Inject one fault, or more often none."""
        faults: list[Callable[[], Awaitable[object]]] = [
            self.kill_connection,
            self.kill_connection,
            self.lose_entry,
            self.add_twin,
            self.look_for_loss,
            lambda: self.dice.choice(self.processes).crash(),
            lambda: self.dice.choice(self.processes).drain(),
            *[self.nothing] * 5,
        ]
        if self.rewind is not None:
            faults += [lambda: self.remember(server)] * 3 + [self.forget] * 2
        await self.dice.choice(faults)()

    async def kill_connection(self) -> None:
        victim = self.dice.choice(self.processes).worker.link
        assert isinstance(victim, Link)
        await self.link.call_many([("CLIENT", "KILL", "ID", victim.client_id)])

    async def lose_entry(self) -> None:
        if self.watch.ref is not None:
            await self.link.call("XDEL", self.stream, self.watch.ref.entry_id)

    async def add_twin(self) -> None:
        if self.watch.request is not None and await RequestQueue(self.link, self.keys).depth() < 3:
            await self.link.call("XADD", self.stream, "*", *bare_fields(self.watch.request))

    async def look_for_loss(self) -> None:
        await self.check.check(self.link, self.watch)

    async def remember(self, server: RedisServer) -> None:
        self.snapshot = Snapshot(server, self.rewind or "*")

    async def forget(self) -> None:
        if self.snapshot is not None:
            self.on_forget()
            self.logs.append(await self.read_log())
            self.snapshot.restore()
            self.snapshot = None
            await self.link.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def nothing(self) -> None:
        return

    async def read_log(self) -> "Log":
        entries: Log = await self.link.call("XRANGE", self.keys.reply("r1"), "-", "+")
        return entries


async def _run(chaos: Chaos, server: RedisServer) -> None:
    for turn in range(2000):
        calm = turn > 60
        if not calm:
            await chaos.strike(server)
        active = [process for process in chaos.processes if calm or chaos.dice.random() < 0.6]
        await asyncio.gather(*(process.step() for process in active))
        if calm:
            await chaos.look_for_loss()
            if await RequestQueue(chaos.link, chaos.keys).depth() == 0:
                return
    pytest.fail("the request did not end")


def _valid(tokens: list[int]) -> bool:
    """Return whether each token is one that some worker would generate at its position, and none is missing."""
    return len(tokens) == LENGTH and all(token // 10 == position for position, token in enumerate(tokens))


Follow = Callable[[ReplyReader], Awaitable[tuple[Seen, ReplyConflict | None]]]


async def _follow(reader: ReplyReader) -> tuple[Seen, ReplyConflict | None]:
    """Return what a reader saw, and how reading ended early, if it did."""
    seen = Seen()
    try:
        await follow_until(reader.subscribe(Watch("r1", "default")), seen, lambda seen: False)
    except ReplyConflict as conflict:
        return seen, conflict
    return seen, None


async def _always_conflict(reader: ReplyReader) -> tuple[Seen, ReplyConflict | None]:
    """A reader that reports a conflict on every reply."""
    seen, _ = await _follow(reader)
    return seen, ReplyConflict("as always")


def _contradicts(log: Log, tokens: list[int]) -> bool:
    """Return whether the log contradicts `tokens` or itself, or ends with tokens missing."""
    known = dict(enumerate(tokens))
    for _, event in filter(None, map(decode_entry, log)):
        if isinstance(event, Started):
            continue
        for run in event.runs:
            for position, token in enumerate(run.tokens, run.position):
                if known.setdefault(position, token) != token:
                    return True
        if isinstance(event, Terminal):
            end = event.endings[0].tokens
            return end < len(tokens) or not all(position in known for position in range(end))
    return False


def _check(outcome: tuple[Seen, ReplyConflict | None], logs: list[Log]) -> None:
    """Check for one valid sequence with one end, or for an error that one of the logs justifies."""
    seen, conflict = outcome
    if conflict is None:
        assert _valid(seen.tokens[0]), seen
        assert len(seen.terminals) == 1
    else:
        assert any(_contradicts(log, seen.tokens.get(0, [])) for log in logs), f"{conflict}: but nothing changed"


async def _scenario(
    server: RedisServer,
    link: Link,
    keys: Keys,
    make_reader: MakeReader,
    seed: int,
    rewind: str | None,
    follow: Follow = _follow,
) -> tuple[Seen, Seen]:
    """Run once, and check what a live and a late reader saw."""
    dice = random.Random(seed)
    request = make_request()
    accepted = await enqueue(link, keys, request)
    watch = Watch(request.id, "default", accepted.entry, request)
    workers = [ScriptedWorker(server.url, keys, f"w{i}", salt=i, lease_ms=3) for i in range(3)]
    processes = [Process(await worker.connect(), dice) for worker in workers]
    live = asyncio.ensure_future(follow(await make_reader(server.url, loss_check_s=60)))
    chaos = Chaos(dice, link, keys, processes, watch, rewind)
    forgotten_after_end: list[bool] = []
    chaos.on_forget = lambda: forgotten_after_end.append(live.done())
    try:
        await _run(chaos, server)
        async with asyncio.timeout(PATIENCE_S):
            seen = await live
    finally:
        live.cancel()
        for process in processes:
            await process.worker.close()
    late = await follow(await make_reader(server.url))
    log = await chaos.read_log()
    _check(seen, [*chaos.logs, log])
    _check(late, [log])
    if seen[1] is None and late[1] is None and not any(forgotten_after_end):
        assert (late[0].tokens, late[0].resume_id) == (seen[0].tokens, seen[0].resume_id)
    return seen[0], late[0]


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_interleaving_reads_as_one_sequence_with_one_end(
    redis_server: RedisServer, link: Link, keys: Keys, make_reader: MakeReader, seed: int
) -> None:
    """Faults occur between any two steps; live and late readers see the same valid sequence."""
    seen, late = await _scenario(redis_server, link, keys, make_reader, seed, None)
    assert late.tokens == seen.tokens
    assert len(seen.terminals) == len(late.terminals) == 1
    entries = await link.call("XRANGE", keys.reply("r1"), "-", "+")
    assert len([entry for entry in entries if entry[1][1] == b"finished"]) == 1


@pytest.mark.parametrize("rewind", ["*", "orca:reply:*"])
@pytest.mark.parametrize("seed", range(15))
async def test_when_redis_loses_writes_a_reader_sees_one_sequence_or_an_error(
    redis_server: RedisServer, link: Link, keys: Keys, make_reader: MakeReader, seed: int, rewind: str
) -> None:
    """The newest writes are lost, of all keys or of the logs alone: never a silently changed or shortened reply, and an
    error only if something changed.
    """
    await _scenario(redis_server, link, keys, make_reader, seed, rewind)


@pytest.mark.parametrize("rewind", [None, "*"])
async def test_a_reader_that_always_answers_conflict_is_caught(
    redis_server: RedisServer, link: Link, keys: Keys, make_reader: MakeReader, rewind: str | None
) -> None:
    """A check of these tests themselves: they catch an error without a cause."""
    with pytest.raises(AssertionError, match="nothing changed"):
        await _scenario(redis_server, link, keys, make_reader, 0, rewind, _always_conflict)

"""Attach, with rivals that act between any two of its commands."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from orcastream.broker.attach import Attached, Ended, NotMine
from orcastream.broker.connection import Connection
from orcastream.broker.errors import Fenced, LinkLost, Unusable
from orcastream.broker.fold import fold_log
from orcastream.broker.link import Link
from orcastream.broker.queue import entry_state
from orcastream.broker.scripts import BEGIN, Command, ScriptCall
from orcastream.schemas.events import EventId
from orcastream.schemas.keys import Keys
from tests.broker.conftest import Begin, MakeWorker
from tests.broker.following import expected
from tests.broker.scripted import ScriptedWorker, enqueue, make_request, take_over
from tests.redis_server import RedisServer

Action = Callable[[], Awaitable[object]]


class Interposed:
    """A link that executes a batch one command at a time, with an action before the n-th command overall."""

    def __init__(self, link: Connection, actions: dict[int, Action], *, every: Action | None = None) -> None:
        self._link = link
        self._actions = actions
        self._every = every
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def call_many(self, commands: list[Command | ScriptCall]) -> list[Any]:
        replies = []
        for command in commands:
            if self._count in self._actions:
                await self._actions[self._count]()
            if self._every is not None and isinstance(command, tuple) and command[0] == "XADD":
                await self._every()
            self._count += 1
            replies += await self._link.call_many([command])
        return replies

    call_in_order = call_many


async def test_a_takeover_between_the_look_and_the_fence(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """The lease moved after the first look, or without one: the check after the fence detects it, whichever command it
    precedes.
    """
    for is_new, position in [*((False, number) for number in range(1, 9)), *((True, number) for number in range(3))]:
        await link.call("FLUSHALL")
        await enqueue(link, keys, make_request())
        slow, heir = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
        claimed = (await slow.claimer.new(1))[0]

        async def move(heir: ScriptedWorker = heir) -> None:
            await heir.open(await take_over(heir))

        real, slow.link = slow.link, cast(Link, Interposed(slow.link, {position: move}))
        assert await slow.attach(claimed, is_new=is_new) == NotMine(), (is_new, position)
        slow.link = real


async def test_a_terminal_between_the_look_and_the_fence(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """The old owner finishes in the middle of a takeover: one terminal, and the new owner finds it."""
    await enqueue(link, keys, make_request())
    owner, heir = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    job = await owner.take()
    claimed = await take_over(heir)

    async def finish() -> None:
        await job.log.end(owner.terminal(job))

    real, heir.link = heir.link, cast(Link, Interposed(heir.link, {4: finish}))
    assert isinstance(await heir.attach(claimed), Ended)
    heir.link = real


async def test_a_rival_between_the_fence_and_the_reading(link: Link, keys: Keys, begin: Begin) -> None:
    """A worker without ownership fences in the middle: the attach restarts and wins."""
    worker, job = await begin()
    request = job.request
    flat = (await link.call("XRANGE", keys.reply(request.id), "-", "+"))[0][1]
    rival_epoch = job.log.epoch + 10**9

    async def fence() -> None:
        await link.call("XADD", keys.reply(request.id), f"{rival_epoch}-0", *flat)

    real, worker.link = worker.link, cast(Link, Interposed(worker.link, {6: fence}))
    again = await worker.attach(job.claimed)
    worker.link = real
    assert isinstance(again, Attached)
    assert again.log.epoch == rival_epoch + 1


async def test_rivals_that_never_stop(link: Link, keys: Keys, begin: Begin) -> None:
    """An attach fails after a few rounds; its caller retries later."""
    worker, job = await begin()
    request = job.request
    flat = (await link.call("XRANGE", keys.reply(request.id), "-", "+"))[0][1]
    epochs = iter(range(job.log.epoch + 10**9, 2**62, 10**9))

    async def fence() -> None:
        await link.call("XADD", keys.reply(request.id), f"{next(epochs)}-0", *flat)

    real, worker.link = worker.link, cast(Link, Interposed(worker.link, {}, every=fence))
    with pytest.raises(Fenced, match="rivals"):
        await worker.attach(job.claimed)
    worker.link = real


async def test_a_deleted_entry_has_no_owner(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Redis 6.2 keeps the entry pending under the owner's name, but it is gone."""
    accepted = await enqueue(link, keys, make_request())
    worker = await make_worker(redis_server.url, "w1")
    job = await worker.take()
    await link.call("XDEL", keys.requests("normal"), accepted.entry.entry_id)
    assert await worker.attach(job.claimed) == NotMine()


async def test_a_worker_that_lost_its_lease_does_not_fence_the_new_owner(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """The look before the fence protects the rightful owner."""
    await enqueue(link, keys, make_request())
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    job = await first.take()
    taken = await second.open(await take_over(second))
    assert await first.attach(job.claimed) == NotMine()
    await second.step(taken)


async def test_an_epoch_ahead_of_the_clock_is_topped(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A server whose clock was ahead wrote the log."""
    request = make_request()
    await enqueue(link, keys, request)
    first, second = await make_worker(redis_server.url, "w1"), await make_worker(redis_server.url, "w2", lease_ms=1)
    first.epochs[request.id] = await link.server_time_ms() + 3_600_000
    job = await first.take()
    await first.step(job, 2)
    taken = await second.open(await take_over(second))
    assert taken.log.epoch == job.log.epoch + 1
    assert taken.tokens[0] == expected(2)


async def test_a_link_that_breaks_in_the_middle(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """The outcome is unknown; the attach restarts on a new link."""
    await enqueue(link, keys, make_request())
    worker = await make_worker(redis_server.url, "w1")
    claimed = (await worker.claimer.new(1))[0]
    for position in range(6):
        victim = worker.link

        async def cut(victim: Link = victim) -> None:
            await link.call("CLIENT", "KILL", "ID", victim.client_id)
            await victim.wait_lost()

        worker.link = cast(Link, Interposed(victim, {position: cut}))
        with pytest.raises(LinkLost):
            await worker.attach(claimed)
        await victim.close()
        await worker.connect()
    assert isinstance(await worker.attach(claimed), Attached)


async def test_the_log_outlives_the_deadline_by_the_retention(link: Link, keys: Keys, begin: Begin) -> None:
    """A renewal restores a lost lifetime."""
    worker, job = await begin()
    request = job.request
    assert await link.call("PTTL", keys.reply(request.id)) > 110_000
    await link.call("PERSIST", keys.reply(request.id))
    await worker.renew(job)
    assert await link.call("PTTL", keys.reply(request.id)) > 110_000


class _Writes:
    """Counts the commands that a link writes."""

    def __init__(self) -> None:
        self.count = 0

    def sent(self, num_commands: int) -> None:
        self.count += 1

    def answered(self, seconds: float) -> None:
        pass

    def lost(self) -> None:
        pass


@pytest.mark.parametrize(("is_new", "round_trips"), [(True, 1), (False, 2)])
async def test_round_trips_after_the_claim(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker, is_new: bool, round_trips: int
) -> None:
    """One for the look, and one for the fence with everything that must be known before the engine begins, including a
    cancel. A log that has not been begun needs no look.
    """
    await link.run(BEGIN, ["known to the server from now on"], [0, 2**50, 0, 0, "type", "started"])
    await enqueue(link, keys, make_request())
    worker = await make_worker(redis_server.url, "w1")
    claimed = (await worker.claimer.new(1))[0]
    await link.call("SET", keys.cancel(make_request().id), 1)
    await entry_state(link, keys, claimed.ref, "r1")  # the server knows the script from here on
    writes = _Writes()
    counted = await Link.open(redis_server.url, observer=writes)
    real, worker.link, writes.count = worker.link, counted, 0
    try:
        attached = await worker.attach(claimed, is_new=is_new)
    finally:
        worker.link = real
        await counted.close()
    assert isinstance(attached, Attached)
    assert attached.cancelled
    assert writes.count == round_trips
    assert attached.fold.started is not None
    assert attached.fold.last_id == EventId(attached.log.epoch, 0)
    (entry,) = await link.call("XRANGE", keys.reply(make_request().id), "-", "+")
    assert fold_log([entry]).started == attached.fold.started
    assert fold_log([entry]).last_id == attached.fold.last_id
    assert await link.call("PTTL", keys.reply(make_request().id)) > 110_000


async def test_a_worker_that_slept_past_the_end_leaves_no_log(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """Between the claim and the first write, another worker ended the request, and its log expired."""
    await enqueue(link, keys, make_request())
    slow, heir = (
        await make_worker(redis_server.url, "w1", lease_ms=1),
        await make_worker(redis_server.url, "w2", lease_ms=1),
    )
    claimed = (await slow.claimer.new(1))[0]
    await heir.end(await heir.open(await take_over(heir)))
    await link.call("DEL", keys.reply(make_request().id))
    assert await slow.attach(claimed, is_new=True) == NotMine()
    assert await link.call("EXISTS", keys.reply(make_request().id)) == 0


@pytest.mark.parametrize(
    ("since_ms", "until_ms", "begins"), [(-10, 10_000, True), (-10, -1, False), (10_000, 20_000, False)]
)
async def test_a_log_is_begun_without_a_look_only_while_the_first_claim_holds(
    link: Link, keys: Keys, since_ms: int, until_ms: int, begins: bool
) -> None:
    """By the clock of the server that writes: neither after that time, nor if the entry's id is in the future."""
    now_ms = await link.server_time_ms()
    log = keys.reply("r1")
    epoch = await link.run(BEGIN, [log], [now_ms + since_ms, now_ms + until_ms, 0, 60_000, "type", "started"])
    entries = await link.call("XRANGE", log, "-", "+")
    assert entries == ([[b"%d-0" % epoch, [b"type", b"started"]]] if begins else [])
    assert bool(epoch) is begins


async def test_an_existing_key_where_a_new_log_would_begin(
    redis_server: RedisServer, link: Link, keys: Keys, make_worker: MakeWorker
) -> None:
    """A foreign key ends the attach; nothing is written after a terminal."""
    request = make_request()
    await enqueue(link, keys, request)
    worker = await make_worker(redis_server.url, "w1")
    claimed = (await worker.claimer.new(1))[0]
    await link.call("SET", keys.reply(request.id), "something else")
    with pytest.raises(Unusable):
        await worker.attach(claimed, is_new=True)
    await link.call("DEL", keys.reply(request.id))
    job = await worker.open(claimed)
    await job.log.end(worker.terminal(job))
    entries = await link.call("XRANGE", keys.reply(request.id), "-", "+")
    assert isinstance(await worker.attach(claimed, is_new=True), Ended)
    assert await link.call("XRANGE", keys.reply(request.id), "-", "+") == entries

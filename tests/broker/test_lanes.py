"""A queue in several lanes: separate queues to Redis, one queue to workers and gateways."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from orcastream.broker.attendance import Attendance, Reading
from orcastream.broker.cancel import cancel
from orcastream.broker.claimed import Claimed
from orcastream.broker.connect import connect
from orcastream.broker.connection import Connection
from orcastream.broker.dead_letter import bury
from orcastream.broker.ending import Ender
from orcastream.broker.lease import Held
from orcastream.broker.letters import delete_letters, find_letter, newest_letters
from orcastream.broker.loss import LossCheck, Verdict, Watch
from orcastream.broker.presence import Presence, list_workers
from orcastream.broker.queue import RequestQueue
from orcastream.broker.queue_state import read_queue_state
from orcastream.broker.queued import find_queued, queued_requests
from orcastream.broker.sweep import Sweeper
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.keys import CLASSES, Keys
from tests.broker.conftest import MakeReader, MakeWorker
from tests.broker.following import expected, follow
from tests.broker.scripted import RETENTION_MS, bare_fields, enqueue, make_request, take_over
from tests.redis_cluster import RedisCluster
from tests.redis_server import one_server

pytestmark = one_server("system")

LANES = 3
IDS = [f"r{number}" for number in range(12)]


@pytest.fixture
def keys() -> Keys:
    return Keys("demo", queue_lanes=LANES)


@pytest.fixture
async def link(cluster: RedisCluster, keys: Keys) -> AsyncIterator[Connection]:
    """A link to a cluster with each lane on its own node."""
    for lane, node in zip(keys.each_lane, cluster.nodes, strict=True):
        if cluster.node_of(lane.dead) is not node:
            cluster.move(lane.dead, node)
    connection = await connect(cluster.url)
    yield connection
    await connection.close()


def of_lane(keys: Keys, lane: int) -> list[str]:
    return [one for one in IDS if keys.lane_of(one) == lane]


async def enqueue_all(link: Connection, keys: Keys, ids: Sequence[str] = IDS) -> None:
    for request_id in ids:
        await enqueue(link, keys, make_request(request_id))


def ids_of(claimed: Sequence[Claimed]) -> list[str | None]:
    return [one.request_id for one in claimed]


def test_each_lane_has_its_own_hash_slot(keys: Keys, cluster: RedisCluster) -> None:
    one = Keys("demo")
    assert [lane.requests("high") for lane in keys.each_lane] == [
        one.requests("high"),
        "orca:{demo:1}:requests:high",
        "orca:{demo:2}:requests:high",
    ]
    for request_id in IDS:
        lane = keys.in_lane(keys.lane_of(request_id))
        nodes = {
            cluster.node_of(key) for key in (lane.dead, lane.clients, keys.seen(request_id), keys.cancel(request_id))
        }
        assert nodes == {cluster.node_of(lane.requests(name)) for name in CLASSES}
    assert {keys.lane_of(request_id) for request_id in IDS} == set(range(LANES))
    assert keys.control == one.control
    assert Keys("demo").lane_of("r1") == 0
    for number, lanes in ((1, 1), (-1, 2), (0, 0), (0, 65)):
        with pytest.raises(InvalidRequest, match="lane"):
            Keys("demo", queue_lanes=lanes, lane=number)


async def test_claims_visit_the_lanes_round_robin(
    link: Connection, keys: Keys, make_worker: MakeWorker, cluster: RedisCluster
) -> None:
    await enqueue_all(link, keys)
    worker = await make_worker(cluster.url, "w1")
    rounds = [[(await worker.claimer.new(1))[0].ref.lane for _ in range(LANES)] for _ in range(2)]
    assert [sorted(one) for one in rounds] == [[0, 1, 2], [0, 1, 2]]
    rest = await worker.claimer.new(99)
    assert len(rest) == len(IDS) - 2 * LANES
    assert await worker.claimer.new(1) == []


async def test_within_a_lane_classes_keep_their_order(
    link: Connection, keys: Keys, make_worker: MakeWorker, cluster: RedisCluster
) -> None:
    first, second = of_lane(keys, 1)[:2]
    await enqueue(link, keys, make_request(first, priority_class="low"))
    await enqueue(link, keys, make_request(second, priority_class="realtime"))
    worker = await make_worker(cluster.url, "w1")
    assert ids_of(await worker.claimer.new(9)) == [second, first]


@pytest.mark.parametrize("lane", range(LANES))
async def test_a_wait_ends_with_an_entry_in_any_lane_and_nothing_is_lost(
    link: Connection, keys: Keys, make_worker: MakeWorker, cluster: RedisCluster, lane: int
) -> None:
    await RequestQueue(link, keys).ensure_groups()
    worker = await make_worker(cluster.url, "w1")
    running = set()
    for request_id in of_lane(keys, lane):
        waiting = asyncio.create_task(worker.wait_for_work(4000))
        await asyncio.sleep(0)
        await enqueue(link, keys, make_request(request_id))
        found = await waiting
        assert ids_of(found) == [request_id]
        running.add(found[0].ref)
        assert await worker.claimer.unknown(running) == []
    await enqueue_all(link, keys)
    found = await worker.wait_for_work(4000, count=1)
    assert len(found) == 1
    others = await make_worker(cluster.url, "w2")
    rest = [*await others.claimer.expired(99), *await others.claimer.new(99)]
    assert len(rest) == len(IDS) - len(of_lane(keys, lane)) - 1


async def test_the_same_entry_id_in_two_lanes_is_two_requests(
    link: Connection, keys: Keys, make_worker: MakeWorker, cluster: RedisCluster
) -> None:
    await RequestQueue(link, keys).ensure_groups()
    for lane in keys.each_lane:
        request = make_request(of_lane(keys, lane.lane)[0])
        await link.call("XADD", lane.requests("normal"), "1700000000000-0", *bare_fields(request))
    worker = await make_worker(cluster.url, "w1")
    jobs = [await worker.open(one) for one in await worker.claimer.new(9)]
    assert len({job.ref for job in jobs}) == LANES
    assert {str(job.ref) for job in jobs} == {"normal 1700000000000-0"}
    leases = await worker.renew(*jobs)
    assert [leases[job.ref].owned for job in jobs] == [True] * LANES
    await worker.end(jobs[0])
    leases = await worker.renew(*jobs)
    assert [leases[job.ref].owned for job in jobs] == [False, True, True]
    assert await RequestQueue(link, keys).find(jobs[1].request.id) is not None


async def test_the_complete_path_of_requests_in_all_lanes(
    link: Connection, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader, cluster: RedisCluster
) -> None:
    reader = await make_reader(cluster.url)
    following = [asyncio.create_task(follow(reader.subscribe(Watch(one, "default")))) for one in IDS]
    await enqueue_all(link, keys)
    queue = RequestQueue(link, keys)
    assert (await queue.depth(), await queue.is_empty()) == (len(IDS), False)
    state = await read_queue_state(link, keys)
    assert (state.lengths["normal"], state.lengths["high"]) == (len(IDS), 0)
    assert sorted([one.request_id async for one in queued_requests(link, keys)]) == sorted(IDS)
    giver, heir = await make_worker(cluster.url, "w1"), await make_worker(cluster.url, "w2", lease_ms=1)
    await Presence(giver.link, keys, "w1").beat({"state": "serving"}, ttl_ms=60_000)
    given = [await giver.open(one) for one in await giver.claimer.new(99)]
    for job in given:
        await giver.step(job)
    assert sorted(await giver.leases.hand_over([job.ref for job in given])) == sorted(job.ref for job in given)
    assert {one.name: one.pending for one in await list_workers(link, keys)} == {"w1": len(IDS)}
    jobs = [await heir.open(await take_over(heir)) for _ in IDS]
    await cancel(link, keys, IDS[0])
    flags = await heir.renew(*jobs)
    assert {job.request.id for job in jobs if flags[job.ref].cancelled} == {IDS[0]}
    for job in jobs:
        await heir.step(job, 2)
        await heir.end(job)
    for seen in await asyncio.gather(*following):
        assert (seen.tokens[0], len(seen.terminals)) == (expected(3), 1)
    assert (await queue.depth(), await queue.is_empty()) == (0, True)
    assert [(await queue.find(one)).outcome for one in IDS] == ["finished"] * len(IDS)  # type: ignore[union-attr]


async def test_dead_letters_of_all_lanes_are_listed_found_and_deleted(
    link: Connection, keys: Keys, make_worker: MakeWorker, cluster: RedisCluster
) -> None:
    ids = [of_lane(keys, lane)[0] for lane in range(LANES)]
    await enqueue_all(link, keys, ids)
    worker = await make_worker(cluster.url, "w1")
    for claimed in await worker.claimer.new(9):
        assert await bury(link, keys, claimed.ref, reason=ErrorCode.DEAD_LETTER, message="no")
    letters = [letter async for letter in newest_letters(link, keys)]
    assert [letter.request_id for letter in letters] == ids
    for letter in letters:
        found = await find_letter(link, keys, letter.letter_id)
        assert found is not None
        assert (found[0], found[1][b"id"].decode()) == (letter, letter.request_id)
    assert await delete_letters(link, keys, [letter.letter_id for letter in letters[1:]]) == LANES - 1
    assert [letter.request_id async for letter in newest_letters(link, keys)] == ids[:1]
    assert await find_letter(link, keys, "1-0.9") is None


async def test_unserved_requests_are_swept_found_and_checked_in_all_lanes(link: Connection, keys: Keys) -> None:
    await RequestQueue(link, keys).ensure_groups()
    for request_id in IDS:
        late = make_request(request_id, deadline_ms=1_000_000_000_000)
        await enqueue(link, keys, late) if request_id in IDS[:6] else await enqueue(
            link, keys, make_request(request_id)
        )
    found = await find_queued(link, keys, IDS[-1])
    assert found is not None
    assert found.ref.lane == keys.lane_of(IDS[-1])
    swept = await Sweeper(link, keys, "g", retention_ms=RETENTION_MS, margin_ms=0).step()
    assert len(swept.expired) == 6
    loss = LossCheck(keys, "g", retention_ms=RETENTION_MS)
    verdicts = [await loss.check(link, Watch(one, "default")) for one in IDS]
    assert verdicts == [Verdict.ENDED] * 6 + [Verdict.PRESENT] * 6


async def test_clients_are_recorded_in_the_lanes_of_their_requests(link: Connection, keys: Keys) -> None:
    attendance = Attendance(keys, "g1", lease_ms=60_000, grace_ms=0)
    await attendance.tell(link, [(one, Reading.ACCEPTED) for one in IDS])
    assert await attendance.departed(link) == []
    await attendance.tell(link, [(one, Reading.LEFT) for one in IDS])
    assert sorted(await attendance.departed(link)) == sorted(IDS)
    assert len(await attendance.departed(link, count=5)) == 5
    assert await attendance.give_up(link, IDS[0], expire_at_ms=4_000_000_000_000)
    assert await link.call("EXISTS", keys.cancel(IDS[0])) == 1
    assert len(await link.call("XRANGE", keys.control, "-", "+")) == 1
    await attendance.tell(link, [(one, Reading.ENDED) for one in IDS])
    assert await attendance.departed(link) == []


async def test_a_lane_whose_node_is_down_does_not_block_the_others(
    link: Connection, keys: Keys, make_worker: MakeWorker, cluster: RedisCluster
) -> None:
    await enqueue_all(link, keys)
    worker = await make_worker(cluster.url, "w1", lease_ms=1)
    held = [one for _ in range(LANES) for one in await worker.claimer.new(1)]
    assert {one.ref.lane for one in held} == set(range(LANES))
    dead, living = cluster.nodes[2], {0, 1}
    dead.kill()
    try:
        await worker.link.wait_lost()
        await worker.connect(url=f"redis+cluster://127.0.0.1:{cluster.nodes[1].port}")
        claimed = await worker.claimer.new(99)
        assert {one.ref.lane for one in claimed} == living
        renewed = await worker.leases.renew([Held(one.ref, one.request_id or "", 4_000_000_000_000) for one in held])
        assert {ref.lane for ref, lease in renewed.items() if lease.owned} == living
        await RequestQueue(worker.link, keys).ensure_groups()
        new = next(one for one in (f"n{number}" for number in range(99)) if keys.lane_of(one) in living)
        waiting = asyncio.create_task(worker.wait_for_work(4000))
        await asyncio.sleep(0)
        await enqueue(worker.link, keys.in_lane(keys.lane_of(new)), make_request(new))
        assert ids_of(await waiting) == [new]
    finally:
        dead.start()
        cluster.wait_whole()


async def test_a_duplicate_in_a_wrong_lane_ends_no_request(
    link: Connection, keys: Keys, make_worker: MakeWorker, cluster: RedisCluster
) -> None:
    """Two producers that disagree on the number of lanes post one id; the one in the wrong lane breaks a rule."""
    request = make_request(of_lane(keys, 1)[0])
    await enqueue(link, keys, request)
    worker = await make_worker(cluster.url, "w1")
    job = await worker.take()
    await worker.step(job)
    await link.call("XADD", keys.requests("normal"), "*", *bare_fields(request))
    (misplaced,) = await worker.claimer.new(1)
    assert misplaced.ref.lane == 0
    error = InvalidRequest("queue lane", 0, "1 for this id, of 3 lanes")
    await Ender(keys, "w1", retention_ms=RETENTION_MS).reject(link, misplaced.ref, misplaced.fields, error)
    await worker.step(job)
    assert (await worker.end(job)).error is None
    assert await RequestQueue(link, keys).depth() == 0

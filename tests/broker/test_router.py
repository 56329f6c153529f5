"""A cluster of three real nodes behind one connection: keys reach their nodes, even while slots move and nodes die."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ClusterDownError, NoPermissionError, ResponseError

from orcastream.broker.address import RedisAddress
from orcastream.broker.attendance import Attendance, Reading
from orcastream.broker.cancel import ControlReader, cancel
from orcastream.broker.connect import connect
from orcastream.broker.connection import Connection
from orcastream.broker.errors import LinkLost, Unwritable
from orcastream.broker.fold import fold_log
from orcastream.broker.followed import FollowedLog
from orcastream.broker.lease import Lease
from orcastream.broker.link import Link
from orcastream.broker.loss import Watch
from orcastream.broker.node_reading import NodeReading
from orcastream.broker.node_readings import NodeReadings
from orcastream.broker.queue import RequestQueue
from orcastream.broker.redis_link import RedisLink
from orcastream.broker.reply_log import append_many
from orcastream.broker.router import Router
from orcastream.broker.scripts import ENTRY_STATE
from orcastream.broker.token_writer import TokenWriter
from orcastream.schemas.events import Output
from orcastream.schemas.keys import GROUP, Keys
from tests.broker.conftest import MakeReader, MakeWorker
from tests.broker.following import Seen, expected, follow, follow_until, tokens_seen
from tests.broker.scripted import Job, ScriptedWorker, enqueue, make_request
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_cluster import RedisCluster
from tests.redis_server import RedisServer, one_server

pytestmark = one_server("system")

NAMES = [f"key-{number}" for number in range(24)]


@pytest.fixture
async def router(cluster: RedisCluster) -> AsyncIterator[Router]:
    connection = await connect(cluster.url)
    assert isinstance(connection, Router)
    yield connection
    await connection.close()


@pytest.fixture
def stranger(redis_binary: str, tmp_path: Path) -> Iterator[RedisServer]:
    """A node that knows no other."""
    options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    server = RedisServer(redis_binary, tmp_path, options=options)
    server.start()
    yield server
    server.kill()


def other_node(cluster: RedisCluster, key: str) -> Any:
    """A node that does not serve `key`."""
    return next(node for node in cluster.nodes if node is not cluster.node_of(key))


async def running(worker: ScriptedWorker, link: Connection, keys: Keys, *request_ids: str) -> list[Job]:
    """Requests claimed by a worker, in the order of their ids."""
    jobs = []
    for request_id in request_ids:
        await enqueue(link, keys, make_request(request_id, max_tokens=100))
        jobs.append(await worker.take())
    return jobs


async def logged(link: Connection, keys: Keys, job: Job) -> list[int]:
    """The tokens in the log."""
    return fold_log(await link.call("XRANGE", keys.reply(job.request.id), "-", "+")).tokens[0]


@pytest.mark.parametrize("name", ["gateway-1", ""], ids=["named", "for a question"])
async def test_a_node_that_takes_no_more_connections_cannot_be_reached(stranger: RedisServer, name: str) -> None:
    with stranger.client() as client:
        client.config_set("maxclients", 1)
        with pytest.raises(LinkLost, match="max number of clients"):
            await Link.open(stranger.url, name=name)


async def test_each_command_goes_to_the_node_of_its_key(cluster: RedisCluster, router: Router) -> None:
    assert {cluster.node_of(name) for name in NAMES} == set(cluster.nodes)
    assert await router.call_many([("SET", name, name) for name in NAMES]) == [b"OK"] * len(NAMES)
    reads = [command for name in NAMES for command in (("GET", name), ("TIME",))]
    replies = await router.call_many(reads)
    assert replies[::2] == [name.encode() for name in NAMES]
    assert all(len(reply) == 2 for reply in replies[1::2])
    assert await router.call_in_order([("GET", name) for name in NAMES]) == replies[::2]
    wrong = await router.call_many([("GET", NAMES[0]), ("INCR", NAMES[1]), ("GET", NAMES[2])])
    assert [type(reply) for reply in wrong] == [bytes, ResponseError, bytes]


async def test_a_script_runs_on_the_node_of_its_keys_and_is_loaded_on_each_node(router: Router) -> None:
    calls = [ENTRY_STATE.call([name], [GROUP, "1-1"]) for name in NAMES]
    assert await router.call_many(calls) == [[0, b"", 0, 0]] * len(NAMES)


async def test_a_moved_slot_is_found_and_remembered(cluster: RedisCluster, router: Router) -> None:
    await router.call("SET", "moves", "1")
    target = other_node(cluster, "moves")
    cluster.move("moves", target)
    assert await router.call("GET", "moves") == b"1"
    node = router.node_of("moves")
    assert node is not None
    assert node.port == target.port


async def test_an_already_migrated_key_is_reached_with_asking(cluster: RedisCluster, router: Router) -> None:
    await router.call("SET", "asked", "1")
    source = cluster.node_of("asked")
    with cluster.moving("asked", other_node(cluster, "asked")):
        assert await router.call("GET", "asked") == b"1"
        assert await router.call_many([("SET", "asked", "2"), ("GET", "asked")]) == [b"OK", b"2"]
        assert router.is_moving("asked")
        node = router.node_of("asked")
        assert node is not None
        assert node.port == source.port
    assert await router.call("GET", "asked") == b"2"


async def test_the_complete_path_of_requests_over_all_nodes(
    cluster: RedisCluster, router: Router, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    ids = [f"r{number}" for number in range(12)]
    assert {cluster.node_of(keys.reply(one)) for one in ids} == set(cluster.nodes)
    reader = await make_reader(cluster.url)
    worker = await make_worker(cluster.url, "w1")
    following = [asyncio.create_task(follow(reader.subscribe(Watch(one, "default")))) for one in ids]
    jobs = await running(worker, router, keys, *ids)
    writer = TokenWriter(lambda _: None, lambda *settled: pytest.fail(f"{settled}"))
    opened = [writer.open(job.log, job.tokens[0], 0) for job in jobs]
    streams = [stream for stream in opened if stream is not None]
    assert len(streams) == len(jobs)
    for position in range(3):
        assert writer.add(streams, [worker.model(position)] * len(jobs)) == []
        writer.send()
        await writer.settled()
    for stream in streams:
        stream.close()
    assert [lease.owned for lease in (await worker.renew(*jobs)).values()] == [True] * len(jobs)
    assert await append_many([(job.log, Output((worker.next_run(job),))) for job in jobs]) == [None] * len(jobs)
    for job in jobs:
        await worker.end(job)
    for seen in await asyncio.gather(*following):
        assert (seen.tokens[0], len(seen.terminals)) == (expected(4), 1)
    assert await RequestQueue(router, keys).depth() == 0


async def test_tokens_for_a_moved_log_are_refused_and_the_next_epoch_continues_there(
    cluster: RedisCluster, router: Router, keys: Keys, make_worker: MakeWorker
) -> None:
    worker = await make_worker(cluster.url, "w1")
    (job,) = await running(worker, router, keys, "r1")
    await worker.step(job, 2)
    cluster.move(job.log.key, other_node(cluster, job.log.key))
    failures: list[Any] = []
    writer = TokenWriter(lambda _: None, lambda _, failure: failures.append(failure))
    stream = writer.open(job.log, [0, 10], 2)
    assert stream is not None
    assert writer.add([stream], [20]) == []
    writer.send()
    await writer.settled()
    assert [(type(failure), failure.code) for failure in failures] == [(Unwritable, "MOVED")]
    again = await worker.open(job.claimed)
    assert again.log.epoch > job.log.epoch
    await worker.step(again)
    assert await logged(router, keys, again) == expected(3)
    assert not job.log.writable


async def test_a_log_is_written_and_read_while_its_slot_moves(
    cluster: RedisCluster, router: Router, keys: Keys, make_worker: MakeWorker, make_reader: MakeReader
) -> None:
    reader = await make_reader(cluster.url)
    worker = await make_worker(cluster.url, "w1")
    (job,) = await running(worker, router, keys, "r1")
    following = asyncio.create_task(follow(reader.subscribe(Watch("r1", "default"))))
    await worker.step(job)
    with cluster.moving(job.log.key, other_node(cluster, job.log.key)):
        with pytest.raises(Unwritable, match="ASK"):
            await job.log.append([worker.next_run(job)])
        again = await worker.open(job.claimed)
        assert again.log.is_moving
        for _ in range(3):
            await worker.step(again)
        writer = TokenWriter(lambda _: None, lambda *_: None)
        assert writer.open(again.log, [0, 10, 20, 30], 4) is None  # commands with ASKING are written one by one
    await worker.step(again)  # the node that receives the write serves the slot by now
    await worker.end(again)
    seen = await following
    assert (seen.tokens[0], len(seen.terminals)) == (expected(5), 1)


async def test_a_log_that_moves_is_left_and_followed_anew(
    cluster: RedisCluster,
    router: Router,
    keys: Keys,
    make_worker: MakeWorker,
    make_reader: MakeReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While its reader asks where it is: the first follower's log does not take the place of the second one's."""
    asks, goes_on, call = asyncio.Event(), asyncio.Event(), Router.call

    async def call_slowly(self: Router, *args: Any) -> Any:
        reply = await call(self, *args)
        if args[0] == "XREAD":
            asks.set()
            await goes_on.wait()
        return reply

    monkeypatch.setattr(Router, "call", call_slowly)
    reader = await make_reader(cluster.url, loss_check_s=60)
    worker = await make_worker(cluster.url, "w1")
    (job,) = await running(worker, router, keys, "r1")
    await worker.step(job)
    first = reader.subscribe(Watch("r1", "default"))
    async with asyncio.timeout(PATIENCE_S):
        await follow_until(first, Seen(), tokens_seen(1))
        cluster.move(job.log.key, other_node(cluster, job.log.key))
        await asks.wait()
        first.close()
        following = asyncio.create_task(follow(reader.subscribe(Watch("r1", "default"))))
        await asyncio.sleep(0)
        goes_on.set()
        again = await worker.open(job.claimed)
        await worker.step(again)
        await worker.end(again)
        seen = await following
    assert (seen.tokens[0], len(seen.terminals)) == (expected(2), 1)


async def test_a_new_log_begins_on_the_node_that_its_slot_moves_to(
    cluster: RedisCluster, router: Router, keys: Keys, make_worker: MakeWorker
) -> None:
    worker = await make_worker(cluster.url, "w1")
    target = other_node(cluster, keys.reply("r1"))
    with cluster.moving(keys.reply("r1"), target):
        (job,) = await running(worker, router, keys, "r1")
        await worker.step(job)
        with target.client() as client:
            assert client.keys("orca:reply:*") == [job.log.key.encode()]
    await worker.step(job)
    assert await logged(router, keys, job) == expected(2)


@pytest.mark.parametrize("num_keys", [0, 1000], ids=["no key moved yet", "all keys moved"])
async def test_leases_are_renewed_while_the_queues_slot_moves(
    cluster: RedisCluster, router: Router, keys: Keys, make_worker: MakeWorker, num_keys: int
) -> None:
    worker = await make_worker(cluster.url, "w1")
    queue = keys.requests("normal")
    jobs = await running(worker, router, keys, "r1", "r2")
    with cluster.moving(queue, other_node(cluster, queue), num_keys=num_keys):
        assert await worker.renew(*jobs) == {job.ref: Lease(owned=True, cancelled=False) for job in jobs}
        await router.call("SET", keys.cancel("r2"), "1", "PX", 60_000)
        assert [lease.cancelled for lease in (await worker.renew(*jobs)).values()] == [False, True]


async def test_a_session_begins_while_the_queues_slot_moves(cluster: RedisCluster, router: Router, keys: Keys) -> None:
    await cancel(router, keys, "r1")
    with cluster.moving(keys.control, other_node(cluster, keys.control)):
        control = ControlReader(await router.another(keys.control, name="control"), keys)
        await control.begin(router)
        await RequestQueue(router, keys).ensure_groups()


async def test_a_queue_whose_slot_moves_continues_on_the_new_node(
    cluster: RedisCluster, router: Router, keys: Keys, make_worker: MakeWorker
) -> None:
    worker = await make_worker(cluster.url, "w1")
    (job,) = await running(worker, router, keys, "r1")
    cluster.move(keys.requests("normal"), other_node(cluster, keys.requests("normal")))
    assert (await worker.renew(job))[job.ref].owned
    (other,) = await running(worker, router, keys, "r2")
    await worker.step(other)
    await worker.end(other)
    await worker.end(job)
    assert await RequestQueue(router, keys).depth() == 0


async def test_only_the_slots_of_a_dead_node_are_unavailable(cluster: RedisCluster, router: Router) -> None:
    await router.call_many([("SET", name, name) for name in NAMES])
    dead = cluster.node_of(NAMES[0])
    dead.kill()
    try:
        assert f":{dead.port}:" in await router.wait_lost()
        with pytest.raises(LinkLost):
            await router.call("GET", NAMES[1])
        seeds = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        again = await connect(f"redis+cluster://{seeds}")
        replies = await again.call_many([("GET", name) for name in NAMES])
        for name, reply in zip(NAMES, replies, strict=True):
            away = cluster.node_of(name) is dead
            assert isinstance(reply, ClusterDownError) if away else reply == name.encode()
    finally:
        dead.start()
        cluster.wait_whole()
    while isinstance(reply := (await again.call_many([("GET", NAMES[0])]))[0], ClusterDownError):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert reply == NAMES[0].encode()
    await again.close()


async def test_commands_on_other_nodes_do_not_wait_for_a_frozen_one(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = cluster.node_of(NAMES[0])
    url = f"redis+cluster://127.0.0.1:{other_node(cluster, NAMES[0]).port}"
    router = await Router.open(RedisAddress.parse(url))
    await router.call_many([("SET", name, name) for name in NAMES if cluster.node_of(name) is not frozen])
    monkeypatch.setattr("orcastream.broker.router.ASK_TIMEOUT_S", 0.05)
    frozen.freeze()
    try:
        for _ in range(3):
            replies = dict(zip(NAMES, await router.call_many([("SET", name, name) for name in NAMES]), strict=True))
            (opening,) = router._opening.values()
            assert not opening.done()
    finally:
        frozen.thaw()
        cluster.wait_whole()
    refused = {name for name, reply in replies.items() if isinstance(reply, ClusterDownError)}
    assert refused == {name for name in NAMES if cluster.node_of(name) is frozen}
    await opening
    assert await router.call_many([("SET", name, name) for name in NAMES]) == [b"OK"] * len(NAMES)
    await router.close()


async def test_if_the_named_node_is_gone_other_known_nodes_are_asked(cluster: RedisCluster, router: Router) -> None:
    named = cluster.nodes[0]
    assert cluster.url.endswith(f":{named.port}")
    named.kill()
    try:
        again = await connect(cluster.url)
        served = next(name for name in NAMES if cluster.node_of(name) is not named)
        assert await again.call("SET", served, "value") == b"OK"
        await again.close()
    finally:
        named.start()
        cluster.wait_whole()


async def test_a_process_connects_while_the_node_of_the_first_slots_is_down(cluster: RedisCluster) -> None:
    """Its first command, TIME, has no key: any other node answers it."""
    dead, alive = cluster.nodes[:2]
    served = next(name for name in NAMES if cluster.node_of(name) is not dead)
    dead.kill()
    try:
        redis = RedisLink(f"redis+cluster://127.0.0.1:{alive.port}", "gateway-1")
        assert await (await redis.get()).call("SET", served, "value") == b"OK"
        await redis.close()
    finally:
        dead.start()
        cluster.wait_whole()


async def test_reading_from_a_node_does_not_belong_to_the_request_that_began_it(
    router: Router, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all log lines about the node would name that request's trace."""
    asks, seen = ContextVar("asks", default="nobody"), []

    async def run(_: NodeReading) -> None:
        seen.append(asks.get())

    monkeypatch.setattr(NodeReading, "run", run)
    readings = NodeReadings(router, "gateway-1", lambda *_: None)
    asks.set("a request")
    readings.follow(FollowedLog(Watch("r1", "default"), keys.reply("r1"), keys.model, 0))
    await asyncio.gather(*readings._tasks.values())
    assert seen == ["nobody"]


async def test_a_removed_or_refusing_node_does_not_block_the_others(
    cluster: RedisCluster, stranger: RedisServer
) -> None:
    with pytest.raises(LinkLost, match="it belongs to no cluster, or to one that serves nothing"):
        await connect(f"redis+cluster://127.0.0.1:{stranger.port}")
    rights = "on >word resetkeys ~* -@all +client|id +set"
    for node, more in zip(
        cluster.nodes[:2], ["", " +cluster|slots"], strict=True
    ):  # it refuses, as a loading node does
        with node.client() as client:
            client.execute_command("ACL", "SETUSER", "limited", *(rights + more).split())
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in (stranger, *cluster.nodes[:2]))
    try:
        connection = await connect(f"redis+cluster://limited:word@{hosts}")
        name = next(name for name in NAMES if cluster.node_of(name) is cluster.nodes[1])
        assert await connection.call("SET", name, "value") == b"OK"
        await connection.close()
        with pytest.raises(NoPermissionError):
            await connect(f"redis+cluster://limited:word@127.0.0.1:1,127.0.0.1:{cluster.nodes[0].port}")
    finally:
        for node in cluster.nodes[:2]:
            with node.client() as client:
                client.acl_deluser("limited")


async def test_a_master_replaced_without_its_knowledge_is_abandoned(
    cluster: RedisCluster, stranger: RedisServer
) -> None:
    with stranger.client() as client:  # all slots but one: it considers its cluster down, as a partitioned node does
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16382)
    url = f"redis+cluster://127.0.0.1:{stranger.port},127.0.0.1:{cluster.nodes[1].port}"
    router = await connect(url)
    blocking = await router.another(NAMES[0], name="blocking")
    assert blocking.server.endswith(f":{stranger.port}")
    with pytest.raises(ClusterDownError, match="The cluster is down"):
        await router.call("SET", NAMES[0], "value")
    async with asyncio.timeout(PATIENCE_S):
        assert "serves nothing any more" in await blocking.wait_lost()
    assert await router.call("SET", NAMES[0], "value") == b"OK"
    await router.close()
    again = await connect(url)
    assert await again.call("GET", NAMES[0]) == b"value"
    await again.close()


async def test_no_node_answers_or_the_server_is_no_cluster(redis_server: Any, cluster: RedisCluster) -> None:
    with pytest.raises(LinkLost, match=r"no node of the cluster answers \(127.0.0.1:1: cannot connect"):
        await connect("redis+cluster://127.0.0.1:1")
    with pytest.raises(ResponseError, match="cluster support disabled"):
        await connect(f"redis+cluster://127.0.0.1:{redis_server.port}")
    connection = await connect(f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.nodes[1].port}")
    await connection.close()


async def test_the_permissions_that_a_cluster_needs_in_addition(cluster: RedisCluster) -> None:
    rights = "on >word resetkeys ~* -@all +asking +client|id +client|setname +cluster|slots +get +set"
    for node in cluster.nodes:
        with node.client() as client:
            client.execute_command("ACL", "SETUSER", "limited", *rights.split())
    try:
        connection = await connect(f"redis+cluster://limited:word@127.0.0.1:{cluster.nodes[0].port}", name="limited")
        with cluster.moving("moves", other_node(cluster, "moves")):
            assert await connection.call_many([("SET", "moves", "1"), ("GET", "moves")]) == [b"OK", b"1"]
        await connection.close()
    finally:
        for node in cluster.nodes:
            with node.client() as client:
                client.acl_deluser("limited")


@pytest.mark.parametrize("num_keys", [0, 1000], ids=["no key moved yet", "all keys moved"])
async def test_while_a_queues_slot_moves_marks_of_readers_count_as_refused(
    cluster: RedisCluster, router: Router, keys: Keys, num_keys: int
) -> None:
    """Also at a gateway that has none to set: others may be refused theirs."""
    attendance = Attendance(keys, "idle", lease_ms=8000, grace_ms=2000)
    await Attendance(keys, "other", lease_ms=8000, grace_ms=2000).tell(router, [("r1", Reading.ACCEPTED)])
    await attendance.try_mark(router)
    moving = cluster.moving(keys.clients, other_node(cluster, keys.clients), num_keys=num_keys)
    with moving, pytest.raises(Unwritable, match="TRYAGAIN"):
        await attendance.try_mark(router)
    await attendance.try_mark(router)

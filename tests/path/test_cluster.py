"""Client, gateways and workers on a cluster of three nodes, of which one is killed, or gives slots away."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from orcastream.demo.prompts import LONG_COUNT
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import Keys
from tests.chaos.patches import pace
from tests.path.gateway_process import GatewayProcess
from tests.path.stream import Stream
from tests.redis_cluster import RedisCluster
from tests.redis_server import one_server
from tests.worker.producer import Producer
from tests.worker.worker_process import MODEL, WorkerProcess

pytestmark = one_server("system")

PROMPT, ANSWER = LONG_COUNT
BODY = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2000, "temperature": 0, "timeout": 120}
KEYS = Keys(MODEL)
_PAUSE_S = 0.005
"""Before each iteration: a client that lags on a busy machine still sees an answer begin before it has ended."""


class Site:
    """A cluster with the processes around it."""

    def __init__(self, binary: str, directory: Path, *, replicated: bool = False) -> None:
        self.redis = RedisCluster(binary, directory, replicated=replicated)
        self.directory = directory
        self.workers: dict[str, WorkerProcess] = {}
        self.gateways: list[GatewayProcess] = []

    def start(self, *, workers: int, gateways: int = 1, queue_lanes: int = 1) -> None:
        """Start everything and wait until it serves."""
        self.redis.start()
        started = [
            WorkerProcess(
                self.redis.url,
                self.directory / f"worker{one}.log",
                patch=partial(pace, _PAUSE_S),
                queue_lanes=queue_lanes,
            )
            for one in range(workers)
        ]
        self.gateways = [
            GatewayProcess(
                self.redis.url,
                self.directory / f"gateway{one}.log",
                redis_patience_s=30,
                queue_lanes=queue_lanes,
            )
            for one in range(gateways)
        ]
        self.workers = {worker.wait_serving(): worker for worker in started}
        for gateway in self.gateways:
            gateway.wait_ready()

    def stop(self) -> None:
        """Kill everything that is left."""
        for process in (*self.workers.values(), *self.gateways):
            process.kill()
        self.redis.stop()

    def ask(self, faults: dict[int, Callable[[Stream], None]] | None = None) -> Stream:
        """Have the answer streamed, with faults at the n-th chunk."""
        return Stream().post(self.gateways[0].url, BODY, faults or {})


@pytest.fixture
def site(redis_binary: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(redis_binary, tmp_path)
    yield site
    site.stop()


@pytest.fixture
def replicated(redis_binary: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(redis_binary, tmp_path, replicated=True)
    yield site
    site.stop()


def is_whole(stream: Stream) -> bool:
    """Whether the client got the undisturbed answer and its end."""
    assert stream.error is None
    return (stream.text.strip(), stream.finish_reason, stream.done) == (ANSWER, "stop", True)


def queue_of(_: Stream) -> str:
    return KEYS.requests("normal")


def log_of(stream: Stream) -> str:
    return KEYS.reply(stream.request_id)


@pytest.mark.parametrize("key_of", [queue_of, log_of])
def test_a_node_is_killed_and_restarted_in_mid_stream(site: Site, key_of: Callable[[Stream], str]) -> None:
    site.start(workers=1)
    answers = [site.ask({30: lambda stream: site.redis.node_of(key_of(stream)).restart()}) for _ in range(2)]
    site.redis.wait_whole()
    assert all(map(is_whole, [*answers, site.ask()]))


@pytest.mark.parametrize("key_of", [queue_of, log_of])
def test_a_replica_takes_the_place_of_a_killed_node_in_mid_stream(
    replicated: Site, key_of: Callable[[Stream], str]
) -> None:
    replicated.start(workers=1)
    answer = replicated.ask({30: lambda stream: replicated.redis.promote(key_of(stream))})
    assert all(map(is_whole, [answer, replicated.ask()]))


@pytest.mark.parametrize("key_of", [queue_of, log_of])
def test_a_slot_moves_to_another_node_in_mid_stream(site: Site, key_of: Callable[[Stream], str]) -> None:
    site.start(workers=1)

    def move(stream: Stream) -> None:
        key = key_of(stream)
        source = site.redis.node_of(key)
        site.redis.move(key, next(node for node in site.redis.nodes if node is not source))

    assert all(map(is_whole, [site.ask({30: move, 60: move}), site.ask()]))


def test_a_worker_is_killed_and_the_other_goes_on_behind_its_last_token(site: Site) -> None:
    site.start(workers=2)

    def kill(stream: Stream) -> None:
        site.workers[stream.workers[-1]].kill()

    stream = site.ask({30: kill})
    assert is_whole(stream)
    assert len(set(stream.workers)) == 2


def test_a_gateway_is_killed_and_the_client_goes_on_at_another(site: Site) -> None:
    site.start(workers=1, gateways=2)

    def kill(_: Stream) -> None:
        site.gateways[0].kill()

    stream = site.ask({30: kill})
    assert not stream.done
    assert is_whole(stream.resume(site.gateways[1].url))


def test_a_queue_in_lanes_goes_on_while_the_node_of_one_is_killed_and_restarted(site: Site) -> None:
    site.start(workers=2, queue_lanes=3)
    keys = Keys(MODEL, queue_lanes=3)
    nodes = [site.redis.node_of(lane.requests("normal")) for lane in keys.each_lane]

    def restart(_: Stream) -> None:
        nodes[2].restart()

    with ThreadPoolExecutor(12) as pool:
        others = pool.map(lambda _: site.ask(), range(12))
        streams = [site.ask({30: restart}), *others]  # what a thread starts ends with it
    assert {keys.lane_of(stream.request_id) for stream in streams} == {0, 1, 2}
    assert all(map(is_whole, streams))
    site.redis.wait_whole()
    assert is_whole(site.ask())


def test_who_counts_lanes_otherwise_is_told_so(site: Site) -> None:
    """A gateway waits for workers that look where it writes; an entry in another lane than its own is refused."""
    site.start(workers=1, gateways=0, queue_lanes=3)
    gateway = GatewayProcess(site.redis.url, site.directory / "other.log", queue_lanes=2)
    site.gateways.append(gateway)
    assert gateway.wait_answering().json()["error"]["code"] == "no_worker"
    producer = Producer(site.redis.url)
    keys = Keys(MODEL, queue_lanes=3)
    request = producer.request([1, 2, 3])
    wrong = next(lane for lane in keys.each_lane if lane.lane != keys.lane_of(request.id))
    producer.redis.xadd(wrong.requests("normal"), request.fields())
    terminal = producer.read(request.id).terminal
    assert terminal is not None
    assert (terminal.error, terminal.field_name) == (ErrorCode.INVALID_REQUEST, "queue lane")
    producer.redis.close()


def test_answers_whose_logs_are_on_all_nodes_are_read_at_once(site: Site) -> None:
    site.start(workers=1)
    with ThreadPoolExecutor(12) as pool:
        streams = list(pool.map(lambda _: site.ask(), range(12)))
    assert {site.redis.node_of(log_of(stream)) for stream in streams} == set(site.redis.nodes)
    assert all(map(is_whole, streams))

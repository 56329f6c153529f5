"""Client, gateways and workers on a cluster of three nodes, one of which is killed or loses slots."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orcastream.demo.prompts import SHOWCASE
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import Keys
from tests.path.cluster_site import ANSWER, ClusterSite
from tests.path.gateway_process import GatewayProcess
from tests.path.stream import Stream
from tests.redis_server import one_server
from tests.worker.producer import Producer
from tests.worker.worker_process import MODEL

pytestmark = one_server("system")

KEYS = Keys(MODEL)


@pytest.fixture
def site(redis_binary: str, tmp_path: Path) -> Iterator[ClusterSite]:
    site = ClusterSite(redis_binary, tmp_path)
    yield site
    site.stop()


@pytest.fixture
def replicated(redis_binary: str, tmp_path: Path) -> Iterator[ClusterSite]:
    site = ClusterSite(redis_binary, tmp_path, replicated=True)
    yield site
    site.stop()


def is_whole(stream: Stream, answer: str = ANSWER) -> bool:
    """Return whether the client got the undisturbed answer and its end."""
    assert stream.error is None
    return (stream.text.strip(), stream.finish_reason, stream.done) == (answer, "stop", True)


def queue_of(_: Stream) -> str:
    return KEYS.requests("normal")


def log_of(stream: Stream) -> str:
    return KEYS.reply(stream.request_id)


@pytest.mark.parametrize("key_of", [queue_of, log_of])
def test_a_node_is_killed_and_restarted_in_mid_stream(site: ClusterSite, key_of: Callable[[Stream], str]) -> None:
    site.start(workers=1)
    answers = [site.ask({30: lambda stream: site.redis.node_of(key_of(stream)).restart()}) for _ in range(2)]
    site.redis.wait_whole()
    assert all(map(is_whole, [*answers, site.ask()]))


@pytest.mark.parametrize("key_of", [queue_of, log_of])
def test_a_replica_takes_the_place_of_a_killed_node_in_mid_stream(
    replicated: ClusterSite, key_of: Callable[[Stream], str]
) -> None:
    replicated.start(workers=1)
    answer = replicated.ask({30: lambda stream: replicated.redis.promote(key_of(stream))})
    assert all(map(is_whole, [answer, replicated.ask()]))


@pytest.mark.parametrize("key_of", [queue_of, log_of])
def test_a_slot_moves_to_another_node_in_mid_stream(site: ClusterSite, key_of: Callable[[Stream], str]) -> None:
    site.start(workers=1)

    def move(stream: Stream) -> None:
        key = key_of(stream)
        source = site.redis.node_of(key)
        site.redis.move(key, next(node for node in site.redis.nodes if node is not source))

    assert all(map(is_whole, [site.ask({30: move, 60: move}), site.ask()]))


def test_a_worker_is_killed_and_the_other_continues_after_its_last_token(site: ClusterSite) -> None:
    site.start(workers=2)

    def kill(stream: Stream) -> None:
        site.workers[stream.workers[-1]].kill()

    stream = site.ask({30: kill})
    assert is_whole(stream)
    assert len(set(stream.workers)) == 2


def test_a_gateway_is_killed_and_the_client_continues_at_another(site: ClusterSite) -> None:
    site.start(workers=1, gateways=2)

    def kill(_: Stream) -> None:
        site.gateways[0].kill()

    stream = site.ask({30: kill})
    assert not stream.done
    assert is_whole(stream.resume(site.gateways[1].url))


def test_a_queue_in_lanes_continues_while_the_node_of_one_is_killed_and_restarted(site: ClusterSite) -> None:
    site.start(workers=2, queue_lanes=3)
    keys = Keys(MODEL, queue_lanes=3)
    nodes = [site.redis.node_of(lane.requests("normal")) for lane in keys.each_lane]

    def restart(_: Stream) -> None:
        nodes[2].restart()

    prompt, answer = SHOWCASE[2]
    with ThreadPoolExecutor(30) as pool:  # no lane is left out, except once in a hundred thousand
        others = pool.map(lambda _: site.ask(prompt=prompt), range(30))
        stream = site.ask({30: restart})  # a process ends with the thread that started it
        streams = list(others)
    assert {keys.lane_of(one.request_id) for one in streams} == {0, 1, 2}
    assert is_whole(stream)
    assert all(is_whole(one, answer) for one in streams)
    site.redis.wait_whole()
    assert is_whole(site.ask())


def test_a_different_number_of_lanes_is_an_error(site: ClusterSite) -> None:
    """A gateway waits for workers that read where it writes; an entry in the wrong lane is refused."""
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


def test_answers_whose_logs_are_on_all_nodes_are_read_at_once(site: ClusterSite) -> None:
    site.start(workers=1)
    prompt, answer = SHOWCASE[6]
    with ThreadPoolExecutor(40) as pool:  # no node is left out, except once in four million
        streams = list(pool.map(lambda _: site.ask(prompt=prompt), range(40)))
    assert {site.redis.node_of(log_of(stream)) for stream in streams} == set(site.redis.nodes)
    assert all(is_whole(stream, answer) for stream in streams)

"""What stays behind in Redis when workers go."""

import time

from schemas.keys import CLASSES, GROUP
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import WAIT_S, Producer

pytestmark = one_server("embedded")


def test_consumers_of_dead_workers_are_deleted(producer: Producer, start_worker: StartWorker) -> None:
    dead = start_worker(lease_ms=500)
    dead_name = dead.wait_serving().encode()
    dead.kill()
    name = start_worker(lease_ms=500).wait_serving().encode()
    give_up = time.monotonic() + WAIT_S
    while dead_name in (names := _consumers(producer)):
        assert time.monotonic() < give_up, f"{dead_name!r} is still there: {names}"
        time.sleep(0.05)
    assert name in names


def _consumers(producer: Producer) -> set[bytes]:
    streams = [producer.keys.requests(priority_class) for priority_class in CLASSES]
    return {consumer["name"] for key in streams for consumer in producer.redis.xinfo_consumers(key, GROUP)}

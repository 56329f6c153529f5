"""No command of a worker names keys of two hash slots: a server in cluster mode that owns all slots reports none."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from orcastream.broker.fold import Fold
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Output
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.worker.producer import LONG, Producer
from tests.worker.worker_process import PACED, WorkerProcess

pytestmark = one_server("system")

SLOTS = 16384


@pytest.fixture
def server(own_redis: Callable[..., RedisServer]) -> RedisServer:
    server = own_redis(options=["--cluster-enabled", "yes"])
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        give_up = time.monotonic() + PATIENCE_S
        while "cluster_state:ok" not in str(info := client.execute_command("CLUSTER", "INFO")) and (
            not isinstance(info, dict) or info["cluster_state"] != "ok"
        ):
            assert time.monotonic() < give_up, info
            time.sleep(0.05)
    return server


@pytest.fixture
def workers(server: RedisServer, tmp_path: Path) -> Iterator[dict[str, WorkerProcess]]:
    started = [WorkerProcess(server.url, tmp_path / f"worker{number}.log", patch=PACED) for number in range(2)]
    yield {worker.wait_serving(): worker for worker in started}
    for worker in started:
        worker.kill()


@pytest.fixture
def producer(server: RedisServer) -> Iterator[Producer]:
    producer = Producer(server.url)
    yield producer
    producer.redis.close()


def refused(client: "redis.Redis") -> dict[str, Any]:
    """Return how many commands the server refused, by error code."""
    return {name.removeprefix("errorstat_"): stat["count"] for name, stat in client.info("errorstats").items()}


def test_claims_takeovers_cancels_and_dead_letters_use_one_slot_per_command(
    producer: Producer,
    workers: dict[str, WorkerProcess],
    count_prompt: list[int],
    undisturbed: Callable[..., list[int]],
) -> None:
    client, keys = producer.redis, producer.keys
    several = [producer.post(count_prompt, max_tokens=20, ignore_eos=True) for _ in range(8)]
    assert [producer.read(one).terminal is not None for one in several] == [True] * 8
    taken_over = producer.post(count_prompt, **LONG)
    fold, seen = Fold(), 0
    for event_id, event in producer.events(taken_over):
        fold.feed(event_id, event)
        seen += isinstance(event, Output)
        if seen == 20 and isinstance(event, Output) and fold.started is not None:
            workers[fold.started.worker].kill()
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)
    cancelled = producer.post(count_prompt, **LONG)
    for _, event in producer.events(cancelled):
        if isinstance(event, Output) and not client.exists(keys.cancel(cancelled)):
            client.set(keys.cancel(cancelled), 1, ex=60)
            client.xadd(keys.control, {"type": "cancel", "target": cancelled})
    assert producer.read(cancelled).terminal.error is ErrorCode.CANCELLED  # type: ignore[union-attr]
    producer.add({"id": "broken", "v": "1", "deadline": "4000000000000", "payload": "{}"})
    assert producer.read("broken").terminal.error is ErrorCode.INVALID_REQUEST  # type: ignore[union-attr]
    producer.wait_empty()
    assert client.xlen(keys.dead) == 1
    assert "CROSSSLOT" not in refused(client)

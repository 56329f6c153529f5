"""Redis restarts with less data than it had, and only a worker remembers what is lost."""

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from orcastream.broker.fold import Fold
from orcastream.schemas.events import Output
from tests.patience import PATIENCE_S
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import LONG, Producer
from tests.worker.worker_process import PACED

pytestmark = one_server("system")

SAMPLING: dict[str, Any] = {"max_tokens": 1000, "ignore_eos": True}


@pytest.mark.parametrize("lost", ["the request", "its claim", "half of its log"])
def test_a_request_lost_to_a_truncated_aof_is_answered_by_its_worker(
    own_redis: Callable, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int], lost: str
) -> None:
    """The producer continues reading, with the tokens that it has."""
    server = own_redis(aof="always")
    producer = Producer(server.url)
    worker = start_worker(server.url)
    worker.wait_serving()
    request = producer.request(count_prompt, **SAMPLING)
    marks = {"the request": server.aof_size()}
    worker.signal(signal.SIGSTOP)
    producer.add(request.fields())
    marks["its claim"] = server.aof_size()
    worker.signal(signal.SIGCONT)
    fold, seen = Fold(), 0
    for event_id, event in producer.events(request.id):
        fold.feed(event_id, event)
        seen += isinstance(event, Output)
        if seen == 2:
            marks["half of its log"] = server.aof_size()
        if seen == 4:
            break
    server.lose_writes_after(marks[lost])
    give_up = time.monotonic() + PATIENCE_S
    while fold.terminal is None:
        assert time.monotonic() < give_up, worker.log
        try:
            for event_id, event in producer.events(request.id):
                fold.feed(event_id, event)
        except redis.RedisError:
            time.sleep(0.05)
    assert fold.terminal.error is None
    assert fold.tokens[0] == undisturbed(count_prompt, **SAMPLING)
    producer.wait_empty()
    producer.redis.close()


@pytest.mark.parametrize("lost", ["everything", "the entry and its log"])
def test_a_request_lost_without_a_broken_connection_is_answered_by_its_worker(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int], lost: str
) -> None:
    """Somebody runs FLUSHALL, or the server evicts."""
    start_worker(patch=PACED).wait_serving()
    request_id = producer.post(count_prompt, **LONG)
    fold, seen = Fold(), 0
    for event_id, event in producer.events(request_id):
        fold.feed(event_id, event)
        seen += isinstance(event, Output)
        if seen == 4:
            keys = [producer.keys.requests("normal"), producer.keys.reply(request_id)]
            producer.redis.flushall() if lost == "everything" else producer.redis.delete(*keys)
            break
    for event_id, event in producer.events(request_id):
        fold.feed(event_id, event)
    assert fold.terminal is not None
    assert fold.terminal.error is None
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)
    producer.wait_empty()


def test_a_worker_warns_of_a_server_that_evicts(own_redis: Callable, start_worker: StartWorker) -> None:
    worker = start_worker(own_redis(options=["--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru"]).url)
    worker.wait_serving()
    assert "Redis may lose requests" in worker.log
    assert "maxmemory-policy: got volatile-lru, allowed: noeviction" in worker.log

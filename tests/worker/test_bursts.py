"""Which worker takes a burst of requests."""

from functools import partial
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import Producer
from tests.worker.test_claims import (
    hold,
    num_claimed,
    post_at_once,
    release,
    wait_claimed,
    wait_until,
    waits_in_redis,
    waits_no_more,
)

pytestmark = one_server("system")


def hold_without_hurry(folder: Path) -> None:
    """As `hold`, and leave requests to idle workers for as long as these may need on a busy machine."""
    from orcastream.worker import intake

    hold(folder)
    intake._LEAST_AGE = int(PATIENCE_S / intake._TURN_S)  # type: ignore[misc]


def all_are_claimed(producer: Producer) -> bool:
    stream = producer.keys.requests("normal")
    (group,) = producer.redis.xinfo_groups(stream)
    return bool(group["last-delivered-id"] == producer.redis.xinfo_stream(stream)["last-generated-id"])


def test_a_worker_in_a_long_iteration_leaves_a_burst_to_an_idle_one(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], tmp_path: Path
) -> None:
    """Redis gives the idle one the first request, and it takes the next ones a moment later."""
    slow = start_worker(patch=partial(hold_without_hurry, tmp_path), lease_ms=60_000).wait_serving()
    ids = [producer.post(count_prompt, max_tokens=3)]
    wait_until((tmp_path / "a0").exists)
    wait_claimed(producer, 1)
    (tmp_path / "0").touch()
    wait_until((tmp_path / "a1").exists)
    idle = start_worker(lease_ms=60_000).wait_serving()
    wait_until(lambda: waits_no_more(producer, slow))
    wait_until(lambda: waits_in_redis(producer, idle))
    burst = post_at_once(producer, [count_prompt] * 4)
    wait_until(lambda: all_are_claimed(producer))
    assert num_claimed(producer, slow) == 1
    release(tmp_path)
    assert all(producer.read(request_id).terminal is not None for request_id in ids + burst)

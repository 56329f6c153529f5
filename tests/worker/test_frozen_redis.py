"""Workers while Redis is frozen: a leaving worker ends in order, and a new one takes nothing over too early."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orcastream.schemas.events import Output, Started
from tests.parent import tied_to_parent
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, one_server
from tests.service_process import ROOT
from tests.worker.conftest import StartWorker
from tests.worker.producer import LONG, Producer
from tests.worker.worker_process import PACED, WorkerProcess

pytestmark = one_server("system")

LEASE_MS = 4000
"""Shorter than a link waits for a server that is frozen."""


@pytest.fixture
def server(own_redis: Callable) -> Iterator[RedisServer]:
    server = own_redis()
    yield server
    server.thaw()


def test_a_worker_drains_while_redis_is_frozen(server: RedisServer, count_prompt: list[int]) -> None:
    """The engine computes: the interpreter, which ends only at its own command, must not end under that thread."""
    producer = Producer(server.url)
    settings = {"redis-url": server.url, "drain-grace-s": "0", "max-unpublished": "100000", "stall-timeout-s": "3600"}
    flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
    command = tied_to_parent([sys.executable, "-m", "orcastream.cli.main", "worker", *flags])
    worker = subprocess.Popen(command, cwd=ROOT)
    try:
        ids = [producer.post(count_prompt, max_tokens=3900, ignore_eos=True) for _ in range(4)]
        for request_id in ids:
            next(event for _, event in producer.events(request_id) if isinstance(event, Output))
        server.freeze()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0
    finally:
        worker.kill()
        worker.wait()


def test_a_worker_that_starts_while_redis_is_frozen_takes_nothing_over(
    server: RedisServer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int]
) -> None:
    producer = Producer(server.url)
    owner = start_worker(server.url, max_batch_size=8, lease_ms=LEASE_MS)
    name = owner.wait_serving()
    ids = [producer.post(count_prompt, max_tokens=1500, ignore_eos=True) for _ in range(4)]
    for request_id in ids:
        next(event for _, event in producer.events(request_id) if isinstance(event, Output))
    server.freeze()
    comer = start_worker(server.url, lease_ms=LEASE_MS)
    wait_for_line(comer, "Redis cannot be reached")
    wait_for_line(owner, "connection lost")  # by now its leases appear to have run out
    server.thaw()
    comer.wait_serving()
    for request_id in ids:
        workers = {event.worker for _, event in producer.events(request_id) if isinstance(event, Started)}
        assert workers == {name}
        assert producer.read(request_id).tokens[0] == undisturbed(count_prompt, max_tokens=1500, ignore_eos=True)


def test_a_hand_over_wakes_a_waiting_worker(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int]
) -> None:
    """Without the wake-up it would look only after an hour."""
    leaving, heir = start_worker(drain_grace_s=0, patch=PACED), start_worker(patch=looks_seldom)
    names = {worker.wait_serving(): worker for worker in (leaving, heir)}
    heir.signal(signal.SIGSTOP)
    request_id = producer.post(count_prompt, **LONG)
    events = producer.events(request_id)
    started = next(event for _, event in events if isinstance(event, Started))
    heir.signal(signal.SIGCONT)
    assert names[started.worker] is leaving
    next(event for _, event in events if isinstance(event, Output))
    leaving.signal(signal.SIGTERM)
    again = next(event for _, event in events if isinstance(event, Started))
    assert names[again.worker] is heir
    assert producer.read(request_id).tokens[0] == undisturbed(count_prompt, **LONG)


def test_a_hand_over_during_a_look_for_one_is_found_by_the_next(
    producer: Producer, start_worker: StartWorker, undisturbed: Callable, count_prompt: list[int]
) -> None:
    """The heir looks, the other hands over, and only then the look ends; another would follow after an hour."""
    leaving, heir = start_worker(drain_grace_s=0, patch=PACED), start_worker(patch=looks_until_a_signal)
    names = {worker.wait_serving(): worker for worker in (leaving, heir)}
    request_id = producer.post(count_prompt, **LONG)
    events = producer.events(request_id)
    started = next(event for _, event in events if isinstance(event, Started))
    assert names[started.worker] is leaving
    leaving.signal(signal.SIGTERM)
    leaving.wait()
    heir.signal(signal.SIGUSR1)
    again = next(event for _, event in events if isinstance(event, Started))
    assert names[again.worker] is heir
    assert producer.read(request_id).tokens[0] == undisturbed(count_prompt, **LONG)


def wait_for_line(worker: WorkerProcess, text: str) -> None:
    """Wait until the worker has logged the line."""
    while text not in worker.log:
        assert worker.running, worker.log
        time.sleep(0.01)


def looks_seldom() -> None:
    """In a worker's process: look for work only on an arrival or a wake-up."""
    from orcastream.broker.claim import Claimer
    from orcastream.worker.intake import Intake

    wait = Claimer.wait_for_work

    async def wait_briefly(self: Any, waits: Any, timeout_ms: int, **more: Any) -> Any:
        return await wait(self, waits, min(timeout_ms, 3_000), **more)  # below the reply timeout of its link

    Claimer.wait_for_work = wait_briefly
    Intake._pause_s = lambda _: 3600.0


def looks_until_a_signal() -> None:
    """In a worker's process: as `looks_seldom`, and the first look ends with SIGUSR1."""
    from orcastream.worker.intake import Intake

    looks_seldom()
    expired, signaled = Intake._expired, asyncio.Event()

    async def expired_before(self: Any, room: int) -> Any:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, signaled.set)
        found = await expired(self, room)
        await signaled.wait()
        return found

    Intake._expired = expired_before  # type: ignore[method-assign]  # this process is a test's alone

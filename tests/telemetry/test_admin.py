"""The worker's admin port: available from the start, and accurate."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from prometheus_client import CollectorRegistry

from orcastream.engine.native.library import instruction_set, why_unavailable
from orcastream.worker.admin import Admin
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_server import RedisServer, one_server
from tests.worker.worker_process import MODEL, WorkerProcess


class Standing:
    """A worker as the admin port sees it."""

    state = "serving"
    stalled_s = 0.0
    operators: ClassVar = {"attention_backend": "torch", "compiled": "avx2"}

    def stalled_for_s(self) -> float:
        return self.stalled_s


@pytest.fixture
def admin() -> Iterator[Admin]:
    admin = Admin("127.0.0.1", 0, CollectorRegistry(), stall_timeout_s=60)
    yield admin
    admin.close()


def _get(port: int, path: str) -> tuple[int, str]:
    answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S)
    return answer.status_code, answer.json()["status"]


def test_health_follows_the_worker(admin: Admin) -> None:
    worker = Standing()
    told = []
    for state, stalled_s in ((None, 0.0), ("connecting", 0.0), ("serving", 59.0), ("serving", 61.0), ("draining", 0.0)):
        if state is not None:
            worker.state, worker.stalled_s = state, stalled_s
            admin.watch(worker)
        told.append((_get(admin.port, "/health/live"), _get(admin.port, "/health/ready")))
    assert told == [
        ((200, "live"), (503, "loading")),
        ((200, "live"), (503, "connecting")),
        ((200, "live"), (200, "serving")),
        ((503, "stalled"), (200, "serving")),
        ((200, "live"), (503, "draining")),
    ]
    assert _get(admin.port, "/elsewhere") == (404, "not found")
    head = httpx.head(f"http://127.0.0.1:{admin.port}/health/live", timeout=PATIENCE_S)
    assert (head.status_code, head.content) == (200, b"")


def test_health_names_the_operators_once_the_model_is_loaded(admin: Admin) -> None:
    urls = [f"http://127.0.0.1:{admin.port}/health/{what}" for what in ("live", "ready")]
    assert ["operators" in httpx.get(url, timeout=PATIENCE_S).json() for url in urls] == [False, False]
    worker = Standing()
    admin.watch(worker)
    for stalled_s in (0.0, 61.0):
        worker.stalled_s = stalled_s
        assert [httpx.get(url, timeout=PATIENCE_S).json()["operators"] for url in urls] == [worker.operators] * 2


@one_server("embedded")
def test_a_worker_answers_while_it_loads_and_while_redis_is_away(redis_binary: str, tmp_path: Path) -> None:
    redis = RedisServer(redis_binary, tmp_path / "redis")
    port = free_port()
    worker = WorkerProcess(redis.url, tmp_path / "worker.log", admin_port=port)
    try:
        assert f'\norcastream_dead_letters_total{{gen_ai_request_model="{MODEL}"}} 0.0\n' in _first_page(worker, port)
        assert _until(worker, port, 503) == ["loading", "connecting"]
        assert _get(port, "/health/live") == (200, "live")
        redis.start()
        assert _until(worker, port, 200)[-1] == "serving"
        operators = httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=PATIENCE_S).json()["operators"]
        assert {name: operators[name] for name in ("device", "dtype")} == {"device": "cpu", "dtype": "float32"}
        why = why_unavailable()
        assert operators["compiled"] == (instruction_set() if why is None else f"none: {why}")
        told = f"info operators device=cpu dtype=float32 attention_backend={operators['attention_backend']} compiled="
        assert told in worker.log
        page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S)
        assert page.headers["content-type"].startswith("text/plain")
        assert 'service_name="orcastream-worker"' in page.text
        other = WorkerProcess(redis.url, tmp_path / "other.log", admin_port=port)
        assert other.wait() == 2
        assert f"admin_port (--admin-port, ORCASTREAM_ADMIN_PORT): port {port} on 127.0.0.1" in other.log
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.log
    finally:
        worker.kill()
        redis.kill()


def _first_page(worker: WorkerProcess, port: int) -> str:
    """Return the first answer to a scrape: a counter whose first value is above 0 shows no increase."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up and worker.running:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).text
        except httpx.TransportError:
            time.sleep(0.01)
    raise AssertionError(worker.log[-4000:])


def _until(worker: WorkerProcess, port: int, status: int) -> list[str]:
    """Return the states that the port reports, each once, until it reports `connecting` (503) or `serving` (200)."""
    states: list[str] = []
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up and worker.running:
        try:
            got, state = _get(port, "/health/ready")
        except httpx.TransportError:
            continue
        if state not in states:
            states.append(state)
        if got == status and state in ("connecting", "serving"):
            return states
        time.sleep(0.01)
    raise AssertionError(f"{states}\n{worker.log[-4000:]}")

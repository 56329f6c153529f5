"""What gateways report about batches: to Prometheus, from several processes, and from a look at all open batches."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orcastream.broker.files.file_store import FileStore
from orcastream.broker.jobs.job import Job
from orcastream.broker.jobs.order import JobOrder, JobProgress
from orcastream.broker.jobs.runner_lease import RunnerLease
from orcastream.gateway.admission.api_key import Grant
from orcastream.gateway.batches.batch_metrics import BatchMetrics
from orcastream.gateway.batches.batch_request import BatchRequest, BatchTerms
from orcastream.gateway.batches.batch_run import BatchRun
from orcastream.gateway.batches.open_batches import OpenBatch, OpenBatches, OpenBatchWatch
from tests.gateway.batches.conftest import CHAT, begin, ended, line
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.service_process import ServiceProcess

MINUTE_MS = 60_000


def one(batch_id: str, progress: JobProgress, *, created_ms: int = 0, runs: bool = True) -> OpenBatch:
    return OpenBatch(batch_id, JobOrder("file", created_ms, 10**9, 10**9), progress, runs)


def test_a_batch_without_results_or_state_changes_is_idle() -> None:
    watch = OpenBatchWatch()
    reading, running = JobProgress(None, 0, 0), JobProgress(9, 4, 1, marks={"in_progress_ms": "5"})
    found = watch.look([one("a", reading), one("b", running, created_ms=MINUTE_MS)], 2 * MINUTE_MS, has_room=True)
    assert (found.states["validating"], found.states["in_progress"], found.lines_left) == (1, 1, 4)
    assert (found.age_s, found.idle_s) == (120, 0)
    found = watch.look([one("a", running), one("b", running, created_ms=MINUTE_MS)], 4 * MINUTE_MS, has_room=True)
    assert (found.age_s, found.idle_s, found.lines_left) == (240, 120, 8)
    further = JobProgress(9, 5, 1, marks={"in_progress_ms": "5"})
    found = watch.look([one("b", further, created_ms=MINUTE_MS)], 5 * MINUTE_MS, has_room=True)
    assert (found.age_s, found.idle_s, found.lines_left) == (240, 0, 3)
    assert watch.look([], 6 * MINUTE_MS, has_room=True) == OpenBatches()


@pytest.mark.parametrize(("has_room", "idle_s"), [(True, 60), (False, 0)])
def test_a_batch_that_waits_for_its_turn_is_not_idle(has_room: bool, idle_s: float) -> None:
    watch = OpenBatchWatch()
    waiting = [one("a", JobProgress(None, 0, 0), runs=False)]
    watch.look(waiting, 0, has_room=has_room)
    found = watch.look(waiting, MINUTE_MS, has_room=has_room)
    assert (found.idle_s, found.age_s, found.states["waiting"], found.states["validating"]) == (idle_s, 60, 1, 0)


def test_a_wait_for_a_turn_is_not_idleness_afterwards() -> None:
    watch = OpenBatchWatch()
    stands = JobProgress(None, 0, 0)
    for minute in (0, 60, 120):
        assert watch.look([one("a", stands, runs=False)], minute * MINUTE_MS, has_room=False).idle_s == 0
    assert watch.look([one("a", stands)], 121 * MINUTE_MS, has_room=False).idle_s == 60
    assert watch.look([one("a", stands)], 122 * MINUTE_MS, has_room=False).idle_s == 120
    assert watch.look([one("a", stands, runs=False)], 123 * MINUTE_MS, has_room=False).idle_s == 0


async def test_of_two_gateways_that_end_a_batch_one_reports_it(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """The second gateway read that the batch was open, and got the right to run it after the first had ended it."""
    gateway = (await stage.gateway()).gateway
    keys, patience_s = gateway.models.default.keys, gateway.settings.redis_patience_s
    files = FileStore(gateway.redis, keys, patience_s=patience_s)
    asked = BatchRequest(input_file_id="file-gone", endpoint=CHAT, completion_window="24h")
    terms = BatchTerms(asked=asked, grant=Grant(tenant="default"), kept_s=60)
    job = Job(gateway.redis, keys, "batch_of_two", patience_s=patience_s)
    order = await job.create(terms.order(gateway.redis.now_ms, retention_s=60))
    runs = [BatchRun(gateway, files, job, order, terms, BatchMetrics()) for _ in range(3)]
    leases = [RunnerLease(job, f"runner-{number}", lease_ms=60_000) for number in range(3)]
    with caplog.at_level(logging.INFO, "orcastream.gateway"):
        await asyncio.gather(*(run.run(lease) for run, lease in zip(runs[:2], leases[:2], strict=True)))
        await runs[2].run(leases[2])
    [told] = [record for record in caplog.records if record.message == "batch ended"]
    assert (told.batch, told.status, told.completed, told.failed) == (job.id, "failed", 0, 0)  # type: ignore[attr-defined]


async def test_a_gateway_process_reports_its_batches(
    stage: Stage, model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    """Even if one cannot be read."""
    with redis_server.client() as redis:
        redis.hset(stage.keys.job("batch_unreadable"), "order", '{"unknown": 1}')
        redis.hset(stage.keys.open_batches, "batch_unreadable", "default")
    gate = Gate(0)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    monkeypatch.setenv("ORCASTREAM_METRICS", "true")
    url = f"http://127.0.0.1:{(port := free_port())}"
    settings: dict[str, Any] = {"redis_url": stage.url, "model": model_folder, "served_model_name": MODEL, "port": port}
    gateway = ServiceProcess("gateway", tmp_path / "gateway.log", **settings)
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=10) as client,
        ):

            async def told(**expected: float) -> bool:
                try:
                    page = (await http.get("/metrics")).text
                except httpx.HTTPError:
                    return False
                return expected.items() <= samples(page).items()

            nothing = {"ended completed": 0, "ended failed": 0, "lines completed": 0, "lines failed": 0}
            await eventually(lambda: told(**nothing, **{"open in_progress": 0, "left": 0, "age": 0}))
            batch = await begin(client, line("a"), line("b"), line("wrong", temperature=-1))
            await eventually(lambda: told(**{"open in_progress": 1, "left": 2, "lines failed": 1}))
            await gate.open()
            assert (await ended(client, batch)).status == "completed"
            after = {"open in_progress": 0, "left": 0, "idle": 0, "ended completed": 1, "ended failed": 0}
            await eventually(lambda: told(**after, **{"lines completed": 2, "lines failed": 1}))
        assert [line for line in gateway.log.splitlines() if "not readable" in line and "batch_unreadable" in line]
        assert gateway.log.count("batch not readable") == 1
    finally:
        gateway.kill()


def samples(page: str) -> dict[str, float]:
    """Return the page's samples about batches, under short names."""
    short = {
        "orcastream_batches": "open",
        "orcastream_batches_age_seconds": "age",
        "orcastream_batches_idle_seconds": "idle",
        "orcastream_batches_lines_left": "left",
        "orcastream_batches_lines_total": "lines",
        "orcastream_batches_ended_total": "ended",
    }
    found = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {" ".join((short[one.name], *one.labels.values())): one.value for one in found if one.name in short}

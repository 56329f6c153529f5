"""What gateways tell of batches: to Prometheus, from processes, and what a look at all open ones comes to."""

from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orcastream.broker.jobs.order import JobOrder, JobProgress
from orcastream.gateway.batches.open_batches import OpenBatch, OpenBatches, OpenBatchWatch
from tests.gateway.batches.conftest import begin, ended, line
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.ports import free_port
from tests.service_process import ServiceProcess

MINUTE_MS = 60_000


def one(batch_id: str, progress: JobProgress, *, created_ms: int = 0, runs: bool = True) -> OpenBatch:
    return OpenBatch(batch_id, JobOrder("file", created_ms, 10**9, 10**9), progress, runs)


def test_a_batch_is_idle_while_no_line_gets_a_result_and_nothing_is_noted() -> None:
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
def test_whoever_waits_for_its_turn_is_not_idle(has_room: bool, idle_s: float) -> None:
    watch = OpenBatchWatch()
    waiting = [one("a", JobProgress(None, 0, 0), runs=False)]
    watch.look(waiting, 0, has_room=has_room)
    found = watch.look(waiting, MINUTE_MS, has_room=has_room)
    assert (found.idle_s, found.age_s, found.states["waiting"], found.states["validating"]) == (idle_s, 60, 1, 0)


async def test_a_gateway_process_tells_of_its_batches(
    stage: Stage, model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(0)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    monkeypatch.setenv("ORCASTREAM_METRICS", "true")
    url = f"http://127.0.0.1:{(port := free_port())}"
    settings = {"redis_url": stage.url, "model": model_folder, "served_model_name": MODEL, "port": port}
    gateway = ServiceProcess("gateway", tmp_path / "gateway.log", **settings)
    try:
        async with (
            httpx.AsyncClient(base_url=url) as http,
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
    finally:
        gateway.kill()


def samples(page: str) -> dict[str, float]:
    """What the page says of batches, in short names."""
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

"""An unforeseen error ends one line, or makes one batch wait; it never affects others."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from orcastream.broker.errors import LinkLost
from orcastream.broker.jobs.job import Job, JobLine
from orcastream.broker.jobs.order import JobOrder
from orcastream.broker.jobs.result_line import failed
from orcastream.gateway.batches import batch_line
from orcastream.gateway.batches.batch_line import BatchLine
from orcastream.gateway.batches.batch_run import BatchRun
from orcastream.gateway.batches.batches import Batch, Batches
from orcastream.gateway.batches.line_answers import LineAnswers
from orcastream.schemas.keys import Keys
from tests.gateway.batches.conftest import begin, ended, line, results
from tests.gateway.conftest import Stage, eventually
from tests.redis_server import RedisServer


async def test_a_line_fails_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A link that breaks meanwhile is a different case: the line is requested again."""
    answer, lost = LineAnswers._answer, ["first"]

    async def break_some(self: LineAnswers, number: int, *rest: Any) -> tuple[str, bytes] | None:
        if number == 2:
            raise KeyError("unforeseen")
        if lost:
            raise LinkLost(lost.pop())
        return await answer(self, number, *rest)

    monkeypatch.setattr(LineAnswers, "_answer", break_some)
    await stage.worker()
    client = (await stage.gateway()).openai()
    batch = await ended(client, await begin(client, line("first"), line("broken"), line("last")))
    assert batch.status == "completed"
    assert set(await results(client, batch.output_file_id)) == {"first", "last"}
    [(custom_id, told)] = (await results(client, batch.error_file_id)).items()
    assert (custom_id, told["response"]["status_code"], told["error"]) == ("broken", 500, None)
    assert told["response"]["body"]["error"]["code"] == "internal_error"
    record = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.getMessage() == f"the line {batch.id}.2 failed"


async def test_an_interrupted_batch_is_in_the_log_and_continues(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, lost = BatchRun.run, ["first"]

    async def break_once(self: BatchRun, lease: Any) -> None:
        if lost:
            raise LinkLost(lost.pop())
        await run(self, lease)

    monkeypatch.setattr(BatchRun, "run", break_once)
    await stage.worker()
    client = (await stage.gateway()).openai()
    assert (await ended(client, await begin(client, line("a")))).status == "completed"
    [told] = (record for record in caplog.records if record.getMessage() == "batch interrupted")
    assert told.levelno == logging.WARNING


async def test_batches_that_keep_failing_hold_no_slot(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, broken, runs = BatchRun.run, set[str](), list[str]()

    async def fail_some(self: BatchRun, lease: Any) -> None:
        runs.append(self._job.id)
        if self._order.details["asked"]["metadata"]:
            await asyncio.sleep(0.2)
            raise KeyError("unforeseen")
        await run(self, lease)

    monkeypatch.setattr(BatchRun, "run", fail_some)
    monkeypatch.setattr("orcastream.gateway.batches.batches._LOOK_S", 0.02)
    await stage.worker()
    client = (await stage.gateway()).openai()
    for _ in range(4):
        broken.add((await begin(client, line("a"), metadata={"is": "broken"})).id)

    async def all_broke() -> bool:
        return broken <= set(runs)

    await eventually(all_broke)
    assert (await ended(client, await begin(client, line("a")))).status == "completed"


@pytest.mark.parametrize("kind", [Keys.job_lines, Keys.job_results])
async def test_batches_with_keys_of_the_wrong_type_hold_no_slot(
    stage: Stage, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Keys, str], str]
) -> None:
    monkeypatch.setattr("orcastream.gateway.batches.batches._LOOK_S", 0.02)
    client = (await stage.gateway(require_worker=False)).openai()
    damaged = [await begin(client, line("a")) for _ in range(4)]

    async def have_begun() -> bool:
        found = [await client.batches.retrieve(batch.id) for batch in damaged]
        return all(batch.status == "in_progress" for batch in found)

    await eventually(have_begun)
    with redis_server.client() as redis:
        for batch in damaged:
            redis.delete(kind(stage.keys, batch.id))
            redis.set(kind(stage.keys, batch.id), "something else")
    await stage.worker()
    assert (await ended(client, await begin(client, line("a")))).status == "completed"


async def test_a_batch_whose_lines_are_lost_has_failed(stage: Stage, redis_server: RedisServer) -> None:
    client = (await stage.gateway(batch_window=1, require_worker=False)).openai()
    begun = await begin(client, *(line(str(number)) for number in range(5)))

    async def has_begun() -> bool:
        return (await client.batches.retrieve(begun.id)).status == "in_progress"

    await eventually(has_begun)
    with redis_server.client() as redis:
        redis.xtrim(stage.keys.job_lines(begun.id), maxlen=1, approximate=False)
    await stage.worker()
    batch = await ended(client, begun)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [error.code for error in batch.errors.data or []] == ["lines_lost"]
    assert set(await results(client, batch.output_file_id)) == {"4"}


async def test_a_batch_whose_results_are_lost_has_failed(stage: Stage, redis_server: RedisServer) -> None:
    """Its output has the results that are there, and can be read."""
    served = await stage.gateway(batch_window=1, require_worker=False)
    client = served.openai()
    begun = await begin(client, *(line(str(number)) for number in range(3)))

    async def has_begun() -> bool:
        return (await client.batches.retrieve(begun.id)).status == "in_progress"

    await eventually(has_begun)
    job = Job(served.gateway.redis, stage.keys, begun.id, patience_s=10)
    with redis_server.client() as redis:
        assert await job.record(1, b"a result", failed=False)
        assert await job.record(3, b"an error", failed=True)
        assert redis.delete(stage.keys.job_results(begun.id))
    await stage.worker()
    batch = await ended(client, begun)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [error.code for error in batch.errors.data or []] == ["lines_lost"]
    assert set(await results(client, batch.output_file_id)) == {"1"}
    assert batch.error_file_id is None


async def test_a_batch_that_is_no_longer_among_the_open_ones_runs_once_its_client_asks(
    stage: Stage, redis_server: RedisServer
) -> None:
    async with stage._serve(stage.settings(require_worker=False)) as first:
        begun = await begin(first.openai(), line("a"))
    with redis_server.client() as redis:
        assert redis.delete(stage.keys.open_batches) == 1
    await stage.worker()
    assert (await ended((await stage.gateway()).openai(), begun)).status == "completed"


async def test_a_batch_that_cannot_start_delays_no_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    find, broken = Batches.find, list[str]()

    async def fail_for_the_first(self: Batches, batch_id: str, tenant: str) -> Batch | None:
        broken.append(batch_id)
        if batch_id == broken[0]:
            raise KeyError("unforeseen")
        return await find(self, batch_id, tenant)

    await stage.worker()
    client = (await stage.gateway()).openai()
    with monkeypatch.context() as patched:
        patched.setattr(Batches, "find", fail_for_the_first)
        first = await begin(client, line("a"))

        async def has_failed() -> bool:
            return bool(broken)

        await eventually(has_failed)
        assert broken[0] == first.id
        assert (await ended(client, await begin(client, line("a")))).status == "completed"


@pytest.fixture
async def read_before(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Accept lines as an older version did, before their ids were checked."""
    with monkeypatch.context() as patched:
        patched.setattr(batch_line, "check_text", lambda _, text: text)
        yield


@pytest.mark.usefixtures("read_before")
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_line_with_a_non_string_id_has_a_result(stage: Stage, is_cancelled: bool) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    begun = await begin(client, line("\ud800"))
    if is_cancelled:
        await client.batches.cancel(begun.id)
    batch = await ended(client, begun)
    assert batch.status in (("cancelled", "completed") if is_cancelled else ("completed",))


def test_a_result_is_json_whatever_its_id_is() -> None:
    assert b'"custom_id": "\\ud800"' in failed("a.1", "\ud800", "code", "message")


async def test_a_cancelled_line_that_cannot_be_read_has_a_result(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    def fail(*_: object) -> BatchLine:
        raise KeyError("unforeseen")

    gateway = (await stage.gateway()).gateway
    job = Job(gateway.redis, stage.keys, "batch_1", patience_s=1)
    terms: Any = type("Terms", (), {"grant": None, "endpoint": None})
    answers = LineAnswers(gateway, job, JobOrder("digest", 0, 1, 2), terms)
    monkeypatch.setattr(BatchLine, "read", fail)
    assert b'"custom_id": "unknown"' in answers.cancelled(JobLine(1, b"{}")).body

"""Batches through OpenAI's client: every line answered once, whatever other lines contain; states, counts, errors."""

import asyncio
import json
from typing import Any

import openai
import pytest

from orcastream.broker.jobs.job import Job, JobLine
from orcastream.gateway.admission.api_key import Grant
from orcastream.gateway.batches.batch_request import WINDOW_MS, BatchRequest, BatchTerms
from orcastream.gateway.batches.line_answers import LineAnswers
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest
from tests.gateway.batches.conftest import CHAT, begin, ended, file_of, line, results
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.redis_server import RedisServer

COMPLETIONS = "/v1/completions"


async def test_a_batch_is_answered(stage: Stage) -> None:
    worker = await stage.worker()
    client = (await stage.gateway()).openai()
    begun = await begin(client, *(line(f"n{number}") for number in range(30)), metadata={"what": "a test"})
    assert (begun.object, begun.status, begun.endpoint, begun.completion_window) == ("batch", "validating", CHAT, "24h")
    assert begun.expires_at == begun.created_at + WINDOW_MS // 1000
    batch = await ended(client, begun)
    assert (batch.status, batch.errors, batch.error_file_id, batch.metadata) == (
        "completed",
        None,
        None,
        {"what": "a test"},
    )
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 30, "completed": 30, "failed": 0}
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    found = await results(client, batch.output_file_id)
    assert set(found) == {f"n{number}" for number in range(30)}
    for number, result in enumerate(sorted(found.values(), key=lambda one: int(one["custom_id"][1:])), start=1):
        assert (result["id"], result["error"]) == (f"{batch.id}.{number}", None)
        response = result["response"]
        answer = openai.types.chat.ChatCompletion.model_validate(response["body"])
        assert (response["status_code"], response["request_id"]) == (200, answer.id)
        assert answer.choices[0].message.content == TEXT
    assert [request.priority_class for request in worker.requests] == ["low"] * 30
    assert len({request.id for request in worker.requests}) == 30
    output = await client.files.retrieve(batch.output_file_id or "")
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")


async def test_completions_of_several_prompts_and_models_are_complete(stage: Stage, model_folder: str) -> None:
    await stage.worker()
    await stage.worker("second", name="other", keys=Keys("other"))
    client = (await stage.gateway(more_models=(f"other={model_folder}",))).openai()
    lines = [line("a", COMPLETIONS, prompt=["x", "y"], n=2), line("b", COMPLETIONS, model="other")]
    batch = await ended(client, await begin(client, *lines, endpoint=COMPLETIONS))
    found = await results(client, batch.output_file_id)
    bodies = {custom_id: result["response"]["body"] for custom_id, result in found.items()}
    assert [choice["text"] for choice in bodies["a"]["choices"]] == [TEXT] * 4
    assert (bodies["b"]["model"], bodies["b"]["choices"][0]["text"]) == ("other", "second")


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"temperature": -1}, 400, "temperature"),
        ({"nonsense": 1}, 400, "nonsense"),
        ({"model": "none"}, 404, "model"),
        ({"stream": True}, 400, "stream"),
        ({"priority": "high"}, 400, "priority"),
        ({"service_tier": "priority"}, 400, "service_tier"),
        ({"timeout": 5}, 400, "timeout"),
        ({"request_id": "mine"}, 400, "request_id"),
        ({"max_tokens": 10**6}, 400, "max_tokens"),
        ({"messages": []}, 400, "messages"),
    ],
)
async def test_a_wrong_request_is_only_an_error_line(
    stage: Stage, more: dict[str, Any], status: int, param: str
) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    lines = [line("first"), line("wrong", **more), line("last", service_tier="flex", priority="low")]
    batch = await ended(client, await begin(client, *lines))
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
    assert set(await results(client, batch.output_file_id)) == {"first", "last"}
    [(custom_id, failed)] = (await results(client, batch.error_file_id)).items()
    assert (custom_id, failed["response"]["status_code"], failed["error"]) == ("wrong", status, None)
    assert failed["response"]["body"]["error"]["param"] == param


@pytest.mark.parametrize(
    ("lines", "at", "param"),
    [
        ([line("a"), b"no json", line("c")], 2, "body"),
        ([b"", b" ", line("a"), line("a")], 4, "custom_id"),
        ([line("a", COMPLETIONS)], 1, "url"),
        ([{**line("a"), "method": "GET"}], 1, "method"),
        ([{**line("a"), "body": []}], 1, "body"),
        ([{**line("a"), "more": 1}], 1, "more"),
        ([{**line("a"), "custom_id": ""}], 1, "custom_id"),
        ([file_of(line("a", seed=5)).replace(b"5", b"1e999").strip()], 1, "body"),
        ([{**line("a"), "custom_id": "\ud800"}], 1, "custom_id"),
        ([b"{" + b" " * 5000 + b"}"], 1, None),
        ([], None, None),
        ([line(str(number)) for number in range(11)], None, None),
    ],
)
async def test_an_input_with_a_wrong_line_fails_as_a_whole(
    stage: Stage, lines: list[object], at: int | None, param: str | None
) -> None:
    worker = await stage.worker()
    client = (await stage.gateway(max_batch_lines=10, max_body_bytes=4096)).openai()
    batch = await ended(client, await begin(client, *lines))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert batch.errors.data is not None
    [error] = batch.errors.data
    assert (error.line, error.param) == (at, param)
    assert error.message
    assert worker.requests == []


async def test_the_results_of_a_batch_are_gone_with_its_files(stage: Stage, redis_server: RedisServer) -> None:
    """A tenant's limit of stored bytes counts files: what no file has is not in Redis, either."""
    await stage.worker()
    client = (await stage.gateway()).openai()
    lines = [line(f"n{number}", temperature=-(number % 2)) for number in range(500)]
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    batch = await ended(client, await begin(client, *lines, output_expires_after=expiry))
    stored = stage.keys.job_results(batch.id)
    with redis_server.client() as redis:
        assert redis.xlen(stored) == 500
        assert 0 < redis.pttl(stored) <= 3_600_000
        await client.files.delete(batch.output_file_id or "")
        assert redis.xlen(stored) == 250
        assert len(await results(client, batch.error_file_id)) == 250
        await client.files.delete(batch.error_file_id or "")
        assert redis.xlen(stored) == 0
    assert await client.batches.retrieve(batch.id) == batch


async def test_the_oldest_batches_run_first(stage: Stage, redis_server: RedisServer) -> None:
    """Also where Redis returns them in another order, as it does with many: newer ones never overtake them."""
    with redis_server.client() as redis:
        usual = redis.config_get("hash-max-ziplist-entries")
        redis.config_set("hash-max-ziplist-entries", 0)
        try:
            client = (await stage.gateway(max_batches=100)).openai()
            first = await begin(client, line("a"))
            asked: dict[str, Any] = {"input_file_id": first.input_file_id, "endpoint": CHAT, "completion_window": "24h"}
            batches = [first, *[await client.batches.create(**asked) for _ in range(40)]]
            runners = [stage.keys.job_runner(batch.id) for batch in sorted(batches, key=lambda batch: batch.id)]

            async def is_run(number: int) -> bool:
                return redis.exists(*runners) == number

            await eventually(lambda: is_run(4))
            await stage.gateway()
            await eventually(lambda: is_run(8))
            assert redis.exists(*runners[:8]) == 8
        finally:
            redis.config_set("hash-max-ziplist-entries", *usual.values())


async def test_wrong_batches_are_refused(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    made = await ended(client, await begin(client, line("a")))
    asked: dict[str, Any] = {"input_file_id": made.input_file_id, "endpoint": CHAT, "completion_window": "24h"}
    for change, param in (
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"x" * 65: "y"}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after"),
        ({"extra_body": {"nonsense": 1}}, "nonsense"),
        ({"input_file_id": made.output_file_id}, "input_file_id"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.create(**{**asked, **change})
        assert (refused.value.param or "").startswith(param)
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.batches.create(**{**asked, "input_file_id": "file-none"})
    assert (unknown.value.code, unknown.value.param) == ("file_not_found", "input_file_id")


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_gateway_that_continues_withdraws_the_running_attempt(
    stage: Stage, redis_server: RedisServer, is_kept: bool
) -> None:
    """The first attempt has expired, and may be forgotten; only the departed gateway knew of the second."""

    def script(request: GenerationRequest) -> Answer:
        if request.id.endswith(".1.1"):
            return Answer([[5, 6]], gate=Gate(1))
        return Answer([[5]], error=ErrorCode.EXPIRED)

    worker = await stage.worker(script)
    gateways = [(await stage.gateway()).gateway for _ in range(2)]
    asked = BatchRequest(input_file_id="file-1", endpoint=CHAT, completion_window="24h")
    terms = BatchTerms(asked=asked, grant=Grant(tenant="default"), kept_s=60)
    order = terms.order(gateways[0].redis.now_ms, retention_s=60)
    answers = [
        LineAnswers(gateway, Job(gateway.redis, stage.keys, "batch_x", patience_s=10), order, terms)
        for gateway in gateways
    ]
    posted = JobLine(1, json.dumps(line("a")).encode())
    answering = asyncio.create_task(answers[0].answer(posted))

    async def runs() -> bool:
        return len(worker.requests) == 2

    await eventually(runs)
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    with redis_server.client() as redis:
        if not is_kept:
            first = worker.requests[0].id
            redis.delete(stage.keys.seen(first), stage.keys.reply(first))
        await answers[1].withdraw(posted)

        async def runs_nothing() -> bool:
            return not redis.xlen(stage.keys.requests("low"))

        await eventually(runs_nothing)


async def test_cancelling_ends_running_and_waiting_requests(stage: Stage, redis_server: RedisServer) -> None:
    ids, quick = stage.tokenizer.encode(TEXT), len(stage.tokenizer.encode("x"))

    def script(request: GenerationRequest) -> Answer:
        return Answer([ids], gate=Gate() if len(request.payload.prompt) == quick else Gate(1))

    worker = await stage.worker(script)
    served = await stage.gateway(batch_window=4)
    client = served.openai()
    lines = [line(str(number), COMPLETIONS, prompt="x" if number < 3 else "a longer one") for number in range(20)]
    begun = await begin(client, *lines, endpoint=COMPLETIONS)

    async def has_answered() -> bool:
        counts = (await client.batches.retrieve(begun.id)).request_counts
        return counts is not None and counts.completed == 3

    await eventually(has_answered)
    asked = await client.batches.cancel(begun.id)
    assert asked.status in ("cancelling", "cancelled")
    assert asked.cancelling_at is not None
    batch = await ended(client, begun)
    assert batch.status == "cancelled"
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 20, "completed": 3, "failed": 17}
    assert set(await results(client, batch.output_file_id)) == {"0", "1", "2"}
    refused = await results(client, batch.error_file_id)
    assert {one["error"]["code"] for one in refused.values()} == {"batch_cancelled"}
    assert len(worker.requests) <= 7
    with redis_server.client() as redis:

        async def runs_nothing() -> bool:
            return not redis.xlen(Keys(MODEL).requests("low"))

        await eventually(runs_nothing)
    with pytest.raises(openai.ConflictError, match="has ended as cancelled"):
        await client.batches.cancel(begun.id)


@pytest.mark.parametrize("at_once", [2, 500])
async def test_lines_without_an_answer_by_the_end_of_the_window_expire(
    stage: Stage, redis_server: RedisServer, at_once: int
) -> None:
    """All together: each attempt is refused for a second, and 500 seconds would be too long."""
    client = (await stage.gateway(batch_window=at_once)).openai()
    begun = await begin(client, *(line(str(number)) for number in range(at_once + 3)))  # there is no worker
    key = Keys(MODEL).job(begun.id)
    with redis_server.client() as redis:
        order = json.loads(redis.hget(key, "order") or "")
        redis.hset(key, "order", json.dumps({**order, "deadline_ms": redis.time()[0] * 1000 + 4500}))
        redis.set(Keys(MODEL).job_runner(begun.id), "another gateway", px=2500)  # for longer than a heartbeat
    batch = await ended(client, begun)
    assert (batch.status, batch.output_file_id) == ("expired", None)
    assert batch.expired_at is not None
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": at_once + 3, "completed": 0, "failed": at_once + 3}
    late = await results(client, batch.error_file_id)
    assert {(one["response"], one["error"]["code"]) for one in late.values()} == {(None, "batch_expired")}


async def test_a_page_follows_a_batch_that_is_gone(stage: Stage, redis_server: RedisServer) -> None:
    client = (await stage.gateway()).openai()
    older, newer = sorted([await begin(client, line("1")) for _ in range(2)], key=lambda batch: batch.id)
    with redis_server.client() as redis:
        redis.zrem(Keys(MODEL).batches("default"), newer.id)
    assert [batch.id for batch in (await client.batches.list(after=newer.id)).data] == [older.id]


async def test_a_batch_belongs_to_its_tenant(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway(api_keys={"one": "red", "two": "blue"}, max_batches=2)
    mine, other = served.openai("one"), served.openai("two")
    batch = await ended(mine, await begin(mine, line("a")))
    second = await ended(mine, await begin(mine, line("a")))
    assert [one.id async for one in mine.batches.list()] == [second.id, batch.id]
    assert [one.id async for one in mine.batches.list(limit=1)] == [second.id, batch.id]
    assert [one.id async for one in other.batches.list()] == []
    for ask in (other.batches.retrieve, other.batches.cancel):
        with pytest.raises(openai.NotFoundError, match="No batch"):
            await ask(batch.id)
    with pytest.raises(openai.NotFoundError):
        await other.files.content(batch.output_file_id or "")
    with pytest.raises(openai.NotFoundError):
        await begin_with(other, batch.input_file_id)


async def test_open_batches_per_tenant_are_bounded(stage: Stage) -> None:
    client = (await stage.gateway(max_batches=2)).openai()
    open_ones = [await begin(client, line("a")) for _ in range(2)]
    with pytest.raises(openai.RateLimitError) as refused:
        await begin(client, line("a"))
    assert refused.value.code == "batches_full"
    await stage.worker()
    await asyncio.gather(*(ended(client, batch) for batch in open_ones))
    assert (await ended(client, await begin(client, line("a")))).status == "completed"


async def begin_with(client: openai.AsyncOpenAI, file_id: str) -> Any:
    return await client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")

"""Errors as the official client sees them, and requests that are refused early."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest

from orcastream.broker.presence import Presence
from orcastream.schemas.errors import ErrorCode
from orcastream.text.tokenizer import Tokenizer
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import joined, read
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

BODY: dict[str, Any] = {"model": MODEL, "prompt": "x"}


async def is_ready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/health/ready")).status_code == 200


async def test_a_bad_parameter_is_named(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt="x", temperature=-1)
    assert caught.value.param == "temperature"
    assert "temperature: got -1" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            modalities=["audio"],
        )
    assert (caught.value.param, caught.value.code) == ("modalities", "unsupported_parameter")


async def test_another_model_is_not_found(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    with pytest.raises(openai.NotFoundError) as caught:
        await client.completions.create(model="gpt-9", prompt="x")
    assert caught.value.code == "model_not_found"


async def test_a_prompt_beyond_the_context(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway(max_model_len=8)).openai()
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt=[5] * 8)
    assert caught.value.code == "context_length_exceeded"


async def test_a_worker_may_have_a_shorter_context(stage: Stage) -> None:
    worker = await stage.worker()
    worker_link = stage.keys.worker(worker.name)
    served = await stage.gateway()
    link = await served.gateway.redis.get()
    await link.call("HSET", worker_link, "max_model_len", 16)
    with pytest.raises(openai.BadRequestError) as caught:
        await served.openai().completions.create(model=MODEL, prompt=[5] * 20)
    assert caught.value.code == "context_length_exceeded"


async def test_an_invalid_length_bounds_nothing(stage: Stage) -> None:
    """Not even if it spells a number that cannot be parsed."""
    worker = await stage.worker()
    served = await stage.gateway()
    link = await served.gateway.redis.get()
    for junk in ("9" * 4400, "٣", "-5", "many"):
        await link.call("HSET", stage.keys.worker(worker.name), "max_model_len", junk)
        served.model.workers._asked_at = float("-inf")
        assert (await served.openai().completions.create(model=MODEL, prompt="x")).choices[0].text == TEXT


async def test_a_worker_may_have_a_cache_for_less_than_the_context(stage: Stage) -> None:
    worker = await stage.worker()
    served = await stage.gateway()
    link = await served.gateway.redis.get()
    await link.call("HSET", stage.keys.worker(worker.name), "max_model_len", 256, "max_cached_tokens", 16)
    with pytest.raises(openai.BadRequestError, match=r"at most 15 tokens: .* 256 tokens \(KV cache 16\)") as caught:
        await served.openai().completions.create(model=MODEL, prompt=[5] * 20)
    assert caught.value.code == "context_length_exceeded"


async def test_keys_and_tenants(stage: Stage) -> None:
    worker = await stage.worker()
    served = await stage.gateway(api_keys={"sk-right": "alpha"})
    for key in ("sk-wrong", "sk-right-not"):
        with pytest.raises(openai.AuthenticationError) as caught:
            await served.openai(key).completions.create(model=MODEL, prompt="x")
        assert caught.value.code == "invalid_api_key"
    assert (await served.http().get("/v1/models")).status_code == 401
    assert (await served.http().get("/health/live")).status_code == 200
    answer = await served.openai("sk-right").completions.create(model=MODEL, prompt="x")
    assert answer.choices[0].text == TEXT
    assert worker.requests[0].payload.tenant == "alpha"


async def test_a_full_queue(stage: Stage) -> None:
    gate = Gate(0)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway(max_queue_depth=1)
    async with served.http().stream("POST", "/v1/completions", json={**BODY, "stream": True}) as response:
        with pytest.raises(openai.RateLimitError) as caught:
            await served.openai().completions.create(model=MODEL, prompt="x")
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["retry-after"]) >= 1
        await gate.open()
        assert joined([event async for event in read(response)]) == TEXT
    link = await served.gateway.redis.get()

    async def has_left() -> bool:
        return not await link.call("XLEN", stage.keys.requests("normal"))

    await eventually(has_left)
    assert (await served.openai().completions.create(model=MODEL, prompt="x")).choices[0].text == TEXT


async def test_no_worker(stage: Stage) -> None:
    served = await stage.gateway()
    with pytest.raises(openai.InternalServerError) as caught:
        await served.openai().completions.create(model=MODEL, prompt="x")
    assert (caught.value.status_code, caught.value.code) == (503, "no_worker")
    assert "retry-after" in caught.value.response.headers


async def test_workers_whose_reports_cannot_be_read_are_not_missed(stage: Stage) -> None:
    """The node of a cluster that has their reports is down, and the queue is on another one."""
    worker, served = await stage.worker(), await stage.gateway()
    assert await served.model.workers.alive()
    await (await served.gateway.redis.get()).call("SET", stage.keys.worker(worker.name), "no report")
    served.model.workers._asked_at = float("-inf")
    assert (await served.openai().completions.create(model=MODEL, prompt="x")).choices[0].text == TEXT


async def test_where_redis_refuses_writes_no_worker_is_said_to_be_gone(stage: Stage) -> None:
    """Workers that live cannot report it then; once they can, they get their time."""
    served = await stage.gateway(redis_patience_s=PATIENCE_S)
    link = await served.gateway.redis.get()
    await link.call("CONFIG", "SET", "maxmemory", 1)
    try:
        error = (await served.http().post("/v1/completions", json=BODY)).json()["error"]
    finally:
        await link.call("CONFIG", "SET", "maxmemory", 0)
    assert error["code"] == "redis_unavailable"
    assert error["message"].startswith("Redis takes no requests now: OOM")
    asking = asyncio.create_task(served.openai().completions.create(model=MODEL, prompt="x"))
    await stage.worker()
    assert (await asking).choices[0].text == TEXT


async def test_workers_that_redis_forgot_are_waited_for(stage: Stage) -> None:
    worker = await stage.worker()
    served = await stage.gateway(redis_patience_s=PATIENCE_S)
    http, client, workers = served.http(), served.openai(), served.model.workers
    await eventually(lambda: is_ready(http))
    link = await served.gateway.redis.get()
    await link.call("DEL", stage.keys.worker(worker.name))

    async def is_missed() -> bool:
        return (await http.get("/health/ready")).json().get("error", {}).get("code") == "no_worker"

    async def is_waited_for() -> bool:
        return workers._awaiting.locked()

    await eventually(is_missed)
    asking = [asyncio.create_task(client.completions.create(model=MODEL, prompt="x")) for _ in range(3)]
    await eventually(is_waited_for)
    await Presence(link, stage.keys, worker.name).beat({"state": "ready"}, ttl_ms=600_000)
    assert [answer.choices[0].text for answer in await asyncio.gather(*asking)] == [TEXT] * 3


async def test_workers_that_do_not_return_are_no_longer_waited_for(stage: Stage) -> None:
    worker = await stage.worker()
    served = await stage.gateway(redis_patience_s=0.3)
    await eventually(lambda: is_ready(served.http()))
    await (await served.gateway.redis.get()).call("DEL", stage.keys.worker(worker.name))

    async def refusal() -> str | None:
        answer = await served.http().post("/v1/completions", json=BODY)
        return answer.json()["error"]["code"] if answer.status_code == 503 else None

    assert await eventually(refusal) == "no_worker"


async def test_redis_is_gone(own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage]) -> None:
    server = own_redis()
    stage = stage_of(server.url)
    served = await stage.gateway(redis_patience_s=0.3, require_worker=False)
    http = served.http()
    assert (await http.get("/health/ready")).status_code == 200
    await asyncio.to_thread(server.kill)
    answer = await http.post("/v1/completions", json=BODY)
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    ready = await http.get("/health/ready")
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, "redis_unavailable")
    assert (await http.get("/health/live")).status_code == 200
    assert (await http.get("/v1/requests/cmpl-x/events")).status_code == 503
    await asyncio.to_thread(server.start)
    await eventually(lambda: is_ready(http))


async def test_a_gateway_starts_before_redis_does(
    own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage]
) -> None:
    server = own_redis()
    await asyncio.to_thread(server.kill)
    stage = stage_of(server.url)
    served = await stage.gateway(redis_patience_s=5)
    http = served.http()
    assert (await http.get("/health/ready")).status_code == 503
    await asyncio.to_thread(server.start)
    await stage.worker()
    await eventually(lambda: is_ready(http))
    assert (await served.openai().completions.create(model=MODEL, prompt="x")).choices[0].text == TEXT


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
async def test_a_body_of_ten_megabytes(stage: Stage, chunked: bool) -> None:
    await stage.worker()
    served = await stage.gateway(max_body_bytes=1024 * 1024)
    body = json.dumps({**BODY, "prompt": "x" * 10_000_000}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    response = await served.http().post("/v1/completions", content=pieces() if chunked else body)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
    assert (await served.openai().completions.create(model=MODEL, prompt="x")).choices[0].text == TEXT


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/tokenize", "/v1/batches", "/v1/files"])
async def test_a_compressed_body_is_refused_by_the_name_of_its_header(stage: Stage, path: str) -> None:
    http = (await stage.gateway()).http()
    answer = await http.post(path, content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Content-Encoding")
    assert "got 'gzip', allowed: identity" in answer.json()["error"]["message"]
    plain = await http.post(path, content=b"{}", headers={"Content-Encoding": "identity"})
    assert plain.json()["error"]["param"] != "Content-Encoding"


async def test_bodies_that_are_not_requests(stage: Stage) -> None:
    await stage.worker()
    http = (await stage.gateway()).http()
    for raw in (b"", b"null", b"{", b"\xff\xfe", b"[1]", b'{"model": "tiny"}', b"[" * 50_000):
        response = await http.post("/v1/completions", content=raw)
        assert response.status_code == 400, raw
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_tokenizing_a_large_prompt_does_not_block_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer is held inside the large prompt until another request has been answered."""
    begun, others_served = threading.Event(), threading.Event()
    encode = Tokenizer.encode

    def held(self: Tokenizer, text: str, *rest: Any, **named: Any) -> list[int]:
        if text.startswith("lorem"):
            begun.set()
            assert others_served.wait(PATIENCE_S), "tokenizing blocks all other requests"
        return encode(self, text, *rest, **named)

    monkeypatch.setattr(Tokenizer, "encode", held)
    await stage.worker()
    served = await stage.gateway()
    body = json.dumps({**BODY, "prompt": "lorem " * 500}) + " " * 10_000
    large = asyncio.create_task(served.http().post("/v1/completions", content=body))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    assert (await served.openai().completions.create(model=MODEL, prompt="x")).choices[0].text == TEXT
    others_served.set()
    assert (await large).json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("method", "path", "query", "param"),
    [
        ("POST", "/v1/completions", "stream=true", "stream"),
        ("POST", "/v1/chat/completions", "api-version=1", "api-version"),
        ("GET", "/v1/requests/cmpl-mine/events", "includeusage=true", "includeusage"),
        ("GET", "/v1/requests/cmpl-mine/events", "include_usage", "include_usage"),
        ("GET", "/v1/requests/cmpl-mine/events", "include_usage=true&include_usage=false", "include_usage"),
        ("DELETE", "/v1/requests/cmpl-mine", "force=true", "force"),
    ],
)
async def test_query_parameters_are_not_ignored(stage: Stage, method: str, path: str, query: str, param: str) -> None:
    await stage.worker()
    http = (await stage.gateway()).http()
    assert (await http.post("/v1/completions", json={**BODY, "request_id": "mine"})).status_code == 200
    refused = await http.request(method, f"{path}?{query}", json=BODY if method == "POST" else None)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


STATUS = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.CANCELLED: 409,
    ErrorCode.EXPIRED: 504,
    ErrorCode.LOST: 500,
    ErrorCode.DEAD_LETTER: 500,
    ErrorCode.ENGINE_ERROR: 500,
}


@pytest.mark.parametrize(("code", "status"), STATUS.items())
async def test_a_request_that_ends_with_an_error(stage: Stage, code: ErrorCode, status: int) -> None:
    await stage.worker(lambda _: Answer([stage.tokenizer.encode(TEXT)], error=code))
    client = (await stage.gateway()).openai()
    with pytest.raises(openai.APIStatusError) as caught:
        await client.completions.create(model=MODEL, prompt="x")
    assert (caught.value.status_code, caught.value.code) == (status, code)
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
    with pytest.raises(openai.APIError) as broken:
        [chunk async for chunk in stream]
    assert broken.value.code == code


async def test_a_deadline_takes_effect_without_a_worker(stage: Stage) -> None:
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=Gate(3)))
    client = (await stage.gateway(sweep_s=0.1)).openai()
    with pytest.raises(openai.APIStatusError) as caught:
        await client.completions.create(model=MODEL, prompt="x", extra_body={"timeout": 0.1})
    assert (caught.value.status_code, caught.value.code) == (504, "expired")
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_two_bodies_on_one_connection(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway()
    limits = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=PATIENCE_S) as http:
        for _ in range(3):
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
            assert (await http.post("/v1/completions", json={})).status_code == 400

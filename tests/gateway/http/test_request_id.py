"""Every answer has an id in X-Request-Id, and pages of allowed origins can read it."""

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any

import httpx
import openai
import pytest

from orcastream.gateway.log import LOGGER
from tests.gateway.conftest import MODEL, Stage
from tests.gateway.scripted_worker import Answer, Gate

APP = "https://app.example.com"
OF_NO_REQUEST = re.compile("req-[0-9a-f]{32}")
BODY: dict[str, Any] = {"model": MODEL, "prompt": "x"}


@pytest.mark.parametrize(
    ("status", "method", "path", "more"),
    [
        (200, "GET", "/v1/models", {}),
        (400, "POST", "/v1/completions", {"json": {**BODY, "seed": "x"}}),
        (401, "GET", "/v1/models", {"headers": {"Authorization": "Bearer other"}}),
        (403, "GET", "/v1/models", {"headers": {"Origin": "https://evil.example.com"}}),
        (404, "GET", "/nowhere", {}),
        (404, "GET", "/v1/requests/cmpl-other/events", {}),
        (405, "PUT", "/v1/completions", {}),
        (413, "POST", "/v1/completions", {"content": b" " * 5_000_000}),
        (421, "GET", "/v1/models", {"headers": {"Host": "other.example.com"}}),
    ],
)
async def test_answers_to_no_request_have_an_id_of_their_own(
    stage: Stage, status: int, method: str, path: str, more: Mapping[str, Any]
) -> None:
    await stage.worker()
    http = (await stage.gateway(api_keys={"key": "tenant"})).http()
    headers = {"Authorization": "Bearer key", **more.get("headers", {})}
    answers = [await http.request(method, path, **{**more, "headers": headers}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status] * 2
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(OF_NO_REQUEST.fullmatch(each) for each in ids)
    assert ids[0] != ids[1]


async def test_the_id_of_a_refused_request_is_its_own(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """As a client chose it, under either name, or as the gateway made it."""
    caplog.set_level(logging.DEBUG, LOGGER.name)
    await stage.worker(Answer([[5]], gate=Gate(0)))
    served = await stage.gateway(max_queue_depth=1)
    client = served.openai()
    async with served.http().stream("POST", "/v1/completions", json={**BODY, "stream": True}):
        for more, wanted in (
            ({"extra_headers": {"Idempotency-Key": "mine"}}, "cmpl-mine"),
            ({"extra_body": {"request_id": "cmpl-mine"}}, "cmpl-mine"),
            ({}, "cmpl-[0-9a-f]{32}"),
            ({"extra_headers": {"Idempotency-Key": "mine"}, "seed": "x"}, "cmpl-mine"),
            ({"extra_headers": {"Idempotency-Key": "m ne"}}, OF_NO_REQUEST.pattern),
        ):
            with pytest.raises((openai.RateLimitError, openai.BadRequestError)) as caught:
                await client.completions.create(**BODY, **more)
            assert re.fullmatch(wanted, str(caught.value.request_id))
            refused = [vars(record) for record in caplog.records if record.message == "refused"]
            assert refused[-1]["request"] == caught.value.request_id


async def test_answers_about_a_request_have_its_id(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway(api_keys={"key": "tenant"})
    http, queued = served.http(), served.model.ids.in_queue("cmpl-mine", "tenant")
    http.headers["Authorization"] = "Bearer key"
    created = await http.post("/v1/completions", json={**BODY, "request_id": "cmpl-mine"})
    responded = await http.post("/v1/responses", json={"model": MODEL, "input": "x", "request_id": "resp_mine"})
    assert [answer.headers["x-request-id"] for answer in (created, responded)] == ["cmpl-mine", "resp_mine"]
    for status, method, path in (
        (200, "HEAD", "requests/cmpl-mine/events"),
        (200, "GET", "requests/cmpl-mine/events"),
        (200, "GET", f"requests/{queued}/events"),
        (400, "GET", "requests/cmpl-mine/events?wrong=1"),
        (200, "DELETE", "requests/cmpl-mine"),
        (404, "GET", "responses/cmpl-mine"),
        (200, "GET", "responses/resp_mine"),
        (200, "GET", "responses/resp_mine?stream=true"),
        (200, "DELETE", "responses/resp_mine"),
    ):
        answer = await http.request(method, f"/v1/{path}")
        wanted = "resp_mine" if "resp_mine" in path else "cmpl-mine"
        assert (answer.status_code, answer.headers.get_list("x-request-id")) == (status, [wanted]), path


async def raw(url: str, request: bytes) -> httpx.Response:
    """Send bytes; return the answer to them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    writer.write(request)
    received = await reader.read()
    writer.close()
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    return httpx.Response(int(first.split()[1]), headers=headers, content=body)


@pytest.mark.parametrize(
    ("status", "rest"),
    [
        (431, b"X: %b\r\n" % (b"x" * 70_000)),
        (400, b"no header\r\n\r\n"),
        (408, b""),
        (408, b"Content-Length: 9\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("allowed", [APP, "*"])
async def test_answers_of_the_connection_itself_can_be_read(
    stage: Stage, status: int, rest: bytes, allowed: str
) -> None:
    hurried = {"header_timeout_s": 0.2, "body_timeout_s": 0.2} if status == 408 else {}
    served = await stage.gateway(cors_origins=[allowed], **hurried)
    head = b"POST /v1/completions HTTP/1.1\r\nOrigin: %b\r\nHost: localhost\r\n"
    answer = await raw(served.url, head % APP.encode() + rest)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, allowed)
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    assert OF_NO_REQUEST.fullmatch(answer.headers["x-request-id"])
    foreign = await raw(served.url, head % b"https://evil.example.com" + rest)
    assert (foreign.status_code, foreign.headers.get("access-control-allow-origin")) == (
        status,
        None if allowed == APP else "*",
    )


async def test_a_crash_can_be_read_and_found_in_the_log(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def crash(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("orcastream.gateway.models_api.models", crash)
    http = (await stage.gateway(cors_origins=[APP])).http()
    answer = await http.get("/v1/models", headers={"Origin": APP})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (500, APP)
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    assert answer.headers["vary"] == "Origin"
    logged = [vars(record)["request"] for record in caplog.records if record.message == "a request failed"]
    assert logged == [answer.headers["x-request-id"]]

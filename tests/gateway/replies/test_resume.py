"""Resuming from Last-Event-ID, on any gateway, at every position."""

from typing import Any

import httpx
import pytest

from orcastream.broker.link import Link
from orcastream.broker.queue import Enqueued, RequestQueue
from orcastream.gateway.admission.api_key import Grant
from orcastream.schemas.codec import Form
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Started, encode_event
from orcastream.schemas.keys import GROUP
from orcastream.schemas.request import GenerationRequest, Payload
from tests.gateway.conftest import MODEL, TEXT, Served, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import Seen, joined, read

BODY = {"model": MODEL, "prompt": "x", "stream": True}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}


async def posted(served: Served, path: str, body: dict[str, Any], upto: int | None = None) -> tuple[str, list[Seen]]:
    """Post and read the stream, to its end or up to the given number of events with text; then leave."""
    events: list[Seen] = []
    async with served.http().stream("POST", path, json=body) as response:
        async for event in read(response):
            events.append(event)
            if upto is not None and sum(any(e.texts.values()) for e in events) >= upto:
                break
        return response.headers["x-request-id"], events


async def resumed(served: Served, request_id: str, last_id: str | None, query: str = "", **headers: str) -> list[Seen]:
    if last_id is not None:
        headers["Last-Event-ID"] = last_id
    path = f"/v1/requests/{request_id}/events{query}"
    async with served.http().stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        return [event async for event in read(response, last_id)]


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", BODY), ("/v1/chat/completions", CHAT)])
async def test_every_position_of_a_finished_stream(stage: Stage, path: str, body: dict[str, Any]) -> None:
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)]))
    first, second = await stage.gateway(), await stage.gateway()
    request_id, events = await posted(first, path, body)
    assert joined(events) == TEXT
    ids = [event.last_id for event in events]
    assert len({*ids}) > 10
    for number, last_id in enumerate(ids):
        rest = await resumed(second, request_id, last_id)
        assert joined(events[: number + 1]) + joined(rest) == TEXT
        assert rest[-1].done
        assert rest[-2].data["choices"][0]["finish_reason"] == "stop"
        assert rest[-2].data["object"] == events[-2].data["object"]
        assert rest[-2].data["id"] == request_id
        assert rest[-2].data["created"] == events[-2].data["created"]


async def test_every_position_with_two_choices_and_a_stop_string(stage: Stage) -> None:
    texts = ["世界 👩‍👩‍👧 STOP", "e\u0301!"]
    ids = [stage.tokenizer.encode(text) for text in texts]
    cut = len(texts[1])
    await stage.worker(Answer(ids, group=2, text_length=cut))
    first, second = await stage.gateway(), await stage.gateway()
    request_id, events = await posted(first, "/v1/completions", {**BODY, "n": 2})
    whole = [joined(events, 0), joined(events, 1)]
    assert whole[1] == texts[1]
    for number, event in enumerate(events):
        rest = await resumed(second, request_id, event.last_id)
        assert [joined(events[: number + 1], choice) + joined(rest, choice) for choice in (0, 1)] == whole


def ended(events: list[Seen]) -> list[int]:
    """Return the choices whose ends were sent, in that order."""
    choices = [choice for event in events if isinstance(event.data, dict) for choice in event.data["choices"]]
    return [choice["index"] for choice in choices if choice["finish_reason"]]


async def test_every_position_with_incomplete_characters(stage: Stage) -> None:
    cut = [stage.tokenizer.encode(text)[:-1] for text in ("世界👍", "e\u0301 👍", "whole")]
    await stage.worker(Answer(cut, group=3))
    first, second = await stage.gateway(), await stage.gateway()
    request_id, events = await posted(first, "/v1/completions", {**BODY, "n": 3})
    whole = [joined(events, choice) for choice in range(3)]
    assert [text[-1] for text in whole[:2]] == ["\ufffd", "\ufffd"]
    ids = [event.last_id for event in events]
    assert [last_id for last_id in ids if last_id and "." in last_id]
    for number, last_id in enumerate(ids):
        rest = await resumed(second, request_id, last_id)
        assert [joined(events[: number + 1], choice) + joined(rest, choice) for choice in range(3)] == whole
        assert rest[-1].done
        if "." in ((events[number].texts and events[number].data.get("event_id")) or ""):
            assert ended(events[: number + 1]) + ended(rest) == [0, 1, 2]


@pytest.mark.parametrize("upto", [1, 4, 9])
async def test_a_running_stream_continues_elsewhere(stage: Stage, upto: int) -> None:
    gate = Gate(upto + 12)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(disconnect_grace_s=60), await stage.gateway()
    request_id, events = await posted(first, "/v1/completions", BODY, upto)
    await gate.open()
    rest = await resumed(second, request_id, events[-1].last_id)
    assert joined(events) + joined(rest) == TEXT
    assert rest[-1].done


async def test_hopping_from_gateway_to_gateway(stage: Stage) -> None:
    text = TEXT * 4
    gate = Gate(0)
    await stage.worker(Answer([stage.tokenizer.encode(text)], gate=gate))
    gateways = [await stage.gateway(disconnect_grace_s=60) for _ in range(3)]
    await gate.open(9)
    request_id, events = await posted(gateways[0], "/v1/completions", BODY, 2)
    hop = 0
    while not events[-1].done:
        hop += 1
        await gate.open(5)
        last_id = events[-1].last_id
        async with (
            gateways[hop % 3].http() as http,
            http.stream(
                "GET", f"/v1/requests/{request_id}/events", headers={"Last-Event-ID": last_id or ""}
            ) as response,
        ):
            reading = read(response, last_id)
            new = 0
            while new < 1 + hop % 4 and not events[-1].done:
                events.append(await anext(reading))
                new += any(events[-1].texts.values())
    assert joined(events) == text
    assert hop > 10


async def test_from_the_start_without_an_id_and_with_usage(stage: Stage) -> None:
    await stage.worker()
    first, second = await stage.gateway(), await stage.gateway()
    request_id, _ = await posted(first, "/v1/chat/completions", CHAT)
    again = await resumed(second, request_id, None, "?include_usage=true")
    assert joined(again) == TEXT
    data = [event.data for event in again if event.data]
    assert data[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert data[-2]["usage"]["completion_tokens"] == len(stage.tokenizer.encode(TEXT))


async def test_a_wrong_checksum_is_a_conflict(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway()
    request_id, _ = await posted(served, "/v1/completions", BODY)
    for last_id in ("3-00000000", "999-00000000"):
        rest = await resumed(served, request_id, last_id)
        assert joined(rest) == ""
        assert rest[-1].error["code"] == "reply_conflict"


async def test_ids_that_cannot_be_resumed(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway()
    request_id, events = await posted(served, "/v1/completions", BODY)
    http = served.http()
    for last_id in ("nonsense", "3-00000000.", "3-00000000.0", "3-00000000.x", "3-00000000.1.1"):
        bad = await http.get(f"/v1/requests/{request_id}/events", headers={"Last-Event-ID": last_id})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "Last-Event-ID")
    several = [("Last-Event-ID", last_id) for last_id in {event.last_id for event in events} if last_id]
    refused = await http.get(f"/v1/requests/{request_id}/events", headers=several)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Last-Event-ID")
    flag = await http.get(f"/v1/requests/{request_id}/events?include_usage=maybe")
    assert (flag.status_code, flag.json()["error"]["param"]) == (400, "include_usage")
    for unknown in ("cmpl-unknown", "no%20id", "x" * 200):
        missing = await http.get(f"/v1/requests/{unknown}/events")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "request_not_found")


async def test_another_tenants_request_is_not_found(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway(api_keys={"sk-a": "alpha", "sk-b": "beta"})
    answer = await served.openai("sk-a").completions.create(model=MODEL, prompt="x")
    http, path = served.http(), f"/v1/requests/{answer.id}"
    wrong = {"Authorization": "Bearer sk-b"}
    assert (await http.get(f"{path}/events", headers=wrong)).status_code == 404
    assert (await http.delete(path, headers=wrong)).status_code == 404
    assert (await http.get(f"{path}/events")).status_code == 401
    rest = await resumed(served, answer.id, None, Authorization="Bearer sk-a")
    assert joined(rest) == TEXT


async def test_a_waiting_request_belongs_to_its_tenant_too(stage: Stage) -> None:
    await stage.worker(Answer([[5]], gate=Gate(0)))
    served = await stage.gateway(api_keys={"sk-a": "alpha", "sk-b": "beta"})
    owner = {"Authorization": "Bearer sk-a"}
    body = {**BODY, "request_id": "mine"}
    async with served.http().stream("POST", "/v1/completions", json=body, headers=owner):
        wrong = await served.http().get("/v1/requests/cmpl-mine/events", headers={"Authorization": "Bearer sk-b"})
        assert wrong.status_code == 404


async def test_two_tenants_may_choose_the_same_id(stage: Stage) -> None:
    texts = {"alpha": "first", "beta": "second"}
    worker = await stage.worker(lambda request: Answer([stage.tokenizer.encode(texts[request.payload.tenant])]))
    served = await stage.gateway(api_keys={"sk-a": "alpha", "sk-b": "beta"})
    body = {**BODY, "stream": False}
    for _ in range(2):
        for key, tenant in (("sk-a", "alpha"), ("sk-b", "beta")):
            headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "mine"}
            answer = await served.http().post("/v1/completions", json=body, headers=headers)
            assert answer.json()["choices"][0]["text"] == texts[tenant]
            assert answer.json()["id"] == answer.headers["x-request-id"] == "cmpl-mine"
            again = await resumed(served, "cmpl-mine", None, Authorization=f"Bearer {key}")
            assert joined(again) == texts[tenant]
            assert {event.data["id"] for event in again if event.texts} == {"cmpl-mine"}
    assert [request.payload.tenant for request in worker.requests] == ["alpha", "beta"]


async def test_a_request_from_another_producer_reads_the_same(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway()
    link = await Link.open(stage.url)
    payload = Payload(prompt=(5, 6), max_tokens=50)
    request = GenerationRequest("job.17", payload, await link.server_time_ms() + 60_000)
    await RequestQueue(link, stage.keys).enqueue(request, terms=None, retention_ms=60_000)
    await link.close()
    rest = await resumed(served, "job.17", None)
    assert joined(rest) == TEXT
    assert rest[-2].data["object"] == "text_completion"


async def test_a_lost_request_ends_as_lost_at_a_gateway_that_did_not_accept_it(stage: Stage) -> None:
    gate = Gate(3)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(disconnect_grace_s=60, loss_check_s=3600), await stage.gateway()
    request_id, events = await posted(first, "/v1/completions", BODY, 1)
    link = await Link.open(stage.url)
    stream = stage.keys.requests("normal")
    entry_id = (await link.call("XRANGE", stream, "-", "+"))[0][0]
    await link.call_many([("XACK", stream, GROUP, entry_id), ("XDEL", stream, entry_id)])
    rest = await resumed(second, request_id, events[-1].last_id)
    assert rest[-1].error["code"] == ErrorCode.LOST
    await link.close()


async def test_the_accepting_gateway_is_known_although_the_reply_was_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry that a repeated enqueue finds is this gateway's own."""
    gate = Gate(3)
    worker = await stage.worker(lambda _: Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway()
    enqueue = served.model.enqueue

    async def enqueue_twice(request: GenerationRequest, grant: Grant, *, durable: bool) -> Enqueued:
        await enqueue(request, grant, durable=durable)
        return await enqueue(request, grant, durable=durable)

    monkeypatch.setattr(served.model, "enqueue", enqueue_twice)
    async with served.http().stream("POST", "/v1/completions", json=BODY) as response:
        reading = read(response)
        events = [await anext(reading)]
        link = await Link.open(stage.url)
        await link.call("FLUSHALL")
        await link.close()

        async def requeued() -> bool:
            return len(worker.requests) > 1

        await eventually(requeued)
        await gate.open()
        events += [event async for event in reading]
    assert joined(events) == TEXT


async def test_the_accepting_gateway_enqueues_again_what_redis_lost(stage: Stage) -> None:
    gate = Gate(3)
    worker = await stage.worker(lambda _: Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway()
    events: list[Seen] = []
    async with served.http().stream("POST", "/v1/completions", json=BODY) as response:
        reading = read(response)
        while not joined(events):
            events.append(await anext(reading))
        link = await Link.open(stage.url)
        await link.call("FLUSHALL")

        async def requeued() -> bool:
            return len(worker.requests) > 1

        await eventually(requeued)
        await gate.open()
        events += [event async for event in reading]
        await link.close()
    assert joined(events) == TEXT
    assert events[-1].done


@pytest.mark.parametrize("moved", [True, False], ids=["moved", "stayed"])
async def test_a_lost_request_with_a_shorter_log_is_reported_as_lost(stage: Stage, moved: bool) -> None:
    """Redis lost the entry and delivered tokens: nothing was changed, so the request is lost."""
    gate = Gate(6)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(disconnect_grace_s=60, loss_check_s=3600), await stage.gateway()
    request_id, events = await posted(first, "/v1/completions", BODY, 3)
    path, headers = f"/v1/requests/{request_id}/events", {"Last-Event-ID": events[-1].last_id or ""}
    await gate.reached(6)
    async with second.http() as http:
        staying = None if moved else await http.send(http.build_request("GET", path, headers=headers), stream=True)
        link = await Link.open(stage.url)
        stream, log = stage.keys.requests("normal"), stage.keys.reply(request_id)
        entry_id = (await link.call("XRANGE", stream, "-", "+"))[0][0]
        tokens = [one for one, _ in (await link.call("XRANGE", log, "-", "+"))[2:]]
        if staying is not None:
            reading = read(staying)
            await anext(reading)
        await link.call_many([("XDEL", log, *tokens), ("XACK", stream, GROUP, entry_id), ("XDEL", stream, entry_id)])
        await link.close()
        if staying is None:
            reading = read(await http.send(http.build_request("GET", path, headers=headers), stream=True))
        rest = [event async for event in reading]
    assert rest[-1].error["code"] == ErrorCode.LOST


@pytest.mark.parametrize("outcome", ["finished", ErrorCode.LOST])
async def test_another_tenants_expired_reply_is_not_revealed(stage: Stage, outcome: str) -> None:
    """Another producer has used the same id that a client of a gateway without keys wants to use."""
    worker = await stage.worker()
    served = await stage.gateway()
    link = await Link.open(stage.url)
    request = GenerationRequest(
        "cmpl-mine", Payload(prompt=(5, 6), tenant="alpha"), await link.server_time_ms() + 60_000
    )
    await RequestQueue(link, stage.keys).enqueue(request, terms=None, retention_ms=60_000)
    seen, log = stage.keys.seen("cmpl-mine"), stage.keys.reply("cmpl-mine")

    async def has_ended() -> bool:
        return b"finished" in await link.call("GET", seen)

    await eventually(has_ended)
    mark = (await link.call("GET", seen)).decode().replace("finished", outcome)
    await link.call_many([("DEL", log), ("SET", seen, mark, "KEEPTTL")])
    taken = await served.http().post("/v1/completions", json={**BODY, "stream": False, "request_id": "mine"})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "id_in_use")
    assert outcome not in taken.text
    assert len(worker.requests) == 1
    await link.close()


async def test_an_id_of_another_models_request_is_in_use(stage: Stage) -> None:
    """Gateways of two models without keys: both clients chose the same id, and there is one log."""
    served = await stage.gateway()
    await stage.worker()
    link = await Link.open(stage.url)
    theirs = Started("w", "another-model", "default", "normal", "normal 1-0", seed=1, prompt_tokens=2)
    await link.call("XADD", stage.keys.reply("cmpl-mine"), "1-0", *encode_event(theirs, Form.MSGPACK))
    taken = await served.http().post("/v1/completions", json={**BODY, "stream": False, "request_id": "mine"})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "id_in_use")
    await link.close()


async def test_an_id_outlives_its_reply_and_reports_how_it_ended(stage: Stage) -> None:
    """The log has expired, the mark has not: no second terminal is written into a recreated log."""
    worker = await stage.worker()
    served = await stage.gateway()
    body = {**BODY, "stream": False, "request_id": "mine"}
    assert (await served.http().post("/v1/completions", json=body)).status_code == 200
    link = await Link.open(stage.url)
    keys = (stage.keys.seen("cmpl-mine"), stage.keys.reply("cmpl-mine"))
    kept_ms, log_ms = [await link.call("PTTL", key) for key in keys]
    assert kept_ms > log_ms
    await link.call("DEL", stage.keys.reply("cmpl-mine"))
    again = await served.http().post("/v1/completions", json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (410, "reply_expired")
    assert "(finished)" in again.json()["error"]["message"]
    reading = await served.http().get("/v1/requests/cmpl-mine/events")
    assert reading.status_code == 404
    assert not await link.call("EXISTS", stage.keys.reply("cmpl-mine"))
    await link.close()
    assert len(worker.requests) == 1


@pytest.mark.parametrize("log_expired", [False, True])
async def test_a_lost_id_is_computed_again(stage: Stage, log_expired: bool) -> None:
    gate = Gate(3)
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(loss_check_s=3600), await stage.gateway()
    body = {**BODY, "request_id": "mine"}
    async with first.http().stream("POST", "/v1/completions", json=body) as response:
        kept = read(response)
        await anext(kept)
        link = await Link.open(stage.url)
        stream = stage.keys.requests("normal")
        entry_id = (await link.call("XRANGE", stream, "-", "+"))[0][0]
        await link.call_many([("XACK", stream, GROUP, entry_id), ("XDEL", stream, entry_id)])
        rest = await resumed(second, "cmpl-mine", None)
        assert rest[-1].error["code"] == ErrorCode.LOST
    if log_expired:
        await link.call("DEL", stage.keys.reply("cmpl-mine"))
    await link.close()
    await gate.open()
    answer = await second.http().post("/v1/completions", json={**body, "stream": False})
    assert answer.json()["choices"][0]["text"] == TEXT
    assert len(worker.requests) == 2


@pytest.mark.parametrize(
    ("path", "body", "address"),
    [
        ("/v1/completions", BODY, "/v1/requests/{}/events"),
        ("/v1/responses", {"model": MODEL, "input": "x", "stream": True}, "/v1/responses/{}?stream=true"),
        ("/v1/completions", BODY, "/console/events"),
    ],
)
async def test_head_at_the_address_of_a_stream_leaves_its_connection_free(
    stage: Stage, path: str, body: dict[str, Any], address: str
) -> None:
    """The stream has not begun, and reading it would take as long as the answer does."""
    await stage.worker(Answer([[5]], gate=Gate(0)))
    served = await stage.gateway()
    async with served.http().stream("POST", path, json=body) as response:
        request_id = response.headers["x-request-id"]
        http = served.http(limits=httpx.Limits(max_connections=1))
        head = await http.head(address.format(request_id))
        assert head.status_code == 200
        assert head.headers["content-type"].startswith("text/event-stream")
        assert "content-length" not in head.headers
        assert (await http.get("/health/live")).status_code == 200

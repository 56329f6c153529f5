"""Clients that leave, return, cancel; gateways that stop."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from orcastream.broker.fold import Fold, fold_log
from orcastream.broker.link import Link
from orcastream.gateway.replies.disconnects import _MARGIN_S
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import GROUP
from tests.gateway.conftest import MODEL, TEXT, Served, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import Seen, joined, read
from tests.patience import PATIENCE_S

BODY = {"model": MODEL, "prompt": "x", "stream": True}


async def log_of(stage: Stage, request_id: str) -> Fold:
    link = await Link.open(stage.url)
    try:
        return fold_log(await link.call("XRANGE", stage.keys.reply(request_id), "-", "+"))
    finally:
        await link.close()


async def cancel_key(stage: Stage, request_id: str) -> bool:
    link = await Link.open(stage.url)
    try:
        return bool(await link.call("EXISTS", stage.keys.cancel(request_id)))
    finally:
        await link.close()


async def ending(stage: Stage, request_id: str) -> Any:
    """Return the terminal event once it exists."""

    async def found() -> Any:
        return (await log_of(stage, request_id)).terminal

    return await eventually(found)


async def departed(served: Served) -> None:
    """Wait until the gateway has written everything to Redis and, once it may, canceled what is due."""
    gateway = served.gateway

    async def may_cancel() -> bool:
        return not gateway.models.default.readers._changed and gateway.models.default.disconnects.may_cancel()

    await eventually(may_cancel)  # after an outage a gateway's lease passes first, 8 s
    await asyncio.sleep(gateway.settings.disconnect_grace_s + _MARGIN_S)
    await gateway.models.default.disconnects.cancel_due()


async def leave_after(served: Served, events: int, **parameters: Any) -> tuple[str, list[Seen]]:
    """Post, read the given number of events, close the connection."""
    seen = []
    async with served.http() as http, http.stream("POST", "/v1/completions", json={**BODY, **parameters}) as response:
        reading = read(response)
        while len(seen) < events:
            seen.append(await anext(reading))
        request_id = response.headers["x-request-id"]
    await eventually(lambda: noticed(served))
    return request_id, seen


async def noticed(served: Served) -> bool:
    """Return whether the gateway has noticed that the client left."""
    return not served.model.readers._here


async def test_closing_a_stream_cancels_after_the_grace(stage: Stage) -> None:
    gate = Gate(5)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    client = (await stage.gateway()).openai()
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
    chunk = await anext(stream)
    await stream.close()
    assert (await ending(stage, chunk.id)).error is ErrorCode.CANCELLED
    assert await cancel_key(stage, chunk.id)


async def test_setting_the_servers_clock_forward_costs_no_client_its_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(2)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway()
    stream = await served.openai().completions.create(model=MODEL, prompt="x", stream=True)
    chunk = await anext(stream)
    await departed(served)
    step_ms = 60_000  # well below the request's deadline
    link = await served.gateway.redis.get()
    time_ms = Link.server_time_ms

    async def ahead(server: Link) -> int:
        return await time_ms(server) + step_ms

    monkeypatch.setattr(Link, "server_time_ms", ahead)
    assert await link.call("ZINCRBY", stage.keys.clients, -step_ms, chunk.id)  # the state of all marks under this clock
    await served.gateway.models.default.disconnects.cancel_due()
    assert not await cancel_key(stage, chunk.id)
    await gate.open()
    assert [event async for event in stream][-1].choices[0].finish_reason == "stop"


async def test_leaving_before_a_whole_answer_cancels_too(stage: Stage) -> None:
    gate = Gate(2)
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway()
    async with served.http() as http:
        asking = asyncio.create_task(http.post("/v1/completions", json={**BODY, "stream": False}))
        await gate.reached(2)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert (await ending(stage, worker.requests[0].id)).error is ErrorCode.CANCELLED


async def test_continue_runs_on_without_a_client(stage: Stage) -> None:
    gate = Gate(3)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway()
    request_id, _ = await leave_after(served, 2, on_disconnect="continue")
    await departed(served)
    await gate.open()
    assert (await ending(stage, request_id)).error is None
    assert not await cancel_key(stage, request_id)


@pytest.mark.parametrize("accepted", ["cancel", "continue"])
async def test_a_repeated_post_cannot_change_what_leaving_means(stage: Stage, accepted: str) -> None:
    repeated = {"cancel": "continue", "continue": "cancel"}[accepted]
    gate = Gate(3)
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(), await stage.gateway()
    body = {**BODY, "request_id": "twin", "on_disconnect": accepted}
    again = {**body, "prompt": "y", "on_disconnect": repeated}
    async with second.http() as other:
        async with first.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
            await anext(read(response))
            staying = await other.send(other.build_request("POST", "/v1/completions", json=again), stream=True)
            reading = read(staying)
            await anext(reading)
        await eventually(lambda: noticed(first))
        await departed(first)
        assert not await cancel_key(stage, "cmpl-twin")
        await staying.aclose()
    await eventually(lambda: noticed(second))
    await departed(second)
    if accepted == "cancel":
        await eventually(lambda: cancel_key(stage, "cmpl-twin"))
    else:
        assert not await cancel_key(stage, "cmpl-twin")
        await gate.open()  # a cancel does this itself once the worker has seen it
    assert (await ending(stage, "cmpl-twin")).error is (ErrorCode.CANCELLED if accepted == "cancel" else None)
    assert len(worker.requests) == 1


async def test_only_the_accepting_gateway_enqueues_a_request_again(stage: Stage) -> None:
    gate = Gate(3)
    worker = await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(loss_check_s=3600), await stage.gateway()
    body = {**BODY, "request_id": "twin"}
    async with first.http().stream("POST", "/v1/completions", json=body) as response:
        await anext(read(response))
        async with second.http().stream("POST", "/v1/completions", json={**body, "prompt": "y"}) as again:
            reading = read(again)
            seen = [await anext(reading)]
            link = await Link.open(stage.url)
            stream = stage.keys.requests("normal")
            entry_id = (await link.call("XRANGE", stream, "-", "+"))[0][0]
            await link.call_many([("XACK", stream, GROUP, entry_id), ("XDEL", stream, entry_id)])
            await link.close()
            seen += [event async for event in reading]
    assert seen[-1].error["code"] == ErrorCode.LOST
    assert len(worker.requests) == 1


def hold_grace(monkeypatch: pytest.MonkeyPatch, *gateways: Served) -> asyncio.Event:
    """Extend the grace period of all gateways until the event is set."""
    over = asyncio.Event()
    for served in gateways:
        monkeypatch.setattr(served.model.disconnects, "may_cancel", over.is_set)
    return over


@pytest.mark.parametrize("same", [True, False], ids=["same gateway", "another gateway"])
async def test_returning_within_the_grace_period_keeps_the_request(
    stage: Stage, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(4)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first = await stage.gateway()
    second = first if same else await stage.gateway()
    over = hold_grace(monkeypatch, first, second)
    request_id, seen = await leave_after(first, 3)
    headers = {"Last-Event-ID": seen[-1].last_id or ""}
    async with second.http().stream("GET", f"/v1/requests/{request_id}/events", headers=headers) as response:
        assert response.status_code == 200
        over.set()
        await departed(first)
        assert not await cancel_key(stage, request_id)
        await gate.open()
        rest = [event async for event in read(response)]
    assert joined(seen) + joined(rest) == TEXT


@pytest.mark.parametrize("turns", range(4))
async def test_a_gateway_stops_right_after_its_last_client_left(stage: Stage, turns: int) -> None:
    """Between the two are the given number of turns of the event loop."""
    model = (await stage.gateway()).model

    async def waits() -> bool:
        return bool(model.disconnects._left._waiters)

    await eventually(waits)
    model.disconnects.left("request")
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await model.close()


async def test_the_second_reader_leaving_cancels_as_well(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(4)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(), await stage.gateway()
    over = hold_grace(monkeypatch, first, second)
    request_id, _ = await leave_after(first, 3)
    async with second.http() as http, http.stream("GET", f"/v1/requests/{request_id}/events") as response:
        reading = read(response)
        await anext(reading)
        over.set()
        await departed(first)
        assert not await cancel_key(stage, request_id)
    assert (await ending(stage, request_id)).error is ErrorCode.CANCELLED


async def test_a_reader_of_a_gateway_that_died_does_not_count(stage: Stage) -> None:
    gate = Gate(4)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway(disconnect_grace_s=0.2)
    async with served.http() as http, http.stream("POST", "/v1/completions", json=BODY) as response:
        request_id = response.headers["x-request-id"]
        link = await Link.open(stage.url)
        await link.call("HSET", stage.keys.readers(request_id), "gateway-dead", 1)  # its lease is over
        await link.close()
    assert (await ending(stage, request_id)).error is ErrorCode.CANCELLED


async def test_delete_cancels_a_running_request(stage: Stage) -> None:
    gate = Gate(3)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway()
    async with served.http().stream("POST", "/v1/completions", json=BODY) as response:
        reading = read(response)
        await anext(reading)
        request_id = response.headers["x-request-id"]
        deleted = await served.http().delete(f"/v1/requests/{request_id}")
        assert deleted.json() == {"id": request_id, "object": "request", "cancelled": True}
        events = [event async for event in reading]
    assert events[-1].error["code"] == "cancelled"
    assert (await served.http().delete(f"/v1/requests/{request_id}")).json()["cancelled"] is False
    assert (await served.http().delete("/v1/requests/cmpl-unknown")).status_code == 404


async def test_delete_ends_a_waiting_request_without_any_worker(stage: Stage) -> None:
    served = await stage.gateway(require_worker=False)
    body = {**BODY, "stream": False, "request_id": "waits"}
    asking = asyncio.create_task(served.http().post("/v1/completions", json=body))

    async def accepted() -> bool:
        return (await served.http().delete("/v1/requests/cmpl-waits")).status_code == 200

    await eventually(accepted)
    answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cancelled")
    assert answer.headers["x-should-retry"] == "false"


async def test_a_stopping_gateway_cancels_nothing_and_its_streams_continue_elsewhere(stage: Stage) -> None:
    gate = Gate(6)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(), await stage.gateway()
    events: list[Seen] = []
    async with first.http().stream("POST", "/v1/completions", json=BODY) as response:
        reading = read(response)
        while not joined(events):
            events.append(await anext(reading))
        first.gateway.begin_stop()
        events += [event async for event in reading]
        request_id = response.headers["x-request-id"]
    assert events[-1].error["code"] == "gateway_stopping"
    refused = await first.http().post("/v1/completions", json=BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "gateway_stopping")
    assert (await first.http().get("/health/ready")).status_code == 503
    assert (await first.http().get("/health/live")).status_code == 200
    await gate.open()
    headers = {"Last-Event-ID": events[-1].last_id or ""}
    async with second.http().stream("GET", f"/v1/requests/{request_id}/events", headers=headers) as response:
        rest = [event async for event in read(response)]
    assert joined(events) + joined(rest) == TEXT
    assert not await cancel_key(stage, request_id)


async def test_whole_answers_get_503_when_the_gateway_stops(stage: Stage) -> None:
    gate = Gate(2)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway()
    asking = asyncio.create_task(served.openai().completions.create(model=MODEL, prompt="x"))
    await gate.reached(2)
    served.gateway.begin_stop()
    with pytest.raises(openai.InternalServerError) as caught:
        await asking
    assert caught.value.status_code == 503
    assert caught.value.code == "gateway_stopping"
    request_id = caught.value.response.headers["x-request-id"]
    await gate.open()
    assert (await ending(stage, request_id)).error is None


async def test_stopping_waits_for_streams_within_the_grace(stage: Stage) -> None:
    gate = Gate(2)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway(shutdown_grace_s=30)
    async with served.http().stream("POST", "/v1/completions", json=BODY) as response:
        reading = read(response)
        events = [await anext(reading)]
        served.gateway.begin_stop()
        await gate.open()
        events += [event async for event in reading]
    assert joined(events) == TEXT


async def test_a_client_that_resets_its_connection_has_left(stage: Stage) -> None:
    gate = Gate(2)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway()
    transport = httpx.AsyncHTTPTransport()
    async with httpx.AsyncClient(base_url=served.url, transport=transport, timeout=PATIENCE_S) as http:
        request = http.build_request("POST", "/v1/completions", json=BODY)
        response = await http.send(request, stream=True)
        request_id = response.headers["x-request-id"]
        await transport.aclose()
    assert (await ending(stage, request_id)).error is ErrorCode.CANCELLED


async def test_a_client_that_leaves_while_it_sends_its_body(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    served = await stage.gateway(require_worker=False)
    _, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    await writer.drain()
    writer.transport.abort()
    assert (await served.http().get("/health/live")).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]

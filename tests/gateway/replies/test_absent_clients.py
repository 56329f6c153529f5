"""Which lost client cancels a request, and when: onlookers, clients of killed gateways, marks lost with their link."""

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from orcastream.broker.connection import Connection
from orcastream.broker.link import Link
from orcastream.broker.queue import RequestQueue
from orcastream.broker.redis_link import RedisLink
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.keys import GROUP
from orcastream.schemas.request import GenerationRequest, Payload
from tests.gateway.conftest import MODEL, TEXT, Served, Stage, eventually
from tests.gateway.replies.test_disconnects import cancel_key, departed, ending, leave_after, noticed
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import Seen, joined, read
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_server import RedisServer

BODY = {"model": MODEL, "prompt": "x", "stream": True}
PROGRAM = """
import sys
from orcastream.gateway.main import run
from orcastream.gateway.settings import GatewaySettings
run(GatewaySettings(_env_file=None, redis_url=sys.argv[1], model=sys.argv[2], served_model_name="tiny",
    port=int(sys.argv[3]), disconnect_grace_s=0.05, gateway_lease_s=3))
"""


async def post_to_redis(stage: Stage, request_id: str, **parameters: Any) -> None:
    link = await Link.open(stage.url)
    payload = Payload(prompt=(5, 6), max_tokens=50, **parameters)
    request = GenerationRequest(request_id, payload, await link.server_time_ms() + 60_000)
    await RequestQueue(link, stage.keys).enqueue(request, terms=None, retention_ms=60_000)
    await link.close()


@pytest.mark.parametrize("parameters", [{}, {"on_disconnect": "cancel"}], ids=["by default", "cancel"])
async def test_an_onlooker_cancels_no_producers_request(stage: Stage, parameters: dict[str, str]) -> None:
    gate = Gate(3)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served = await stage.gateway()
    await post_to_redis(stage, "job.17", **parameters)
    async with served.http() as http, http.stream("GET", "/v1/requests/job.17/events") as response:
        reading = read(response)
        await anext(reading)
    await eventually(lambda: noticed(served))
    await departed(served)
    assert not await cancel_key(stage, "job.17")
    await gate.open()
    assert (await ending(stage, "job.17")).error is None


async def test_an_onlooker_cancels_no_clients_request(stage: Stage) -> None:
    """A second client watches at another gateway and leaves: the first client is still there."""
    gate = Gate(3)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(), await stage.gateway()
    async with first.http().stream("POST", "/v1/completions", json=BODY) as response:
        reading = read(response)
        await anext(reading)
        request_id = response.headers["x-request-id"]
        async with second.http() as http, http.stream("GET", f"/v1/requests/{request_id}/events") as looking:
            onlooker = read(looking)
            await anext(onlooker)
        await eventually(lambda: noticed(second))
        await departed(second)
        assert not await cancel_key(stage, request_id)
        await gate.open()
        assert [event async for event in reading][-1].done


@asynccontextmanager
async def own_process(stage: Stage, model_folder: str) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    """Start a gateway in a process of its own; yield it and a client of it."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stage.url, model_folder, str(port))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            await eventually(lambda: is_ready(http))
            yield process, http
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


@asynccontextmanager
async def begun(stage: Stage, model_folder: str) -> AsyncIterator[tuple[Process, str, Seen, AsyncIterator[Seen]]]:
    """Read the first event of an answer from a gateway in its own process, beside one in this: yield the process, the
    request's id, that event, and the others.
    """
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=Gate(4)))
    await stage.gateway()
    async with (
        own_process(stage, model_folder) as (process, http),
        http.stream("POST", "/v1/completions", json=BODY) as response,
    ):
        request_id, reading = response.headers["x-request-id"], read(response)
        first = await anext(reading)
        await marked(stage, request_id)
        yield process, request_id, first, reading


async def test_a_client_of_a_killed_gateway_that_never_returns(stage: Stage, model_folder: str) -> None:
    async with begun(stage, model_folder) as (process, request_id, _, _):
        process.send_signal(signal.SIGKILL)
    assert (await ending(stage, request_id)).error is ErrorCode.CANCELLED


async def test_a_client_of_a_frozen_gateway_learns_of_the_end(stage: Stage, model_folder: str) -> None:
    """Another gateway cancels the request, as if the frozen one had been killed."""
    async with begun(stage, model_folder) as (process, request_id, first, reading):
        process.send_signal(signal.SIGSTOP)
        assert (await ending(stage, request_id)).error is ErrorCode.CANCELLED
        process.send_signal(signal.SIGCONT)
        seen = [first, *[event async for event in reading]]
    assert [event.error["code"] for event in seen if event.error] == [ErrorCode.CANCELLED]
    assert seen[-1].error
    assert TEXT.startswith(joined(seen[:-1]))


async def is_ready(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/health/ready")).status_code == 200
    except httpx.TransportError:
        return False


async def marked(stage: Stage, request_id: str, gateway: str | None = None) -> None:
    """Wait until Redis knows that some gateway, or `gateway`, reads the reply."""
    link = await Link.open(stage.url)

    async def found() -> bool:
        names = await link.call("HKEYS", stage.keys.readers(request_id))
        return gateway.encode() in names if gateway else bool(names)

    await eventually(found)
    await link.close()


class Breaking:
    """Hands out a freshly broken connection, once."""

    def __init__(self, redis: RedisLink) -> None:
        self._redis = redis
        self.broke = False
        self.opened_at = redis.opened_at

    async def get(self) -> Connection:
        link = await self._redis.get()
        if not self.broke:
            self.broke = True
            await link.close()
        return link


async def test_a_mark_lost_with_its_link_is_repeated(stage: Stage) -> None:
    gate = Gate(3)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    first, second = await stage.gateway(disconnect_grace_s=60), await stage.gateway()
    request_id, _ = await leave_after(first, 2)
    breaking = Breaking(second.gateway.redis)
    second.model.readers._redis = breaking  # type: ignore[assignment]
    async with second.http().stream("GET", f"/v1/requests/{request_id}/events") as response:
        reading = read(response)
        await anext(reading)
        await marked(stage, request_id, second.gateway.name)
        assert breaking.broke


async def test_an_outage_restarts_the_grace_period(stage: Stage) -> None:
    """Even if the connection is back before the next renewal of the marks."""
    served = await stage.gateway()
    await departed(served)
    gateway = served.gateway
    assert gateway.models.default.disconnects.may_cancel()
    await (await gateway.redis.get()).close()
    await gateway.redis.get()
    assert not gateway.models.default.disconnects.may_cancel()


async def test_after_an_outage_other_gateways_get_time_to_reconnect(stage: Stage) -> None:
    """A client may have returned to a gateway that has not reconnected to Redis."""
    lease_s = 3.0
    served = await stage.gateway(disconnect_grace_s=0.1, gateway_lease_s=lease_s)
    await departed(served)
    await (await served.gateway.redis.get()).close()
    await eventually(lambda: cancels_in_time(served, lease_s))
    await departed(served)


async def test_a_stopped_process_restarts_the_grace_period(stage: Stage) -> None:
    """Other gateways may have been stopped with it, and have yet to report their clients."""
    served = await stage.gateway()
    await departed(served)
    readers, disconnects = served.model.readers, served.model.disconnects
    assert disconnects.may_cancel()
    readers._told_at -= 60
    assert not disconnects.may_cancel()
    stopped_at = readers._told_at
    await eventually(lambda: renewed(served, stopped_at))
    assert not disconnects.may_cancel()


async def renewed(served: Served, since: float) -> bool:
    """Return whether the gateway has renewed its marks."""
    return served.model.readers._told_at > since


async def test_returning_while_redis_refuses_writes_keeps_the_request(
    own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage]
) -> None:
    server = own_redis()
    stage = stage_of(server.url)
    await stage.worker(Answer([stage.tokenizer.encode(TEXT)], gate=Gate(3)))
    first, second = await stage.gateway(), await stage.gateway()
    await departed(first)
    request_id, _ = await leave_after(first, 2)
    with server.client() as redis:
        await eventually(lambda: told(first))
        redis.config_set("maxmemory", 1)
        async with second.http().stream("GET", f"/v1/requests/{request_id}/events") as response:
            reading = read(response)
            await anext(reading)
            await eventually(lambda: unsettled(first))
            redis.config_set("maxmemory", 0)
            await marked(stage, request_id, second.gateway.name)
            await departed(first)
            assert not await cancel_key(stage, request_id)


async def test_a_gateway_without_readers_notices_that_others_cannot_report_theirs(
    own_redis: Callable[..., RedisServer], stage_of: Callable[[str], Stage]
) -> None:
    """Otherwise it would cancel their clients' requests as soon as Redis accepts writes again."""
    server = own_redis()
    idle = await stage_of(server.url).gateway(disconnect_grace_s=0.1)
    await departed(idle)
    with server.client() as redis:
        redis.config_set("min-replicas-to-write", 1)
        await eventually(lambda: unsettled(idle))


async def told(served: Served) -> bool:
    """Return whether the gateway has written all marks."""
    return not served.model.readers._changed


async def cancels_in_time(served: Served, lease_s: float) -> bool:
    """Return whether the gateway may cancel: not before Redis has answered on one connection for a gateway's lease."""
    await served.gateway.redis.get()
    may_cancel = served.model.disconnects.may_cancel()
    assert not may_cancel or served.model.readers.settled_s >= lease_s
    return may_cancel


async def unsettled(served: Served) -> bool:
    """Return whether Redis has refused a write of the gateway."""
    return not served.model.disconnects.may_cancel()


async def lose_entry(stage: Stage) -> None:
    link = await Link.open(stage.url)
    stream = stage.keys.requests("normal")
    entry_id = (await link.call("XRANGE", stream, "-", "+"))[0][0]
    await link.call_many([("XACK", stream, GROUP, entry_id), ("XDEL", stream, entry_id)])
    await link.close()


async def test_an_accepted_request_without_a_reader_is_enqueued_again(stage: Stage) -> None:
    gate = Gate(3)
    worker = await stage.worker(lambda _: Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    served: Served = await stage.gateway()
    request_id, _ = await leave_after(served, 2, on_disconnect="continue")
    await lose_entry(stage)

    async def requeued() -> bool:
        return len(worker.requests) > 1

    await eventually(requeued)
    await gate.open()
    assert (await ending(stage, request_id)).error is None
    await eventually(lambda: forgotten(served))


async def forgotten(served: Served) -> bool:
    return not served.model.unattended._watches

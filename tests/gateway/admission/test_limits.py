"""429: the reason and retry time, the same at every gateway, and never for a request accepted before."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from orcastream.broker.link import Link
from orcastream.broker.throughput import Throughput, ThroughputReports
from orcastream.gateway.admission.api_key import Grant, digest, grant_text
from tests.gateway.conftest import MODEL, TEXT, Served, Stage, eventually
from tests.gateway.scripted_worker import Answer, Gate
from tests.redis_server import RedisServer

BODY: dict[str, Any] = {"model": MODEL, "prompt": [5] * 6, "max_tokens": 50, "timeout": 60}
"""50 + 6 tokens."""


async def ask(served: Served, key: str = "none", **changes: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return await served.http().post("/v1/completions", json={**BODY, **changes}, headers=headers)


def refused(answer: httpx.Response) -> tuple[str, int]:
    """Return the code of a refusal and the seconds after which to retry."""
    assert answer.status_code == 429, answer.text
    error = answer.json()["error"]
    assert (error["type"], "Try again in" in error["message"]) == ("rate_limit_error", True)
    return error["code"], int(answer.headers["retry-after"])


@pytest.fixture
async def link(redis_server: RedisServer) -> AsyncIterator[Link]:
    link = await Link.open(redis_server.url)
    yield link
    await link.close()


@pytest.fixture
async def gate(stage: Stage) -> Gate:
    """Holds every answer back until it is opened."""
    gate = Gate(0)
    await stage.worker(lambda _: Answer([stage.tokenizer.encode(TEXT)], gate=gate))
    return gate


async def waiting(stage: Stage, link: Link, count: int, priority_class: str = "normal") -> None:
    """Wait until this number of requests is in the queue."""

    async def are_there() -> bool:
        return bool(await link.call("XLEN", stage.keys.requests(priority_class)) == count)

    await eventually(are_there)


async def finished(asking: Sequence[Awaitable[httpx.Response]], gate: Gate) -> None:
    """Open the gate and wait until all are answered."""
    await gate.open()
    assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200] * len(asking)


def with_keys(path: Path, **grants: Grant) -> dict[str, Any]:
    """Return settings of a gateway that accepts these keys."""
    path.write_text(json.dumps({digest(key): json.loads(grant_text(grant)) for key, grant in grants.items()}))
    return {"api_keys_file": path, "api_keys_reload_s": 0.02}


async def test_a_queue_is_bounded_by_requested_tokens(stage: Stage, gate: Gate, link: Link) -> None:
    served = await stage.gateway(max_queue_tokens=120)
    asking = [asyncio.ensure_future(ask(served)) for _ in range(2)]
    await waiting(stage, link, 2)
    assert refused(await ask(served)) == ("queue_tokens_full", 1)
    asking.append(asyncio.ensure_future(ask(served, priority="high")))
    await waiting(stage, link, 1, "high")
    await finished(asking, gate)


async def test_a_wait_beyond_the_deadline_is_refused(stage: Stage, link: Link) -> None:
    """No worker claims here: three requests wait, and one is served per second."""
    served = await stage.gateway(require_worker=False, max_wait_share=0.5)
    reports = ThroughputReports(link, stage.keys, "w")
    await reports.tell(Throughput(56, 1, 0, 4), ttl_ms=60_000)
    asking = [asyncio.ensure_future(ask(served, request_id=f"r{number}")) for number in range(3)]
    await waiting(stage, link, 3)
    code, retry_s = refused(await ask(served, timeout=4))
    assert (code, 1 <= retry_s <= 3) == ("wait_too_long", True)
    assert refused(await ask(served, timeout=1)) == ("wait_too_long", 3)
    asking.append(asyncio.ensure_future(ask(served, timeout=30)))
    await waiting(stage, link, 4)
    impatient = await stage.gateway(require_worker=False, max_wait_s=1)
    assert refused(await ask(impatient)) == ("wait_too_long", 3)
    again = asyncio.ensure_future(ask(impatient, request_id="r0", timeout=1))
    await stage.worker(TEXT)
    for answer in await asyncio.gather(again, *asking):
        assert answer.status_code == 200, "neither an accepted request nor its repeat is refused"


async def test_the_rate_of_a_key_holds_at_all_gateways(stage: Stage, tmp_path: Path) -> None:
    await stage.worker(TEXT)
    grants = {"a": Grant(tenant="alpha", requests_per_minute=2), "b": Grant(tenant="beta")}
    gateways = [await stage.gateway(**with_keys(tmp_path / "keys.json", **grants)) for _ in range(2)]

    async def is_read() -> bool:
        return all([(await served.http().get("/health/ready")).status_code == 200 for served in gateways]) and all(
            [(await ask(served, "b")).status_code == 200 for served in gateways]
        )

    await eventually(is_read)
    assert [(await ask(served, "a", request_id=f"r{n}")).status_code for n, served in enumerate(gateways)] == [200, 200]
    for served in gateways:
        code, retry_s = refused(await ask(served, "a"))
        assert (code, 20 < retry_s <= 30) == ("rate_limit_exceeded", True)
        assert (await ask(served, "a", request_id="r0")).status_code == 200, "it was accepted before"
        assert (await ask(served, "b")).status_code == 200


async def test_the_concurrency_of_a_key_holds_at_all_gateways(
    stage: Stage, gate: Gate, link: Link, tmp_path: Path
) -> None:
    grants = {"a": Grant(tenant="alpha", max_concurrency=2), "b": Grant(tenant="beta")}
    gateways = [await stage.gateway(**with_keys(tmp_path / "keys.json", **grants)) for _ in range(2)]

    async def is_read() -> bool:
        return all([(await ask(served, "b", model="other")).status_code == 404 for served in gateways])

    await eventually(is_read)
    asking = [asyncio.ensure_future(ask(served, "a")) for served in gateways]
    await waiting(stage, link, 2)
    for served in gateways:
        assert refused(await ask(served, "a"))[0] == "concurrency_limit_exceeded"
    asking.append(asyncio.ensure_future(ask(gateways[0], "b")))
    await waiting(stage, link, 3)
    await finished(asking, gate)
    assert (await ask(gateways[0], "a")).status_code == 200
    assert await link.call("HGET", stage.keys.work, "tenant alpha") is None


async def test_a_client_that_has_read_its_answer_may_ask_again_at_once(stage: Stage, tmp_path: Path) -> None:
    """Its last request is removed from the queue only after that."""
    await stage.worker(lambda _: Answer([stage.tokenizer.encode(TEXT)], cleanup_s=0.01))
    served = await stage.gateway(**with_keys(tmp_path / "keys.json", a=Grant(tenant="alpha", max_concurrency=1)))

    async def is_read() -> bool:
        return (await ask(served, "a", model="other")).status_code == 404

    await eventually(is_read)
    assert [(await ask(served, "a")).status_code for _ in range(10)] == [200] * 10


async def test_one_client_cannot_fill_the_queue(stage: Stage, gate: Gate, link: Link, tmp_path: Path) -> None:
    grants = {"a": Grant(tenant="alpha"), "b": Grant(tenant="beta"), "c": Grant(tenant="gamma", queue_share=0.25)}
    served = await stage.gateway(max_queue_depth=4, **with_keys(tmp_path / "keys.json", **grants))

    async def is_read() -> bool:
        return (await ask(served, "b", model="other")).status_code == 404

    await eventually(is_read)
    asking = [asyncio.ensure_future(ask(served, "a", priority=name)) for name in ("normal", "high")]
    await waiting(stage, link, 1)
    await waiting(stage, link, 1, "high")
    for name in ("normal", "low"):
        assert refused(await ask(served, "a", priority=name))[0] == "queue_share_full"
    asking.append(asyncio.ensure_future(ask(served, "c")))
    await waiting(stage, link, 2)
    assert refused(await ask(served, "c"))[0] == "queue_share_full"
    asking.append(asyncio.ensure_future(ask(served, "b")))
    await waiting(stage, link, 3)
    await finished(asking, gate)
    for name in ("normal", "high"):  # requests leave the queue after their answers
        await waiting(stage, link, 0, name)
    assert (await ask(served, "a")).status_code == 200


async def test_one_client_cannot_take_all_tokens_of_the_queue(
    stage: Stage, gate: Gate, link: Link, tmp_path: Path
) -> None:
    grants = {"a": Grant(tenant="alpha"), "b": Grant(tenant="beta")}
    served = await stage.gateway(max_queue_tokens=240, **with_keys(tmp_path / "keys.json", **grants))

    async def is_read() -> bool:
        return (await ask(served, "b", model="other")).status_code == 404

    await eventually(is_read)
    asking = [asyncio.ensure_future(ask(served, "a")) for _ in range(2)]
    await waiting(stage, link, 2)
    assert refused(await ask(served, "a"))[0] == "queue_token_share_full"
    asking.append(asyncio.ensure_future(ask(served, "b")))
    await waiting(stage, link, 3)
    await finished(asking, gate)


async def test_without_keys_one_client_may_fill_the_queue(stage: Stage, gate: Gate, link: Link) -> None:
    served = await stage.gateway(max_queue_depth=4)
    asking = [asyncio.ensure_future(ask(served)) for _ in range(4)]
    await waiting(stage, link, 4)
    assert refused(await ask(served))[0] == "queue_full"
    await finished(asking, gate)

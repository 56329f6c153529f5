"""The console's page and its feed, at a gateway in front of a real Redis."""

import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from orcastream.broker.link import Link
from orcastream.broker.presence import Presence
from orcastream.broker.stats import StatsStream
from orcastream.gateway.console.feed import MOST_VIEWERS
from orcastream.schemas.stats import Stay, WorkerStats, encode_stats
from tests.gateway.conftest import MODEL, Served, Stage, eventually
from tests.redis_server import RedisServer

KEYS = {SecretStr("a"): "alpha", SecretStr("b"): "beta"}


def stats(worker: str = "w1", sent_ms: float = 1.0, **stay: Any) -> WorkerStats:
    one = Stay(
        number=0,
        id="r1",
        choice=0,
        tenant="alpha",
        request_class="normal",
        place=0,
        prompt_tokens=5,
        cached_tokens=0,
        output_tokens=1,
        continued=False,
        arrived_ms=0.0,
        joined_ms=0.5,
        first_ms=None,
        left_ms=None,
        left=None,
    )
    return WorkerStats(
        worker=worker,
        policy="fcfs",
        policies=["fcfs", "static"],
        sent_ms=sent_ms,
        num_places=4,
        waiting=0,
        stays=[{**one, **stay}],  # type: ignore[typeddict-item]
        batches=[{"stays": [0], "tokens": [1], "decodes": 1}],
        iterations=[(-2.0, 1.0, 0)],
        blocks=[{"window": None, "num_blocks": 3, "stride": 1, "runs": [4, 1, 0, 2]}],
        preemptions=0,
        queried_tokens=5,
        cached_tokens=0,
    )


@asynccontextmanager
async def connected(redis_server: RedisServer) -> AsyncIterator[Link]:
    link = await Link.open(redis_server.url)
    try:
        yield link
    finally:
        await link.close()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def watching(served: Served, headers: Mapping[str, str] | None = None) -> AsyncIterator[AsyncIterator[Any]]:
    """Yield the events of the feed as `(id, message)`."""
    async with served.http().stream("GET", "/console/events", headers=headers or {}) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")

        async def events() -> AsyncIterator[tuple[str | None, dict[str, Any]]]:
            event_id, data = None, None
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    event_id = line[4:]
                elif line.startswith("data: "):
                    data = line[6:]
                elif not line and data is not None:
                    yield event_id, json.loads(data)
                    event_id, data = None, None

        yield events()


async def next_of(events: AsyncIterator[Any], kind: str) -> tuple[str | None, dict[str, Any]]:
    async for event_id, message in events:
        if message["type"] == kind:
            return event_id, message
    raise AssertionError(f"the feed ended without {kind}")


async def test_the_page_loads_nothing_from_elsewhere_and_runs_no_inline_code(stage: Stage) -> None:
    http = (await stage.gateway(api_keys=KEYS)).http()
    page = await http.get("/console")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src 'self';" in policy
    names = set(re.findall(r'(?:href|src)="([^"#]+)"', page.text))
    assert names == {"console/icon.svg", "console/style.css", "console/main.js"}
    assert not re.search(r"<script[^>]*>[^<]|<style|\son\w+=|\sstyle=", page.text)
    left, seen = ["main.js", "style.css", "icon.svg"], set()
    while left:
        seen.add(name := left.pop())
        answer = await http.get(f"/console/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-security-policy"] == policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"innerHTML|insertAdjacentHTML|eval\(|document\.write", answer.text)
        assert "://" not in re.sub(r"http://www\.w3\.org/2000/svg", "", answer.text)
        left += set(re.findall(r'from "\./([^"]+)"', answer.text)) - seen
    assert len(seen) > 5


async def test_an_unchanged_file_is_not_sent_again_and_no_other_file_is_served(stage: Stage) -> None:
    http = (await stage.gateway()).http()
    first = await http.get("/console/main.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = await http.get("/console/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for name in ("nothing.js", "..%2fpage.py", "%2e%2e/page.py", "page.py"):
        assert (await http.get(f"/console/{name}")).status_code == 404, name


async def test_a_setting_disables_the_console(stage: Stage) -> None:
    http = (await stage.gateway(console=False)).http()
    for path in ("/console", "/console/main.js", "/console/events"):
        assert (await http.get(path)).status_code == 404
    assert (await http.post("/console/policy", json={"policy": "static"})).status_code == 404


async def test_the_feed_requires_an_api_key(stage: Stage) -> None:
    http = (await stage.gateway(api_keys=KEYS)).http()
    assert (await http.get("/console/events")).status_code == 401
    assert (await http.post("/console/policy", json={"policy": "static"})).status_code == 401


async def test_the_feed_reports_workers_queue_and_request_owners(stage: Stage, redis_server: RedisServer) -> None:
    served = await stage.gateway(api_keys=KEYS)
    async with (
        connected(redis_server) as link,
        watching(served, bearer("a")) as own,
        watching(served, bearer("b")) as other,
    ):
        _, queue = await next_of(own, "queue")
        assert (queue["model"], set(queue["lengths"])) == (MODEL, {"realtime", "high", "normal", "low"})
        assert await StatsStream(link, stage.keys).tell(encode_stats(stats()))
        _, seen = await next_of(own, "worker")
        assert (seen["worker"], seen["iterations"]) == ("w1", [[-2.0, 1.0, 0]])
        (stay,) = seen["stays"]
        assert (stay["id"], stay["tenant"]) == ("r1", "alpha")
        (hidden,) = (await next_of(other, "worker"))[1]["stays"]
        assert (hidden["id"], hidden["tenant"], hidden["key"]) == ("", "", stay["key"])


async def test_invalid_statistics_are_skipped(stage: Stage, redis_server: RedisServer) -> None:
    served = await stage.gateway()
    async with connected(redis_server) as link, watching(served) as events:
        await next_of(events, "queue")
        stream = StatsStream(link, stage.keys)
        for junk in (b"", b"{}", b"\xc1", encode_stats(stats(place="everywhere"))):
            assert await stream.tell(junk)
        await link.call("XADD", stage.keys.stats, "*", "other", "field")
        assert await stream.tell(encode_stats(stats("w2")))
        assert (await next_of(events, "worker"))[1]["worker"] == "w2"


async def test_a_reconnecting_client_gets_missed_events_at_another_gateway(
    stage: Stage, redis_server: RedisServer
) -> None:
    first, second = await stage.gateway(), await stage.gateway()
    async with connected(redis_server) as link:
        stream = StatsStream(link, stage.keys)
        async with watching(first) as events:
            await next_of(events, "queue")
            assert await stream.tell(encode_stats(stats("w1")))
            last_id, _ = await next_of(events, "worker")
        assert await stream.tell(encode_stats(stats("w2")))
        assert await stream.tell(encode_stats(stats("w3")))
        assert last_id
        async with watching(second, {"Last-Event-ID": last_id}) as events:
            assert [(await next_of(events, "worker"))[1]["worker"] for _ in range(2)] == ["w2", "w3"]
            async with watching(second) as others:  # a new client is shown the remembered events
                seen = [(await next_of(others, "worker"))[1]["worker"] for _ in range(3)]
                assert seen == ["w1", "w2", "w3"]


async def test_an_unreadable_id_counts_as_having_seen_nothing(stage: Stage) -> None:
    served = await stage.gateway()
    for last_id in ("9" * 5000 + "-1", "1-", "many"):
        async with watching(served, {"Last-Event-ID": last_id}) as events:
            await next_of(events, "queue")


async def test_without_watchers_no_lease_is_renewed(stage: Stage, redis_server: RedisServer) -> None:
    served = await stage.gateway()
    async with connected(redis_server) as link:
        assert not await link.call("EXISTS", stage.keys.watched)
        async with watching(served) as events:
            await next_of(events, "queue")
            assert await link.call("EXISTS", stage.keys.watched)

        async def nobody_reads() -> bool:
            await link.call("DEL", stage.keys.watched)
            before = time.monotonic()
            while time.monotonic() - before < 2.5:  # a lease is renewed every two seconds
                if await link.call("EXISTS", stage.keys.watched):
                    return False
            return True

        assert await eventually(nobody_reads)


async def test_the_number_of_watchers_is_bounded(stage: Stage) -> None:
    served = await stage.gateway()
    http = served.http(limits=httpx.Limits(max_connections=None))
    responses = []
    for _ in range(MOST_VIEWERS):
        request = http.build_request("GET", "/console/events")
        responses.append(await http.send(request, stream=True))
    assert {one.status_code for one in responses} == {200}
    refused = await http.get("/console/events")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "console_full")
    for one in responses:
        await one.aclose()

    async def has_room() -> bool:
        async with http.stream("GET", "/console/events") as response:
            return response.status_code == 200

    await eventually(has_room)


async def order(served: Served, body: Any, **options: Any) -> tuple[int, dict[str, Any]]:
    answer = await served.http().post("/console/policy", json=body, **options)
    return answer.status_code, answer.json()


async def test_a_policy_can_be_set_on_workers_that_allow_it(stage: Stage, redis_server: RedisServer) -> None:
    served = await stage.gateway()
    async with connected(redis_server) as link:
        status, body = await order(served, {"policy": "static"})
        assert (status, body["error"]["code"]) == (409, "policy_switch_not_allowed")
        await Presence(link, stage.keys, "w1").beat({"state": "serving", "policies": "fcfs static"}, ttl_ms=50_000)

        async def is_known() -> bool:
            return (await order(served, {"policy": "static"}))[0] == 200

        await eventually(is_known)
        (_, fields) = (await link.call("XREVRANGE", stage.keys.control, "+", "-", "COUNT", 1))[0]
        assert fields == [b"type", b"policy", b"target", b"static"]
        length = await link.call("XLEN", stage.keys.control)
        status, body = await order(served, {"policy": "drain"})
        assert (status, body["error"]["param"]) == (400, "policy")
        assert "fcfs, static" in body["error"]["message"]
        for wrong in ({}, {"policy": 1}, {"policy": "static", "more": 1}, []):
            assert (await order(served, wrong))[0] == 400, wrong
        text = await served.http().post("/console/policy", content='{"policy": "static"}')
        assert text.status_code == 415
        assert await link.call("XLEN", stage.keys.control) == length


@pytest.mark.parametrize("moment", ["begin", "later"])
async def test_a_gateway_that_stops_ends_its_feeds(stage: Stage, moment: str) -> None:
    served = await stage.gateway()
    async with watching(served) as events:
        if moment == "later":
            await next_of(events, "queue")
        served.gateway.begin_stop()
        async for _ in events:
            pass
    refused = await served.http().get("/console/events")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "gateway_stopping")

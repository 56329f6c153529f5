"""`durable: true` over HTTP: refused if Redis cannot persist it, otherwise answered once it is on disk."""

import asyncio
from collections.abc import Callable

import pytest

from tests.gateway.conftest import MODEL, TEXT, Stage, eventually
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

pytestmark = pytest.mark.server

BODY = {"model": MODEL, "prompt": "x", "durable": True, "request_id": "mine"}


async def test_a_server_without_an_append_only_file_refuses_durable(stage: Stage) -> None:
    worker = await stage.worker()
    served = await stage.gateway()
    refused = await served.http().post("/v1/completions", json=BODY)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, "durable", "invalid_request")
    assert "Redis 7.2 or later, or Valkey" in error["message"]
    assert not worker.requests
    for value in ("yes", 1):
        wrong = await served.http().post("/v1/completions", json={**BODY, "durable": value})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "durable")
    plain = await served.http().post("/v1/completions", json={**BODY, "durable": False})
    assert plain.json()["choices"][0]["text"] == TEXT


async def test_a_durable_request_is_answered_once_it_is_on_disk(
    durable_server: RedisServer, stage_of: Callable[[str], Stage]
) -> None:
    """The worker may be done by then: only the reply to the client waits, not the computation."""
    stage = stage_of(durable_server.url)
    worker = await stage.worker()
    served = await stage.gateway(redis_patience_s=PATIENCE_S)
    asking = asyncio.create_task(served.http().post("/v1/completions", json=BODY))

    async def claimed() -> bool:
        return bool(worker.requests)

    await eventually(claimed)
    done, _ = await asyncio.wait([asking], timeout=0.3)
    assert not done
    with durable_server.client() as client:
        client.config_set("appendfsync", "always")
        client.set("any", "write")
    assert (await asking).json()["choices"][0]["text"] == TEXT
    assert len(worker.requests) == 1


async def test_an_unresponsive_disk_is_reported(durable_server: RedisServer, stage_of: Callable[[str], Stage]) -> None:
    stage = stage_of(durable_server.url)
    await stage.worker()
    served = await stage.gateway(redis_patience_s=0)
    answer = await served.http().post("/v1/completions", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_on_disk")
    assert answer.headers["retry-after"]

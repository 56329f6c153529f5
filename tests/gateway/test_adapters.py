"""LoRA adapters are models to clients: named, listed, and served from the queue of their base."""

import asyncio

import openai
import pytest

from orcastream.broker.presence import Presence
from tests.gateway.conftest import MODEL, TEXT, Served, Stage, eventually
from tests.gateway.scripted_worker import ScriptedWorker
from tests.patience import PATIENCE_S


async def have(stage: Stage, served: Served, worker: ScriptedWorker, adapters: str) -> None:
    """Make the worker announce these adapters."""
    link = await served.gateway.redis.get()
    await link.call("HSET", stage.keys.worker(worker.name), "adapters", adapters)


async def test_adapters_are_requested_by_name(stage: Stage) -> None:
    worker = await stage.worker()
    served = await stage.gateway()
    await have(stage, served, worker, "red,blue")
    client, http = served.openai(), served.http()
    for model in ("blue", MODEL, "red"):
        answer = await client.completions.create(model=model, prompt="x")
        assert (answer.model, answer.choices[0].text) == (model, TEXT)
        stream = await client.completions.create(model=model, prompt="x", stream=True)
        assert {chunk.model async for chunk in stream} == {model}
    assert [request.payload.adapter for request in worker.requests] == ["blue", "blue", "", "", "red", "red"]
    listed = (await http.get("/v1/models")).json()["data"]
    assert [(model["id"], model["parent"]) for model in listed] == [(MODEL, None), ("red", MODEL), ("blue", MODEL)]
    assert (await client.models.retrieve("red")).id == "red"
    told = await http.post("/tokenize", json={"model": "red", "prompt": "x"})
    assert told.json()["tokens"] == stage.tokenizer.encode("x")


async def test_a_new_gateway_looks_for_adapters(stage: Stage) -> None:
    worker = await stage.worker()
    first = await stage.gateway()
    await have(stage, first, worker, "red")
    assert (await (await stage.gateway()).openai().completions.create(model="red", prompt="x")).model == "red"


async def test_a_gateway_waits_for_an_adapter_whose_worker_redis_forgot(stage: Stage) -> None:
    worker = await stage.worker()
    served = await stage.gateway(redis_patience_s=PATIENCE_S)
    await have(stage, served, worker, "red")
    http, client = served.http(), served.openai()
    assert (await client.completions.create(model="red", prompt="x")).model == "red"
    link = await served.gateway.redis.get()
    await link.call("DEL", stage.keys.worker(worker.name))

    async def is_missed() -> bool:
        return (await http.get("/health/ready")).status_code == 503

    async def is_waited_for() -> bool:
        return served.model.workers._awaiting.locked()

    await eventually(is_missed)
    asking = asyncio.create_task(client.completions.create(model="red", prompt="x"))
    await eventually(is_waited_for)
    await Presence(link, stage.keys, worker.name).beat({"state": "ready", "adapters": "red"}, ttl_ms=600_000)
    assert (await asking).model == "red"


async def test_an_adapter_is_not_unknown_because_all_workers_are_gone(stage: Stage) -> None:
    worker = await stage.worker()
    served = await stage.gateway(redis_patience_s=0)
    await have(stage, served, worker, "red")
    http = served.http()
    assert (await http.post("/v1/completions", json={"model": "red", "prompt": "x"})).status_code == 200
    await (await served.gateway.redis.get()).call("DEL", stage.keys.worker(worker.name))

    async def is_missed() -> bool:
        return (await http.get("/health/ready")).status_code == 503

    await eventually(is_missed)
    refused = await http.post("/v1/completions", json={"model": "red", "prompt": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_worker")


async def test_an_adapter_that_not_every_worker_has_is_not_served(stage: Stage) -> None:
    first, second = await stage.worker(), await stage.worker(name="scripted-2")
    served = await stage.gateway()
    await have(stage, served, first, "red,blue")
    await have(stage, served, second, "blue")
    client = served.openai()
    assert (await client.completions.create(model="blue", prompt="x")).model == "blue"
    with pytest.raises(openai.NotFoundError, match=f"served: '{MODEL}', 'blue'") as caught:
        await client.completions.create(model="red", prompt="x")
    assert caught.value.code == "model_not_found"


async def test_the_wire_field_is_no_parameter(stage: Stage) -> None:
    await stage.worker()
    client = (await stage.gateway()).openai()
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt="x", extra_body={"adapter": "red"})
    assert caught.value.param == "adapter"

"""One gateway in front of several models, each with its own queue, tokenizer and limits."""

from pathlib import Path
from typing import Any

import openai
import pytest
import redis.asyncio

from orcastream.broker.errors import LinkLost
from orcastream.gateway.settings import GatewaySettings
from orcastream.schemas.keys import Keys
from orcastream.text.tokenizer import Tokenizer
from tests.gateway.conftest import MODEL, TEXT, Served, Stage
from tests.gateway.scripted_worker import Answer, Gate
from tests.gateway.sse_client import joined, read
from tests.gateway.tiny_model import MAX_MODEL_LEN, write_other_model

OTHER = "other"
OTHER_TEXT = "the world 世界"


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_other_model(tmp_path_factory.mktemp("other")))


@pytest.fixture(scope="module")
def other_tokenizer(other_folder: str) -> Tokenizer:
    return Tokenizer.load(other_folder)


@pytest.fixture
async def served(stage: Stage, other_folder: str) -> Served:
    return await stage.gateway(more_models=(f"{OTHER}={other_folder}",))


async def test_each_has_its_queue_and_tokenizer(stage: Stage, served: Served, other_tokenizer: Tokenizer) -> None:
    first = await stage.worker()
    answer = Answer([other_tokenizer.encode(OTHER_TEXT)])
    second = await stage.worker(answer, "scripted-2", Keys(OTHER))
    client = served.openai()
    texts = {}
    for model in (MODEL, OTHER):
        made = await client.completions.create(model=model, prompt="the dog")
        assert made.model == model
        texts[model] = made.choices[0].text
    assert texts == {MODEL: TEXT, OTHER: OTHER_TEXT}
    assert [request.payload.prompt for request in first.requests] == [tuple(stage.tokenizer.encode("the dog"))]
    assert [request.payload.prompt for request in second.requests] == [tuple(other_tokenizer.encode("the dog"))]


async def test_each_has_its_limits_and_is_listed(stage: Stage, served: Served) -> None:
    await stage.worker()
    await stage.worker("x", "scripted-2", Keys(OTHER))
    listed = (await served.http().get("/v1/models")).json()["data"]
    assert {model["id"]: model["max_model_len"] for model in listed} == {
        MODEL: MAX_MODEL_LEN,
        OTHER: MAX_MODEL_LEN // 2,
    }
    client = served.openai()
    long = [5] * (MAX_MODEL_LEN // 2)
    assert (await client.completions.create(model=MODEL, prompt=long)).choices[0].text == TEXT
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=OTHER, prompt=long)
    assert caught.value.code == "context_length_exceeded"
    assert (await client.models.retrieve(OTHER)).id == OTHER


async def test_an_unknown_model_error_lists_the_known_models(stage: Stage, served: Served) -> None:
    await stage.worker()
    for refused in (
        served.openai().completions.create(model="gpt-9", prompt="x"),
        served.openai().models.retrieve("gpt-9"),
    ):
        with pytest.raises(openai.NotFoundError, match=f"served: '{MODEL}', '{OTHER}'") as caught:
            await refused
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_a_model_without_workers_does_not_stop_the_other(stage: Stage, served: Served) -> None:
    http = served.http()
    assert (await http.get("/health/ready")).status_code == 503
    await stage.worker()
    assert (await http.get("/health/ready")).json()["models"] == {MODEL: 1, OTHER: 0}
    body: dict[str, Any] = {"prompt": "x"}
    assert (await http.post("/v1/completions", json={**body, "model": MODEL})).status_code == 200
    refused = await http.post("/v1/completions", json={**body, "model": OTHER})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_worker")


async def test_a_gateway_has_one_connection_and_two_per_model(stage: Stage, served: Served) -> None:
    """As docs/operations.md says where connections run out."""
    http = served.http()
    await stage.worker()
    await stage.worker("x", "scripted-2", Keys(OTHER))
    for model in (MODEL, OTHER):
        assert (await http.post("/v1/completions", json={"model": model, "prompt": "x"})).status_code == 200
    async with redis.asyncio.Redis.from_url(stage.url) as client:
        names = [one["name"] for one in await client.client_list()]
    assert len([name for name in names if name.startswith("gateway-")]) == 1 + 2 * 2


async def test_a_reply_of_any_model_is_found(stage: Stage, served: Served, other_tokenizer: Tokenizer) -> None:
    gate = Gate(0)
    answer = Answer([other_tokenizer.encode(OTHER_TEXT)], gate=gate)
    await stage.worker(answer, "scripted-2", Keys(OTHER))
    http = served.http()
    body = {"model": OTHER, "prompt": "x", "stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        request_id = response.headers["x-request-id"]
        async with http.stream("GET", f"/v1/requests/{request_id}/events") as again:
            await gate.open()
            assert joined([event async for event in read(again)]) == OTHER_TEXT
        assert joined([event async for event in read(response)]) == OTHER_TEXT
    async with http.stream("GET", f"/v1/requests/{request_id}/events") as ended:
        events = [event async for event in read(ended)]
    assert joined(events) == OTHER_TEXT, "even once its queue entry is gone"
    assert {event.data["model"] for event in events if event.texts} == {OTHER}
    without = await (await stage.gateway()).http().get(f"/v1/requests/{request_id}/events")
    assert without.status_code == 404, "a gateway that does not serve the model has no tokenizer for it"


async def test_a_request_of_any_model_can_be_cancelled(stage: Stage, served: Served) -> None:
    gate = Gate(1)
    await stage.worker(lambda _: Answer([[5, 6, 7]], gate=gate), "scripted-2", Keys(OTHER))
    http = served.http()
    body = {"model": OTHER, "prompt": "x", "stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        request_id = response.headers["x-request-id"]
        assert (await http.delete(f"/v1/requests/{request_id}")).json()["cancelled"]
        assert [event async for event in read(response)][-1].error["code"] == "cancelled"


def test_models_are_named_in_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCASTREAM_MORE_MODELS", f'["org/Some-1B", "small={tmp_path}"]')
    settings = GatewaySettings(_env_file=None, model="org/Base", max_model_len=77)
    assert [(source.name, source.path, source.max_model_len) for source in settings.sources()] == [
        ("Base", "org/Base", 77),
        ("Some-1B", "org/Some-1B", None),
        ("small", str(tmp_path), None),
    ]


async def test_the_gauges_of_one_model_do_not_depend_on_the_node_of_another(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise LinkLost("its node is down")

    monkeypatch.setattr(served.model, "look_at_the_queue", fail)
    await served.gateway._gauge()
    first, other = (model.metrics.queue for model in served.gateway.models)
    assert (first._fresh() is None, other._fresh() is None) == (True, False)
    assert served.gateway.metrics._server._values

"""API keys from a file and from Redis: what each allows, and changes that apply without a restart."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from orcastream.broker.link import Link
from orcastream.gateway.admission.api_key import Grant, digest, grant_text, new_key, read_grants
from orcastream.gateway.settings import GatewaySettings
from orcastream.schemas.errors import InvalidRequest
from tests.gateway.conftest import MODEL, TEXT, Served, Stage, eventually
from tests.gateway.tiny_model import MAX_MODEL_LEN
from tests.redis_server import RedisServer

BODY: dict[str, Any] = {"model": MODEL, "prompt": "x", "max_tokens": 50}
SOON: dict[str, Any] = {"api_keys_reload_s": 0.02}


def write(path: Path, **grants: Grant) -> None:
    """Write the file as `orcastream keys` does: replaced as a whole."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({digest(key): json.loads(grant_text(grant)) for key, grant in grants.items()}))
    new.replace(path)


async def ask(served: Served, key: str, **changes: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return await served.http().post("/v1/completions", json={**BODY, **changes}, headers=headers)


async def status(served: Served, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return (await served.http().get("/v1/models", headers=headers)).status_code


async def becomes(served: Served, key: str, wanted: int) -> None:
    async def is_so() -> bool:
        return await status(served, key) == wanted

    await eventually(is_so)


async def test_file_changes_apply_without_a_restart(stage: Stage, tmp_path: Path) -> None:
    worker = await stage.worker()
    path = tmp_path / "keys.json"
    write(path, first=Grant(tenant="alpha"))
    served = await stage.gateway(api_keys_file=path, **SOON)
    await becomes(served, "first", 200)
    assert await status(served, "second") == 401
    write(path, second=Grant(tenant="beta"))
    await becomes(served, "second", 200)
    assert await status(served, "first") == 401
    assert (await ask(served, "second")).json()["choices"][0]["text"] == TEXT
    assert worker.requests[0].payload.tenant == "beta"
    path.write_text("no json")
    path.write_text(json.dumps({"no hash": {"tenant": "alpha"}}))
    assert await status(served, "second") == 200
    write(path)
    await becomes(served, "second", 401)


async def test_keys_in_redis_apply_at_every_gateway(stage: Stage, redis_server: RedisServer) -> None:
    served = [await stage.gateway(api_keys_in_redis=True, **SOON) for _ in range(2)]
    for one in served:
        await becomes(one, "nobody", 401)
    link = await Link.open(redis_server.url)
    await link.call("HSET", stage.keys.api_keys, digest("k"), grant_text(Grant(tenant="alpha")))
    for one in served:
        await becomes(one, "k", 200)
    await link.call("HDEL", stage.keys.api_keys, digest("k"))
    for one in served:
        await becomes(one, "k", 401)
    await link.close()


async def test_no_request_is_admitted_before_the_keys_are_read(stage: Stage, tmp_path: Path) -> None:
    served = await stage.gateway(api_keys_file=tmp_path / "missing.json", **SOON)
    answer = await served.http().get("/v1/models")
    ready = await served.http().get("/health/ready")
    for refused in (answer, ready):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "api_keys_unknown")
    write(tmp_path / "missing.json", k=Grant(tenant="alpha"))
    await becomes(served, "k", 200)


async def test_a_key_allows_classes_and_lengths(stage: Stage, tmp_path: Path) -> None:
    worker = await stage.worker()
    path = tmp_path / "keys.json"
    old = Grant(tenant="alpha", expires=int(time.time()) - 1)
    write(path, k=Grant(tenant="alpha", classes=["normal", "low"], max_tokens=60), old=old)
    served = await stage.gateway(api_keys_file=path, **SOON)
    await becomes(served, "k", 200)
    assert await status(served, "old") == 401
    refused = await ask(served, "k", priority="realtime")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_allowed")
    for changes in ({"max_tokens": 61}, {"min_tokens": 61, "max_tokens": None}):
        refused = await ask(served, "k", **changes)
        assert refused.status_code == 400
    assert (await ask(served, "k", priority="low")).status_code == 200
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    headers = {"Authorization": "Bearer k"}
    answer = await served.http().post("/v1/chat/completions", json=chat, headers=headers)
    assert answer.status_code == 200, answer.text
    assert [request.payload.max_tokens for request in worker.requests] == [50, 60]


async def test_a_key_with_a_length_limit_accepts_requests_without_a_length(stage: Stage, tmp_path: Path) -> None:
    worker = await stage.worker()
    path = tmp_path / "keys.json"
    write(path, long=Grant(tenant="alpha", max_tokens=MAX_MODEL_LEN - 10), short=Grant(tenant="beta", max_tokens=8))
    served = await stage.gateway(api_keys_file=path, **SOON)
    await becomes(served, "long", 200)
    text = "x" * 200
    for url, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ("/v1/responses", {"input": text}),
        ("/v1/completions", {"prompt": [5] * (MAX_MODEL_LEN - 6)}),
        ("/v1/completions", {"prompt": "x", "min_tokens": 20}),
    ):
        answer = await served.http().post(url, json={"model": MODEL, **body}, headers={"Authorization": "Bearer long"})
        assert answer.status_code == 200, answer.text
    assert (await ask(served, "short", max_tokens=None)).status_code == 200
    asked = [request.payload for request in worker.requests]
    assert [len(payload.prompt) + (payload.max_tokens or 0) for payload in asked[:3]] == [MAX_MODEL_LEN] * 3
    assert [payload.max_tokens for payload in asked[3:]] == [20, 8]


async def test_a_refusal_uses_the_clients_parameter_name(stage: Stage, tmp_path: Path) -> None:
    await stage.worker()
    path = tmp_path / "keys.json"
    write(path, k=Grant(tenant="alpha", classes=["normal", "low"], max_tokens=8))
    served = await stage.gateway(api_keys_file=path, **SOON)
    await becomes(served, "k", 200)
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    for url, body, field in (
        ("/v1/chat/completions", {**chat, "max_completion_tokens": 9}, "max_completion_tokens"),
        ("/v1/chat/completions", {**chat, "max_tokens": 9}, "max_tokens"),
        ("/v1/responses", {"input": "x", "max_output_tokens": 9}, "max_output_tokens"),
        ("/v1/completions", {"prompt": "x", "min_tokens": 9}, "min_tokens"),
        ("/v1/completions", {"prompt": "x", "service_tier": "priority"}, "service_tier"),
        ("/v1/completions", {"prompt": "x", "service_tier": "priority", "priority": "high"}, "priority"),
    ):
        refused = await served.http().post(url, json={"model": MODEL, **body}, headers={"Authorization": "Bearer k"})
        error = refused.json()["error"]
        assert refused.status_code == (403 if field in ("service_tier", "priority") else 400)
        assert (error["param"], error["code"]) == (field, "not_allowed")
        assert error["message"].startswith(f"{field}: got ")


def test_a_key_cannot_be_guessed_or_read_back() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == len("orca_") + 43 and key not in digest(key) for key in keys)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "[" * 100_000,
        '{"abc": {"tenant": "a"}}',
        json.dumps({"0" * 64: {"tenant": "not a name"}}),
        json.dumps({"0" * 64: {"tenant": "a", "classes": ["none"]}}),
        json.dumps({"0" * 64: {"tenant": "a", "unknown": 1}}),
    ],
)
def test_an_invalid_list_of_keys_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="allowed"):
        read_grants(text)


def test_keys_come_from_one_source() -> None:
    with pytest.raises(ValueError, match="allowed: one of them"):
        GatewaySettings(_env_file=None, api_keys={"k": "alpha"}, api_keys_in_redis=True)


async def test_several_keys_in_one_request_are_refused_unless_equal(stage: Stage) -> None:
    """A proxy may have checked another one than the gateway would take."""
    http = (await stage.gateway(api_keys={"one": "alpha", "two": "beta"})).http()
    one, two = (("Authorization", f"Bearer {key}") for key in ("one", "two"))
    for headers in ([one, two], [two, one]):
        refused = await http.get("/v1/models", headers=headers)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Authorization")
        assert "Bearer" not in refused.json()["error"]["message"]
    assert (await http.get("/v1/models", headers=[one, one])).status_code == 200

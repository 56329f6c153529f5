"""How many bytes of bodies a gateway holds at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orcastream.gateway.settings import GatewaySettings
from tests.gateway.conftest import MODEL, TEXT, Stage, eventually


def slowly(gate: asyncio.Event, size: int) -> AsyncIterator[bytes]:
    async def parts() -> AsyncIterator[bytes]:
        yield b'{"model": "tiny", "prompt": "x"' + b" " * size
        await gate.wait()
        yield b"}"

    return parts()


async def test_the_total_of_all_bodies_is_bounded(stage: Stage) -> None:
    await stage.worker()
    served = await stage.gateway(max_body_bytes=50_000, max_bodies_bytes=50_000)
    gate, http = asyncio.Event(), served.http()
    slow = asyncio.ensure_future(http.post("/v1/completions", content=slowly(gate, 40_000)))

    async def is_read() -> bool:
        return served.gateway.bodies.held_bytes > 40_000

    await eventually(is_read)
    refused = await http.post("/v1/completions", content=b"{" + b" " * 40_000 + b"}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "bodies_full")
    assert refused.headers["retry-after"] == "1"
    small: dict[str, Any] = {"model": MODEL, "prompt": "x"}
    assert (await http.post("/v1/completions", json=small)).status_code == 200
    gate.set()
    assert (await slow).json()["choices"][0]["text"] == TEXT
    assert served.gateway.bodies.held_bytes == 0
    assert (await http.post("/v1/completions", content=b"{" + b" " * 40_000 + b"}")).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": "x"}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [5]}),
        ("/console/policy", {"policy": "static"}),
    ],
)
async def test_bodies_of_every_kind_count(stage: Stage, path: str, body: dict[str, Any]) -> None:
    served = await stage.gateway(max_body_bytes=50_000, max_bodies_bytes=50_000)
    gate, http = asyncio.Event(), served.http()
    slow = asyncio.ensure_future(
        http.post(path, content=slowly(gate, 40_000), headers={"content-type": "application/json"})
    )

    async def is_read() -> bool:
        return served.gateway.bodies.held_bytes > 40_000

    await eventually(is_read)
    padded = json.dumps(body).encode() + b" " * 40_000
    refused = await http.post(path, content=padded, headers={"content-type": "application/json"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "bodies_full")
    gate.set()
    await slow
    assert served.gateway.bodies.held_bytes == 0


async def test_a_client_that_disconnects_frees_its_body(stage: Stage) -> None:
    served = await stage.gateway()
    slow = asyncio.ensure_future(served.http().post("/v1/completions", content=slowly(asyncio.Event(), 40_000)))

    async def is_read() -> bool:
        return served.gateway.bodies.held_bytes > 40_000

    await eventually(is_read)
    slow.cancel()

    async def is_gone() -> bool:
        return served.gateway.bodies.held_bytes == 0

    await eventually(is_gone)


def test_a_single_body_fits() -> None:
    with pytest.raises(ValueError, match="max_bodies_bytes: got 2000, allowed: at least max_body_bytes"):
        GatewaySettings(_env_file=None, max_body_bytes=4000, max_bodies_bytes=2000)

"""Client, gateways, Redis and workers as real processes: whatever is killed, the answer equals the undisturbed one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orcastream import demo
from orcastream.client import AsyncClient, Client, Message
from orcastream.demo.prompts import LONG_COUNT, SHOWCASE
from orcastream.text.tokenizer import Tokenizer
from tests.path.site import Site
from tests.redis_server import RedisServer, one_server
from tests.worker.worker_process import MODEL

pytestmark = one_server("system")

PROMPT, ANSWER = LONG_COUNT
TOKENIZER = Tokenizer.load(str(demo.MODEL_DIR))
Fault = Callable[[Site], object]


def asked(question: str) -> list[Message]:
    return [{"role": "user", "content": question}]


@pytest.fixture
def site(own_redis: Callable[..., RedisServer], tmp_path: Path) -> Iterator[Site]:
    """Two workers and two gateways on a server that keeps all acknowledged writes."""
    site = Site(own_redis(aof="always"), tmp_path)
    site.start(workers=2, gateways=2)
    yield site
    site.stop()


async def disturbed(client: AsyncClient, fault: Callable[[], Awaitable[Any]], **parameters: Any) -> str:
    """Return the text received when `fault` happens at the twentieth piece."""
    pieces: list[str] = []
    reply = client.generate(asked(PROMPT), max_tokens=2000, temperature=0, timeout_s=120, **parameters)
    async for delta in reply:
        pieces.append(delta.text)
        if len(pieces) == 20:
            await fault()
    assert "".join(pieces) == (await reply.result()).text
    return "".join(pieces).strip()


def client_of(site: Site, transport: str) -> AsyncClient:
    if transport == "http":
        return AsyncClient([gateway.url for gateway in site.gateways], MODEL)
    return AsyncClient(site.server.url, MODEL, tokenizer=TOKENIZER)


async def kill_the_gateways(site: Site) -> None:
    """Kill all gateways in mid-stream, then start others at their addresses."""
    killed = list(site.gateways)
    for gateway in killed:
        await asyncio.to_thread(gateway.kill)
    for gateway in killed:
        await asyncio.to_thread(site.replace_gateway, gateway)


async def restart_redis(site: Site) -> None:
    await asyncio.to_thread(site.server.restart)


async def kill_a_worker(site: Site) -> None:
    """Kill the worker that holds the only request."""
    with site.server.client() as client:
        (log,) = client.scan_iter("orca:reply:*")
        request_id = log.decode().rpartition(":")[2]
    await asyncio.to_thread(site.writer(request_id).kill)


@pytest.mark.parametrize(
    ("transport", "fault"),
    [
        ("http", kill_the_gateways),
        ("http", restart_redis),
        ("http", kill_a_worker),
        ("redis", restart_redis),
        ("redis", kill_a_worker),
    ],
)
async def test_the_answer_equals_the_undisturbed_one(
    site: Site, transport: str, fault: Callable[[Site], Awaitable[None]]
) -> None:
    # A loaded machine may take longer to start gateways than these wait for a client that all of them have lost.
    parameters = {"on_disconnect": "continue"} if transport == "http" else {}
    async with client_of(site, transport) as client:
        assert await disturbed(client, lambda: fault(site), **parameters) == ANSWER


def test_without_asyncio_many_at_once(site: Site) -> None:
    """Gateways are killed while threads read."""
    questions = SHOWCASE * 2
    for urls in ([gateway.url for gateway in site.gateways], site.server.url):
        tokenizer = None if isinstance(urls, list) else TOKENIZER
        with Client(urls, MODEL, tokenizer=tokenizer) as client:
            replies = [client.generate(asked(question), max_tokens=400, temperature=0) for question, _ in questions]
            for reply in replies:
                reply.accepted()
            if isinstance(urls, list):
                site.gateways[0].kill()
            for reply, (_, answer) in zip(replies, questions, strict=True):
                assert "".join(delta.text for delta in reply if delta.choice == 0).strip() == answer

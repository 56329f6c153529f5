"""A gateway in this process, on a real port, in front of a real Redis and a scripted worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from orcastream.gateway.app import create_app
from orcastream.gateway.http.connection import BoundedConnection
from orcastream.gateway.http.connections import Connections
from orcastream.gateway.http.guards import connection_limits
from orcastream.gateway.served_model import ServedModel
from orcastream.gateway.service import Gateway
from orcastream.gateway.settings import GatewaySettings
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest
from orcastream.text.tokenizer import Tokenizer
from tests.gateway.scripted_worker import Answer, ScriptedWorker
from tests.gateway.tiny_model import write_tiny_model
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.redis_server import RedisServer, embedded_binary, system_binary

MODEL = "tiny"
TEXT = "Zwölf Boxkämpfer 👩‍👩‍👧 jagen e\u0301 世界!"


@pytest.fixture(scope="session")
def redis_binary() -> str:
    """One kind of server is enough here: the broker's tests cover the differences between servers."""
    binary = system_binary() or embedded_binary()
    if binary is None:
        pytest.skip("no redis-server found on this machine")
    return binary


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def tokenizer(model_folder: str) -> Tokenizer:
    return Tokenizer.load(model_folder)


@dataclass
class Served:
    """A gateway and how to reach it."""

    gateway: Gateway
    url: str
    server: uvicorn.Server
    clients: list[Any] = field(default_factory=list)

    @property
    def model(self) -> ServedModel:
        """The model that the gateway serves."""
        return self.gateway.models.default

    def openai(self, key: str = "none", **options: Any) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)
        self.clients.append(client)
        return client

    def http(self, **options: Any) -> httpx.AsyncClient:
        client = httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, **options)
        self.clients.append(client)
        return client


class Stage:
    """Starts gateways and workers for one test, and ends them after it."""

    def __init__(self, url: str, model_folder: str, tokenizer: Tokenizer) -> None:
        self.url = url
        self.keys = Keys(MODEL)
        self.tokenizer = tokenizer
        self._model_folder = model_folder
        self._stack = AsyncExitStack()

    def settings(self, **changes: Any) -> GatewaySettings:
        base: dict[str, Any] = {
            "redis_url": self.url,
            "model": self._model_folder,
            "served_model_name": MODEL,
            "disconnect_grace_s": 0.05,
            "loss_check_s": 0.2,
            "shutdown_grace_s": 0,
        }
        return GatewaySettings(_env_file=None, **{**base, **changes})

    async def gateway(self, **changes: Any) -> Served:
        return await self._stack.enter_async_context(self._serve(self.settings(**changes)))

    async def worker(
        self,
        script: Callable[[GenerationRequest], Answer] | Answer | str = TEXT,
        name: str = "scripted-1",
        keys: Keys | None = None,
    ) -> ScriptedWorker:
        """Start a worker that answers as `script` says; with `keys`, for another model than MODEL."""
        if isinstance(script, str):
            ids = self.tokenizer.encode(script)
            return await self.worker(lambda request: Answer([ids] * request.payload.n), name, keys)
        if isinstance(script, Answer):
            answer = script
            return await self.worker(lambda _: answer, name, keys)
        return await self._stack.enter_async_context(ScriptedWorker(self.url, keys or self.keys, script, name))

    async def close(self) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def _serve(self, settings: GatewaySettings) -> AsyncIterator[Served]:
        gateway = Gateway(settings)
        port = free_port()
        connections = Connections(connection_limits(settings), settings.cors_origins)
        config = uvicorn.Config(
            create_app(gateway),
            port=port,
            http=partial(BoundedConnection, connections),  # type: ignore[arg-type]  # as in gateway/main.py
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(server._serve())
        try:
            while not server.started:
                assert not serving.done()
                await asyncio.sleep(0.005)
            served = Served(gateway, f"http://127.0.0.1:{port}", server)
            yield served
            for client in served.clients:
                await (client.aclose() if isinstance(client, httpx.AsyncClient) else client.close())
        finally:
            gateway.begin_stop()
            server.should_exit = True
            await serving


@pytest.fixture
async def stage(redis_server: RedisServer, model_folder: str, tokenizer: Tokenizer) -> AsyncIterator[Stage]:
    stage = Stage(redis_server.url, model_folder, tokenizer)
    yield stage
    await stage.close()


@pytest.fixture
async def stage_of(model_folder: str, tokenizer: Tokenizer) -> AsyncIterator[Callable[[str], Stage]]:
    """Stages in front of servers that the test itself starts."""
    stages: list[Stage] = []

    def make(url: str) -> Stage:
        stages.append(Stage(url, model_folder, tokenizer))
        return stages[-1]

    yield make
    for stage in stages:
        await stage.close()


async def eventually(check: Callable[[], Awaitable[Any]]) -> Any:
    """Wait until `check` returns something true."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await check()):  # noqa: ASYNC110 (the state is another process's)
            await asyncio.sleep(0.01)
    return found

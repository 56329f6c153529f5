"""Gateway processes, and a Redis server, for the tests of one file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.path.gateway_process import GatewayProcess
from tests.redis_server import RedisServer


@pytest.fixture(scope="module")
def module_redis(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(redis_binary, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@contextmanager
def serving(redis: RedisServer, folder: Path, **settings: Any) -> Iterator[GatewayProcess]:
    """A gateway process that needs no worker."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ORCASTREAM_REQUIRE_WORKER", "false")
        environment.setenv("ORCASTREAM_ACCESS_LOG", "true")
        gateway = GatewayProcess(redis.url, folder / "log", **settings)
    try:
        gateway.wait_answering()
        yield gateway
    finally:
        gateway.kill()

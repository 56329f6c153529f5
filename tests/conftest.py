"""For every folder: real Redis servers as fixtures; no test fails for the time that it takes.

Tests run side by side in several processes (`make test`), so nothing here is shared between processes but the sources:
each has its own servers, folders and ports, and computes on one thread.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import public_certificates
from tests.redis_server import BINARIES, EXPECTED, RedisServer, durable_binary
from tests.stuck import (
    pytest_configure,
    pytest_runtest_teardown,
    pytest_sessionfinish,
    pytest_timeout_cancel_timer,
    pytest_timeout_set_timer,
)

__all__ = [
    "pytest_configure",
    "pytest_runtest_teardown",
    "pytest_sessionfinish",
    "pytest_timeout_cancel_timer",
    "pytest_timeout_set_timer",
]

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when it is loaded, here and in every process that a test starts
os.environ["OMP_WAIT_POLICY"] = "passive"  # tests that want several threads run beside others: none may spin
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # decided when triton is imported, and no engine takes it by itself
gc.disable()  # what is loaded for tests is no garbage
public_certificates.read_once()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a Redis server; tests that start one by themselves bear the mark in their files."""
    for item in items:
        if "redis_binary" in getattr(item, "fixturenames", ()):
            item.add_marker("server")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Whatever is loaded now stays: garbage is looked for among the rest."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", params=EXPECTED)
def redis_binary(request: pytest.FixtureRequest) -> str:
    """Path of a redis-server; tests that use it run once with each server that is found."""
    binary = BINARIES[request.param]()
    if binary is None:
        pytest.skip(f"no {request.param} redis-server found on this machine")
    return binary


@pytest.fixture(scope="session")
def _running_servers() -> Iterator[dict[str, RedisServer]]:
    """Servers by their binaries; each starts when the first test asks for it, and runs to the end of the session."""
    servers: dict[str, RedisServer] = {}
    yield servers
    for server in servers.values():
        server.kill()


@pytest.fixture(scope="session")
def _shared_server(
    redis_binary: str, _running_servers: dict[str, RedisServer], tmp_path_factory: pytest.TempPathFactory
) -> RedisServer:
    if redis_binary not in _running_servers:
        server = _running_servers[redis_binary] = RedisServer(redis_binary, tmp_path_factory.mktemp("redis"))
        server.start()
        with server.client() as client:
            while client.info("server")["uptime_in_seconds"] < 2:
                time.sleep(0.05)  # so that no lease is spared any more because the server has just started
    return _running_servers[redis_binary]


@pytest.fixture
def redis_server(_shared_server: RedisServer) -> RedisServer:
    """An empty server, shared between tests: do not kill it, freeze it, or leave its settings changed."""
    with _shared_server.client() as client:
        client.flushall()
        client.script_flush()
    return _shared_server


@pytest.fixture
def own_redis(redis_binary: str, tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """A factory of servers for this test alone, to be killed and restarted at will: `own_redis(aof="always")`."""
    servers: list[RedisServer] = []

    def start(**options: Any) -> RedisServer:
        server = RedisServer(redis_binary, tmp_path / f"redis{len(servers)}", **options)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def durable_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that knows WAITAOF, and never writes its file to the disk unless it is told to."""
    binary = durable_binary()
    if binary is None:
        pytest.skip("no server that knows WAITAOF found: Redis 7.2 or later, or Valkey")
    server = RedisServer(binary, tmp_path / "durable", aof="no")
    server.start()
    yield server
    server.kill()

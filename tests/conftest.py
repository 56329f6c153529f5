"""Fixtures for every folder: real Redis servers; no test fails because it is slow.

Tests run in parallel in several processes (`make test`), so processes share nothing but the sources: each has its own
servers, folders and ports, and computes on one thread.
"""

import gc
import os
import signal
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

os.environ["OMP_NUM_THREADS"] = "1"  # torch reads this at import, here and in every process that a test starts
os.environ["OMP_WAIT_POLICY"] = "passive"  # tests with several threads run next to others: no thread may spin
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # decided when triton is imported; no engine selects it on its own
# A script's background job ignores SIGINT, and so would every process here that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # modules loaded for tests are not garbage
public_certificates.read_once()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a Redis server; tests that start one themselves have the mark in their files."""
    for item in items:
        if "redis_binary" in getattr(item, "fixturenames", ()):
            item.add_marker("server")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Exempt everything loaded so far from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", params=EXPECTED)
def redis_binary(request: pytest.FixtureRequest) -> str:
    """The path of a redis-server; tests that use it run once per server found."""
    binary = BINARIES[request.param]()
    if binary is None:
        pytest.skip(f"no {request.param} redis-server found on this machine")
    return binary


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RedisServer]]:
    """Return the server of a binary; it starts when a test first asks for it, and runs to the end of the session."""
    servers: dict[str, RedisServer] = {}

    def server_of(binary: str) -> RedisServer:
        if binary not in servers:
            servers[binary] = RedisServer(binary, tmp_path_factory.mktemp("redis"))
            servers[binary].start()
            with servers[binary].client() as client:
                while client.info("server")["uptime_in_seconds"] < 2:
                    time.sleep(0.05)  # so that the grace after a server's start no longer protects leases
        return servers[binary]

    yield server_of
    for server in servers.values():
        server.kill()


@pytest.fixture
def redis_server(redis_binary: str, shared_server: Callable[[str], RedisServer]) -> RedisServer:
    """An empty server, shared between tests: do not kill it, freeze it, or leave its settings changed."""
    server = shared_server(redis_binary)
    with server.client() as client:
        client.flushall()
        client.script_flush()
    return server


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
    """A server with WAITAOF that writes its file to disk only when told to."""
    binary = durable_binary()
    if binary is None:
        pytest.skip("no server with WAITAOF found: Redis 7.2 or later, or Valkey")
    server = RedisServer(binary, tmp_path / "durable", aof="no")
    server.start()
    yield server
    server.kill()

"""Fixtures of the examples: a server, the Node packages, each producer in turn."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.producers import EXAMPLES, Producer, redis_cli
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, embedded_binary, system_binary

OFFLINE = ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN", "ENETUNREACH", "network")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests of the module; the oldest available."""
    binary = embedded_binary() or system_binary()
    if binary is None:
        pytest.skip("no redis-server found on this machine")
    server = RedisServer(binary, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def node_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Node examples with their packages installed, in a copy."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    directory = tmp_path_factory.mktemp("node")
    for name in ("package.json", "tsconfig.json", "producer.mjs", "client.ts", "stream.ts"):
        shutil.copy(EXAMPLES / name, directory)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode and any(word in done.stderr for word in OFFLINE):
        pytest.skip("npm cannot reach its registry")
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="session")
def stream_program(node_directory: Path) -> Path:
    """The TypeScript client and the program around it, checked and compiled."""
    done = subprocess.run(
        ["node_modules/.bin/tsc"], cwd=node_directory, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout
    return node_directory / "build" / "stream.js"


@pytest.fixture(params=["redis", "cli", "node"])
def producer(request: pytest.FixtureRequest, tmp_path: Path) -> Producer:
    if request.param == "node":
        return Producer("node", request.getfixturevalue("node_directory"))
    if request.param == "cli" and redis_cli() is None:
        pytest.skip("no redis-cli found")
    return Producer(request.param, tmp_path)


@pytest.fixture
def folding_producer(producer: Producer) -> Producer:
    if producer.name == "cli":
        pytest.skip("the shell example shows events, it does not fold them")
    return producer

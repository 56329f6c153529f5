"""A service of real processes with the demo model, one for all tests of this folder."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.other_clients.environments import python_with
from tests.path.site import Site
from tests.redis_server import RedisServer, embedded_binary, system_binary

PROGRAMS = Path(__file__).parent / "programs"
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway and a worker."""
    binary = system_binary() or embedded_binary()
    if binary is None:
        pytest.skip("no redis-server found on this machine")
    folder = tmp_path_factory.mktemp("service")
    server = RedisServer(binary, folder / "redis")
    server.start()
    site = Site(server, folder)
    try:
        site.start(workers=1)
        yield site
    finally:
        site.stop()
        server.kill()


@pytest.fixture
def ask(service: Site) -> Ask:
    """`ask("langchain_client", "langchain_openai", "stream")` returns a case's output; skips without the module."""

    def run(program: str, module: str, case: str) -> dict[str, Any]:
        python = python_with(module)
        if python is None:
            pytest.skip(f"{module} is not installed")
        command = [python, str(PROGRAMS / f"{program}.py"), f"{service.url}/v1", case]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    return run

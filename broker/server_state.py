"""The state of the Redis server: memory, persistence, replication, and refusals."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.link import Link

_SAYS_OK: Final = "ok"
_KEEPS_ALL: Final = "noeviction"
_LEAST_VERSION: Final = (6, 2)
"""The first with all commands and options that the protocol needs."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """Sizes in bytes; None: the server does not report it, or has no such thing. Totals count from its start."""

    run_id: str | None = None
    """Another one after every start, and of every server."""
    memory_used: int | None = None
    memory_limit: int | None = None
    """None if there is no limit."""
    aof_writable: bool | None = None
    """Whether the last write of the append-only file succeeded; None if there is no such file."""
    replicas: int | None = None
    """Replicas that are in sync with the stream of writes; None for a server that is a replica itself."""
    replication_lag: int | None = None
    """How far the slowest of them lags."""
    keys_evicted: int | None = None
    connections_rejected: int | None = None
    commands_slow: int | None = None


async def read_server_state(link: Link) -> ServerState:
    """Read the state in one round trip; omit what this user may not query. Raises LinkLost."""
    told, newest = await link.call_many([("INFO",), ("SLOWLOG", "GET", 1)])
    slow = None
    if not isinstance(newest, ResponseError):
        slow = int(newest[0][0]) + 1 if newest else 0  # entries are numbered from 0, including dropped ones
    if isinstance(told, ResponseError):
        return ServerState(commands_slow=slow)
    return state_of(told.decode(errors="replace"), slow)


async def eviction_warning(link: Connection) -> str | None:
    """Return what to tell an operator whose server deletes keys when its memory is full; None if it does not, or if
    this user may not ask. In a cluster, one node is asked. Raises LinkLost.
    """
    info = await _info(link, "memory")
    policy = info.get("maxmemory_policy", _KEEPS_ALL)
    if policy == _KEEPS_ALL or not _number(info, "maxmemory"):
        return None
    return (
        f"Redis deletes requests and replies when its memory is full: maxmemory-policy: got {policy}, "
        f"allowed: {_KEEPS_ALL}"
    )


async def check_version(link: Connection) -> None:
    """Raise ResponseError if the server is too old for the protocol, unless this user may not ask. Raises LinkLost.

    In a cluster, one node is asked.
    """
    version = (await _info(link, "server")).get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < _LEAST_VERSION:
        raise ResponseError(f"redis_version: got {version}, allowed: 6.2 or later")


async def _info(link: Connection, section: str) -> dict[str, str]:
    """Return a section of INFO; nothing if this user may not ask. Raises LinkLost."""
    (told,) = await link.call_many([("INFO", section)])
    return {} if isinstance(told, ResponseError) else _fields(told.decode(errors="replace"))


def _fields(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in lines if colon}


def state_of(text: str, slow: int | None) -> ServerState:
    """Return the state in the text of INFO, which does not include `slow`."""
    info = _fields(text)
    is_master = info.get("role") == "master"
    offset = _number(info, "master_repl_offset")
    behind = [lag for line in _replicas(info) if (lag := _behind(line, offset)) is not None] if is_master else []
    return ServerState(
        run_id=info.get("run_id"),
        memory_used=_number(info, "used_memory"),
        memory_limit=_number(info, "maxmemory") or None,
        aof_writable=info.get("aof_last_write_status") == _SAYS_OK if info.get("aof_enabled") == "1" else None,
        replicas=len(behind) if is_master else None,
        replication_lag=max(behind, default=None),
        keys_evicted=_number(info, "evicted_keys"),
        connections_rejected=_number(info, "rejected_connections"),
        commands_slow=slow,
    )


def _replicas(info: Mapping[str, str]) -> list[str]:
    return [value for name, value in info.items() if name.startswith("slave") and name[5:].isdigit()]


def _behind(replica: str, offset: int | None) -> int | None:
    """Return the lag of one replica, `ip=…,port=…,state=online,offset=…,lag=…`; None before it is in sync."""
    fields = dict(part.partition("=")[::2] for part in replica.split(","))
    if fields.get("state") != "online" or offset is None or not fields.get("offset", "").isdigit():
        return None
    return max(0, offset - int(fields["offset"]))


def _number(info: Mapping[str, str], name: str) -> int | None:
    value = info.get(name, "")
    return int(value) if value.isdigit() else None

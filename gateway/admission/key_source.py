"""Sources of API keys other than the settings: a file, or a hash in Redis, both polled for changes."""

import os
from pathlib import Path
from typing import Protocol

from orcastream.broker.aside import aside
from orcastream.broker.redis_link import RedisLink
from orcastream.gateway.admission.api_key import Grants, grants_of_hash, read_grants
from orcastream.schemas.keys import Keys


class KeySource(Protocol):
    """Provides the current keys."""

    async def changed(self) -> Grants | None:
        """Return all grants; None if unchanged since the last call.

        Raises InvalidRequest, OSError, LinkLost, ResponseError.
        """


class KeyFile:
    """A JSON file of SHA-256 → grant. Read again when its inode, size or modification time changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> Grants:
        """Return the grants in the file. Raises InvalidRequest, OSError."""
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            grants = read_grants(file.read())
        self._seen = _version(status)
        return grants

    async def changed(self) -> Grants | None:
        """See KeySource."""
        return await aside(self._changed)

    def _changed(self) -> Grants | None:
        return None if _version(self._path.stat()) == self._seen else self.read()


class KeysInRedis:
    """The hash `ns:api-keys`: SHA-256 → grant as JSON. Shared by all gateways of the namespace."""

    def __init__(self, redis: RedisLink, keys: Keys) -> None:
        self._redis = redis
        self._key = keys.api_keys
        self._seen: list[bytes] | None = None

    async def changed(self) -> Grants | None:
        """See KeySource."""
        flat: list[bytes] = await (await self._redis.get()).call("HGETALL", self._key)
        if flat == self._seen:
            return None
        grants = grants_of_hash(flat)
        self._seen = flat
        return grants


def _version(status: os.stat_result) -> tuple[int, int, int]:
    """Return a value that changes whenever the file does."""
    return status.st_ino, status.st_size, status.st_mtime_ns

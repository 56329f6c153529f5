"""The stores of API keys, a file and Redis: read all keys, add one, remove one."""

import asyncio
import json
import os
import stat
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from orcastream.broker.connection import Connection
from orcastream.cli.console.run import NotDone, run_with_redis
from orcastream.cli.keys.settings import KeysSettings
from orcastream.gateway.admission.api_key import Grant, Grants, grant_text, grants_of_hash, read_grants
from orcastream.schemas.errors import InvalidRequest


class Kept(Protocol):
    """A store of API keys."""

    async def read(self) -> Grants:
        """Return all keys' hashes and grants."""

    async def add(self, hashed: str, grant: Grant) -> None:
        """One more."""

    async def remove(self, hashed: str) -> None:
        """One less."""


class KeptInFile:
    """Keys in a file, which is replaced as a whole; a new file is private to its owner, an old one keeps its mode."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> Grants:
        """Return all keys; none if there is no file yet."""
        try:
            return read_grants(self._path.read_bytes())
        except FileNotFoundError:
            return {}

    async def add(self, hashed: str, grant: Grant) -> None:
        """See Kept."""
        self._write({**await self.read(), hashed: grant})

    async def remove(self, hashed: str) -> None:
        """See Kept."""
        self._write({name: grant for name, grant in (await self.read()).items() if name != hashed})

    def _write(self, grants: Grants) -> None:
        plain = {hashed: json.loads(grant_text(grant)) for hashed, grant in grants.items()}
        file = tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False)  # noqa: SIM115 - closed below
        try:
            with file:
                json.dump(plain, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            if self._path.exists():
                Path(file.name).chmod(stat.S_IMODE(self._path.stat().st_mode))
            Path(file.name).replace(self._path)
        except BaseException:
            Path(file.name).unlink()
            raise


class KeptInRedis:
    """Keys in the Redis hash that the namespace's gateways read."""

    def __init__(self, link: Connection, key: str) -> None:
        self._link = link
        self._key = key

    async def read(self) -> Grants:
        """See Kept."""
        return grants_of_hash(await self._link.call("HGETALL", self._key))

    async def add(self, hashed: str, grant: Grant) -> None:
        """See Kept."""
        await self._link.call("HSET", self._key, hashed, grant_text(grant))

    async def remove(self, hashed: str) -> None:
        """See Kept."""
        await self._link.call("HDEL", self._key, hashed)


def run_with_keys(settings: KeysSettings, work: Callable[[Kept], Awaitable[None]]) -> int:
    """Run `work` with the configured store of keys. Raises NotDone if it cannot be read or written."""

    async def in_redis(link: Connection, complete: KeysSettings) -> None:
        await work(KeptInRedis(link, complete.keys().api_keys))

    try:
        if settings.api_keys_file is None:
            return run_with_redis(settings, in_redis)
        asyncio.run(_awaited(work(KeptInFile(settings.api_keys_file))))
    except (InvalidRequest, OSError, ValueError) as error:
        place = "" if settings.api_keys_file is None else f" in {str(settings.api_keys_file)!r}"
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise NotDone(f"the keys{place} cannot be read or written: {why}") from None
    return 0


async def _awaited(work: Awaitable[None]) -> None:
    await work

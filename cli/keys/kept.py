"""The stores of API keys, a file and Redis: read all keys, add one, remove one."""

import asyncio
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
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
    """Keys in a file, which is replaced as a whole, by one process at a time.

    A new file is private to its owner. An old one keeps its mode, and its owner if this user may give files away. Of a
    symbolic link, the file behind it is replaced: others may know that file by another name.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.realpath(path))
        self._place = f" in {str(path)!r}"

    async def read(self) -> Grants:
        """See Kept."""
        with _named(self._place):
            return read_grants(self._path.read_bytes())

    async def add(self, hashed: str, grant: Grant) -> None:
        """One more, in a new file if there is none yet."""
        with _named(self._place), self._alone():
            known = await self.read() if self._path.exists() else {}
            self._write({**known, hashed: grant})

    async def remove(self, hashed: str) -> None:
        """See Kept."""
        with _named(self._place), self._alone():
            self._write({name: grant for name, grant in (await self.read()).items() if name != hashed})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from changing the file meanwhile, by a lock on its folder: the file is replaced."""
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network file systems have no such locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

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
                old = self._path.stat()
                for owner in ((old.st_uid, -1), (-1, old.st_gid)):
                    with suppress(PermissionError):
                        os.chown(file.name, *owner)
                Path(file.name).chmod(stat.S_IMODE(old.st_mode))
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
        told = await self._link.call("HGETALL", self._key)
        with _named():
            return grants_of_hash(told)

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

    if settings.api_keys_file is None:
        return run_with_redis(settings, in_redis)
    asyncio.run(_awaited(work(KeptInFile(settings.api_keys_file))))
    return 0


@contextmanager
def _named(place: str = "") -> Iterator[None]:
    """Turn errors of the keys in a `place` into NotDone. Output that cannot be written is another's error."""
    try:
        yield
    except (InvalidRequest, OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise NotDone(f"the keys{place} cannot be read or written: {why}") from None


async def _awaited(work: Awaitable[None]) -> None:
    await work

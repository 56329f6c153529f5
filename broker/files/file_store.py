"""The files of all tenants in Redis."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from orcastream.broker.connection import Connection
from orcastream.broker.errors import BrokerError
from orcastream.broker.files.stored_file import StoredFile
from orcastream.broker.jobs.job import FIRST_RESULT, Job
from orcastream.broker.redis_link import RedisLink
from orcastream.broker.resp import fields_of
from orcastream.broker.scripts import ADD_ENTRY, KEEP_FILE
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import Keys

T = TypeVar("T")

PIECE_BYTES: Final = 256 * 1024
"""Bytes of a file's content in one entry, and in one reply of Redis."""
_RESULTS: Final = 20


class FilesFull(BrokerError):
    """A tenant has reached its limit of files, or of bytes in them."""

    def __init__(self, what: str, found: int, allowed: int) -> None:
        super().__init__(f"{what}: got {found}, allowed: {allowed}")
        self.what = what
        self.found = found
        self.allowed = allowed


class FileLost(BrokerError):
    """The content of a file is missing or incomplete in Redis: it expired, or Redis restarted with less than it had."""

    def __init__(self, file_id: str) -> None:
        super().__init__(f"the content of the file {file_id!r} is missing or incomplete in Redis")


class UnreadableFile(BrokerError):
    """A file's record is not in this version's form: another version wrote it, or it is damaged."""

    def __init__(self, file_id: str, why: ValueError) -> None:
        super().__init__(f"the file {file_id!r} is not readable: {why}")


class FileBounds(NamedTuple):
    """Most bytes of a tenant's files together, and most files; 0: no limit."""

    max_bytes: int = 0
    max_files: int = 0


UNBOUNDED: Final = FileBounds()


class FileStore:
    """The store of all files. Every call may be repeated. While Redis is unreachable, a call waits for `patience_s`.

    Then it raises LinkLost, ResponseError or Unwritable.
    """

    def __init__(self, redis: RedisLink, keys: Keys, *, patience_s: float) -> None:
        self._redis = redis
        self._keys = keys
        self._patience_s = patience_s

    async def keep(self, tenant: str, file: StoredFile, bounds: FileBounds = UNBOUNDED) -> None:
        """Add a file to its tenant's list, or update its record; its content expires with it, a job's results, too.

        Raises FilesFull.
        """
        call = KEEP_FILE.call([self._keys.files(tenant)], [file.id, file.as_text(), self._redis.now_ms, *bounds])
        kept, *found = await self._patiently(lambda link: link.run(call.script, call.keys, call.args))
        if kept == 0:
            raise FilesFull("bytes", found[0], bounds.max_bytes)
        if kept < 0:
            raise FilesFull("files", found[0], bounds.max_files)
        key = self._keys.job_results(file.job) if file.job else self._keys.file_pieces(file.id)
        await self._patiently(lambda link: link.call("PEXPIREAT", key, file.expires_ms))

    async def add_piece(self, file: StoredFile, number: int, piece: bytes) -> None:
        """Add piece `number` (1, 2, 3 …) of the content, at most PIECE_BYTES; an existing one stays as it is."""
        call = ADD_ENTRY.call([self._keys.file_pieces(file.id)], [file.expires_ms, f"{number}-0", "piece", piece])
        await self._patiently(lambda link: link.run(call.script, call.keys, call.args))

    async def check_pieces(self, file: StoredFile, count: int) -> None:
        """Raise FileLost unless all of the first `count` pieces of the content are there."""
        if await self._patiently(lambda link: link.call("XLEN", self._keys.file_pieces(file.id))) != count:
            raise FileLost(file.id)

    async def find(self, tenant: str, file_id: str) -> StoredFile | None:
        """Return the file with that id; None if this tenant has none that exists and has not expired.

        Raises UnreadableFile.
        """
        text = await self._patiently(lambda link: link.call("HGET", self._keys.files(tenant), file_id))
        if text is None:
            return None
        try:
            file = StoredFile.from_text(text)
        except InvalidRequest as error:
            raise UnreadableFile(file_id, error) from None
        return file if self._is_there(file) else None

    async def list(self, tenant: str) -> list[StoredFile]:
        """Return all files of a tenant, the oldest first; unreadable ones are omitted."""
        texts = await self._patiently(lambda link: link.call("HVALS", self._keys.files(tenant)))
        files = [file for file in map(_read, texts) if file is not None and self._is_there(file)]
        return sorted(files, key=lambda file: (file.created_ms, file.id))

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Yield the content, piece by piece. Raises FileLost if anything is missing."""
        size_bytes = 0
        async for piece in self._all_of(file):
            size_bytes += len(piece)
            yield piece
        if size_bytes != file.size_bytes:
            raise FileLost(file.id)

    async def bytes_left(self, file: StoredFile) -> int:
        """Return how many bytes of the content Redis has; reads all of it."""
        return sum([len(piece) async for piece in self._all_of(file)])

    async def delete(self, tenant: str, file_id: str) -> None:
        """Delete everything of a file, readable or not; of a job, the results that are the file's lines."""
        with suppress(UnreadableFile):
            file = await self.find(tenant, file_id)
            if file is not None and file.job:
                await self._job(file).drop_results(failed=file.outcome == "failed")

        async def delete(link: Connection) -> None:
            await link.call("HDEL", self._keys.files(tenant), file_id)
            await link.call("DEL", self._keys.file_pieces(file_id))

        await self._patiently(delete)

    def _is_there(self, file: StoredFile) -> bool:
        return not file.pending and file.expires_ms > self._redis.now_ms

    def _all_of(self, file: StoredFile) -> AsyncIterator[bytes]:
        return self._results(file) if file.job else self._pieces(file)

    async def _pieces(self, file: StoredFile) -> AsyncIterator[bytes]:
        key, number = self._keys.file_pieces(file.id), 1
        while found := await self._patiently(_one_piece(key, number)):
            [(_, flat)] = found
            yield fields_of(flat)[b"piece"]
            number += 1

    async def _results(self, file: StoredFile) -> AsyncIterator[bytes]:
        job, cursor = self._job(file), FIRST_RESULT
        while results := await job.results_after(cursor, _RESULTS):
            cursor = results[-1].cursor
            for result in results:
                if result.failed == (file.outcome == "failed"):
                    yield result.body + b"\n"

    def _job(self, file: StoredFile) -> Job:
        return Job(self._redis, self._keys, file.job, patience_s=self._patience_s)

    async def _patiently(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._redis.patiently(action, time.monotonic() + self._patience_s)


def _read(text: bytes) -> StoredFile | None:
    try:
        return StoredFile.from_text(text)
    except InvalidRequest:
        return None


def _one_piece(key: str, number: int) -> "Callable[[Connection], Awaitable[list[tuple[bytes, list[bytes]]]]]":
    return lambda link: link.call("XRANGE", key, f"{number}-0", f"{number}-0")

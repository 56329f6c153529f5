"""Lines of a job and pieces of a file expire, also if their writer dies between two commands."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from orcastream.broker.errors import LinkLost
from orcastream.broker.files.file_store import FileStore
from orcastream.broker.files.stored_file import StoredFile
from orcastream.broker.jobs.job import Job
from orcastream.broker.link import Link
from orcastream.broker.redis_link import RedisLink
from orcastream.schemas.keys import Keys
from tests.broker.jobs.conftest import FAR_MS, ORDER, lines_of
from tests.broker.proxy import LossyProxy
from tests.redis_server import RedisServer

FILE = StoredFile("file-1", "in.jsonl", "batch", 1, 1000, FAR_MS, pending=True)
_EXPIRING = b"*3\r\n$9\r\nPEXPIREAT"


class DyingWriter(LossyProxy):
    """A connection that ends before the first PEXPIREAT; everything sent before it arrives."""

    def let_through(self, data: bytes, connection: int, *, reply: bool) -> tuple[bytes, bool]:
        before, _, expiring = data.partition(_EXPIRING)
        return (before, not reply and bool(expiring))


async def _add_lines(redis: RedisLink, keys: Keys) -> None:
    await Job(redis, keys, "job", patience_s=0).add_lines(lines_of(3), ORDER)


async def _add_piece(redis: RedisLink, keys: Keys) -> None:
    await FileStore(redis, keys, patience_s=0).add_piece(FILE, 1, b"x")


@pytest.mark.parametrize(("add", "count"), [(_add_lines, 3), (_add_piece, 1)])
async def test_a_stream_expires_from_its_first_entry_on(
    add: Callable[[RedisLink, Keys], Awaitable[None]], count: int, redis_server: RedisServer, link: Link, keys: Keys
) -> None:
    proxy = DyingWriter(redis_server.port)
    await proxy.listen()
    redis = RedisLink(proxy.url, "writer")
    try:
        with suppress(LinkLost):
            for _ in range(2):
                await add(redis, keys)
    finally:
        await redis.close()
        await proxy.refuse()
    key = keys.job_lines("job") if count == 3 else keys.file_pieces(FILE.id)
    assert await link.call("XLEN", key) == count
    assert await link.call("PTTL", key) > 0

"""A Redis server for one measurement: our own, or a given empty one."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from redis.exceptions import ResponseError

from orcastream.broker.errors import LinkLost
from orcastream.broker.link import Link
from orcastream.cli.credentials import without_credentials
from orcastream.cli.embedded_redis import EmbeddedRedis
from orcastream.cli.errors import UserError
from orcastream.cli.supervisor import Supervisor


@asynccontextmanager
async def own_redis(url: str | None = None) -> AsyncIterator[tuple[str, Link]]:
    """Yield the URL of a server and a link to it: our own append-only server, or the one at `url`.

    Raises UserError if no server answers there, or if its database is not empty: it is emptied during and after the
    measurement.
    """
    if url is not None:
        async with _emptied(url) as link:
            yield url, link
        return
    with tempfile.TemporaryDirectory(prefix="orcastream-bench-") as directory:
        server = EmbeddedRedis(Supervisor(lambda *_: None), Path(directory))
        await server.start()
        try:
            async with _emptied(server.url) as link:
                yield server.url, link
        finally:
            await server.stop()


@asynccontextmanager
async def _emptied(url: str) -> AsyncIterator[Link]:
    try:
        link = await Link.open(url, name="bench")
    except (LinkLost, ResponseError, ValueError) as error:
        shown = without_credentials(url)
        raise UserError(f"--redis-url: got {shown!r}, allowed: the URL of one server that answers ({error})") from None
    try:
        if keys := await link.call("DBSIZE"):
            raise UserError(f"--redis-url: the database holds {keys} keys; allowed: an empty one")
        try:
            yield link
        finally:
            await link.call("FLUSHDB")
    finally:
        await link.close()


async def info(link: Link, section: str) -> dict[str, str]:
    """Return one section of INFO."""
    text: bytes = await link.call("INFO", section)
    lines = (line.partition(":") for line in text.decode().splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in lines}


async def server_cpu_s(link: Link) -> float:
    """Return the CPU seconds that the server has used so far."""
    used = await info(link, "cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


async def server_version(link: Link) -> str:
    """Return the server's name and version."""
    found = await info(link, "server")
    name = "Valkey" if "valkey_version" in found else "Redis"
    return f"{name} {found.get('valkey_version', found['redis_version'])}"

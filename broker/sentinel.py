"""Who is the master now: sentinels are asked, and the server that they name has to say so itself."""

from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from broker.address import RedisAddress
from broker.errors import LinkLost
from broker.link import Link

ASK_TIMEOUT_S = 1.0
"""How long one sentinel may take; there are others."""


async def open_master(address: RedisAddress, **options: Any) -> Link:
    """A link to the master; `options` as `Link.open` takes them.

    Sentinels are asked one after the other until one of them names a server that takes writes: one that was cut off may
    still name the old master. LinkLost where none does, ResponseError where that server refuses the greeting.
    """
    reasons: list[str] = []
    tried: set[tuple[str, int]] = set()
    for host, port in address.hosts:
        try:
            master = await _master_by(address, host, port)
            if master in tried:
                continue
            tried.add(master)
            return await _open_if_master(address, *master, **options)
        except LinkLost as error:
            reasons.append(f"{host}:{port}: {error}")
    raise LinkLost(f"no sentinel leads to a master named {address.service!r} ({'; '.join(reasons)})")


async def _master_by(address: RedisAddress, host: str, port: int) -> tuple[str, int]:
    options = {**(address.sentinel_options or {}), "host": host, "port": port}
    try:
        link = await Link.open_with(options, reply_timeout_s=ASK_TIMEOUT_S)
        try:
            reply = await link.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)
        finally:
            await link.close()
    except ResponseError as error:
        raise LinkLost(f"the sentinel refused: {error}") from None
    if reply is None:
        raise LinkLost("the sentinel knows no master of that name")
    return reply[0].decode(), int(reply[1])


async def _open_if_master(address: RedisAddress, host: str, port: int, **options: Any) -> Link:
    link = await Link.open_with({**address.options, "host": host, "port": port}, **options)
    try:
        role = (await link.call("ROLE"))[0]
    except NoPermissionError:
        return link  # then the first write tells
    except BaseException:
        await link.close()
        raise
    if role != b"master":
        await link.close()
        raise LinkLost(f"{host}:{port} is no master but a {role.decode()}")
    return link

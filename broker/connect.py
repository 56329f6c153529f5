"""Opens a connection for a URL: to a named server, to the master that sentinels know, or to a cluster."""

from typing import Any

from orcastream.broker.address import Mode, RedisAddress
from orcastream.broker.connection import Connection
from orcastream.broker.link import Link, LinkObserver
from orcastream.broker.master_watch import MasterWatch
from orcastream.broker.router import Router
from orcastream.broker.sentinel import open_master
from orcastream.broker.server_state import check_version


async def connect(
    url: str,
    *,
    name: str = "",
    reply_timeout_s: float = 5.0,
    observer: LinkObserver | None = None,
) -> Connection:
    """Open a link to the master, or a router over a cluster. Raises as `Link.open` and `Router.open` do, and
    ResponseError if the server is too old.

    Call again once the connection is dead. A link found through sentinels also ends when they name another master.
    """
    address = RedisAddress.parse(url)
    connection = await _open(address, name=name, reply_timeout_s=reply_timeout_s, observer=observer)
    try:
        await check_version(connection)
    except BaseException:
        await connection.close()
        raise
    return connection


async def _open(address: RedisAddress, **options: Any) -> Connection:
    if address.mode is Mode.CLUSTER:
        return await Router.open(address, **options)
    if address.mode is Mode.SENTINEL:
        link, word = await open_master(address, **options)
        MasterWatch.follow(address, link, word)
        return link
    return await Link.open_with(address.options, **options)

"""A connection to what a URL leads to: a server that is named there or known to sentinels, or a cluster."""

from typing import Any

from orcastream.broker.address import Mode, RedisAddress
from orcastream.broker.connection import Connection
from orcastream.broker.link import Link, LinkObserver
from orcastream.broker.master_watch import MasterWatch
from orcastream.broker.router import Router
from orcastream.broker.sentinel import open_master


async def connect(
    url: str,
    *,
    name: str = "",
    reply_timeout_s: float = 5.0,
    observer: LinkObserver | None = None,
) -> Connection:
    """Open a link to the master, or a router over a cluster. Raises as `Link.open` and `Router.open` do.

    Ask again, by a new call, once it is dead. A link that sentinels led to also ends when they name another master.
    """
    address = RedisAddress.parse(url)
    options: dict[str, Any] = {"name": name, "reply_timeout_s": reply_timeout_s, "observer": observer}
    if address.mode is Mode.CLUSTER:
        return await Router.open(address, **options)
    if address.mode is Mode.SENTINEL:
        link, word = await open_master(address, **options)
        MasterWatch.follow(address, link, word)
        return link
    return await Link.open_with(address.options, **options)

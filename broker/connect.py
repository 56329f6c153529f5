"""A link to the server that a URL leads to, be it named there or known to sentinels."""

from typing import Any

from broker.address import Mode, RedisAddress
from broker.link import Link, LinkObserver
from broker.master_watch import MasterWatch
from broker.sentinel import open_master


async def connect(
    url: str,
    *,
    name: str = "",
    reply_timeout_s: float = 5.0,
    observer: LinkObserver | None = None,
    blocking: bool = False,
) -> Link:
    """Open a link to the master. Raises as `Link.open` does; ask again, by a new call, once the link is dead.

    One that sentinels led to also ends when they name another master.
    """
    address = RedisAddress.parse(url)
    options: dict[str, Any] = {"reply_timeout_s": reply_timeout_s, "observer": observer, "blocking": blocking}
    if address.mode is Mode.SENTINEL:
        link, word = await open_master(address, name=name, **options)
        MasterWatch.follow(address, link, word)
        return link
    return await Link.open_with(address.options, name=name, **options)

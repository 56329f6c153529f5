"""A link to the server that a URL leads to, be it named there or known to sentinels."""

from typing import Any

from broker.address import Mode, RedisAddress
from broker.link import Link, LinkObserver
from broker.sentinel import open_master


async def connect(
    url: str,
    *,
    name: str = "",
    reply_timeout_s: float = 5.0,
    observer: LinkObserver | None = None,
    blocking: bool = False,
) -> Link:
    """Open a link to the master. Raises as `Link.open` does; ask again, by a new call, once the link is dead."""
    address = RedisAddress.parse(url)
    options: dict[str, Any] = {"reply_timeout_s": reply_timeout_s, "observer": observer, "blocking": blocking}
    if address.mode is Mode.SENTINEL:
        return await open_master(address, name=name, **options)
    return await Link.open_with(address.options, name=name, **options)

"""Reply logs are read in pages: a server serves nobody while it writes a long reply, and closes a connection on which
more of one waits than its `client-output-buffer-limit` allows, again after each reconnect.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from orcastream.broker.connection import Connection
from orcastream.broker.resp import pack_parts
from orcastream.broker.scripts import Command
from orcastream.broker.subscription import MAX_UNREAD_BYTES

PAGE: Final = 512
"""Entries of one log in one reply."""
_AT_ONCE: Final = 2048
"""About how many entries of all logs there are in replies that arrive together."""
_LEAST: Final = 8


async def newest_entry(link: Connection, key: str | bytes) -> Any:
    """Return the id and fields of a log's last entry; None if it has none. Raises LinkLost, ResponseError."""
    found = await link.call("XREVRANGE", key, "+", "-", "COUNT", 1)
    return found[0] if found else None


def entries_each(num_logs: int, entry_bytes: int) -> int:
    """Return how many entries of each of so many logs to ask for at once, if they have up to `entry_bytes`: those for
    which a subscriber has no room would be read once more.
    """
    return min(max(_LEAST, min(PAGE, _AT_ONCE // num_logs)), MAX_UNREAD_BYTES // max(1, entry_bytes) + 1)


@cache
def xread(count: int, block_ms: int | None = None) -> bytes:
    """Return `XREAD COUNT count [BLOCK block_ms] STREAMS`, packed without the number of the command's parts."""
    block = () if block_ms is None else ("BLOCK", str(block_ms))
    return pack_parts("XREAD", "COUNT", str(count), *block, "STREAMS")


def first_page(key: str) -> Command:
    """Return the command that reads the first page."""
    return ("XRANGE", key, "-", "+", "COUNT", PAGE)


async def rest_of_log(link: Connection, key: str, first: Sequence[Any]) -> list[Any]:
    """Return the entries of a log whose first page has been read. Raises LinkLost, ResponseError."""
    entries = page = list(first)
    while len(page) == PAGE:
        page = await link.call("XRANGE", key, f"({page[-1][0].decode()}", "+", "COUNT", PAGE)
        entries = entries + page
    return entries


async def read_log(link: Connection, key: str) -> list[Any]:
    """Return the entries of a log. Raises LinkLost, ResponseError."""
    return await rest_of_log(link, key, await link.call(*first_page(key)))

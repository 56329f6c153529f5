"""What is done once a terminal event stands in the log: keep the log a while, acknowledge, delete or bury."""

from typing import Final

from redis.exceptions import ResponseError

from broker.dead_letter import bury_arguments
from broker.entry import EntryRef
from broker.link import Link
from schemas.errors import ErrorCode
from schemas.events import Terminal
from schemas.keys import GROUP, Keys

BURIED: Final = frozenset({ErrorCode.DEAD_LETTER, ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION})
"""Ends after which a copy of the request is kept among the dead letters."""


async def finish(
    link: Link, keys: Keys, *, request_id: str, ref: EntryRef | None, terminal: Terminal, retention_ms: int
) -> None:
    """Finish the clean-up of a request whose log holds `terminal`. Idempotent: whoever finds a terminal event calls it.

    Sets the log's final lifetime, then acknowledges and deletes the queue entry, or buries it where it failed for good.
    """
    raise NotImplementedError

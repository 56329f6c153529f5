"""The second read of all logs, sent with the blocking one.

A worker writes to all its logs at once, but Redis ends a blocking XREAD after the first of these writes, with the
entries of that log alone. A second XREAD in the same write is carried out after the worker's others, and both replies
arrive together.
"""

from collections.abc import Sequence
from typing import Any, Final

from orcastream.broker.followed import FollowedLog
from orcastream.broker.log_pages import entries_each, xread
from orcastream.broker.resp import pack_parts

_ENTRIES: Final = 4
"""Entries of one log in a second read: they were written at this moment, by a worker that writes one at a time."""
_LEAST_PAUSE: Final = 2
"""Pauses are even: without second reads, every other read blocks, so that after one that did not, the read that follows
the pause does."""
_MOST_PAUSE: Final = 64


class SecondReads:
    """Decides which reads are sent with a second one, by whether earlier ones brought anything.

    A second read is wasted on a read that did not block, as with a reader that is behind, and while one log alone is
    written to. After a waste they pause for 2, 4 ... 64 reads, up to the next one that pays. They begin with a pause:
    the first reads of a connection bring what has gathered.
    """

    def __init__(self) -> None:
        self._pause = _LEAST_PAUSE
        self._num_paused = _LEAST_PAUSE
        """How many of the coming reads are sent alone."""

    def is_due(self, num_logs: int) -> bool:
        """Whether to send the next read, of so many logs, with a second one."""
        return num_logs > 1 and not self._num_paused

    def came_alone(self, num_logs: int) -> None:
        """A read without a second one brought entries of so many logs."""
        if num_logs and self._num_paused:
            self._num_paused -= 1

    def came(self, num_logs: int, *, more: bool) -> None:
        """A read brought entries of so many logs, and its second one others (`more`) or only the same."""
        if num_logs == 1 and more:
            self._pause = _LEAST_PAUSE
        elif num_logs:
            self._num_paused = self._pause
            self._pause = min(2 * self._pause, _MOST_PAUSE)


def packed_read(logs: Sequence[FollowedLog], block_ms: int, *, twice: bool) -> bytes:
    """Return the blocking read of these logs from their read positions; if `twice`, with the second read after it."""
    streams = b"".join([one.packed_key for one in logs]) + pack_parts(*[one.last_id for one in logs])
    count = entries_each(len(logs), max([one.entry_bytes for one in logs if one.has_paused], default=0))
    blocking = b"*%d\r\n%b%b" % (6 + 2 * len(logs), xread(count, block_ms), streams)
    if not twice:
        return blocking
    return b"%b*%d\r\n%b%b" % (blocking, 4 + 2 * len(logs), xread(_ENTRIES), streams)


def unread(entries: Sequence[Any], asked_from: bytes, read_to: bytes) -> Sequence[Any]:
    """Return those of the entries after `asked_from` that continue a log that was meanwhile read up to `read_to`.

    None, if its read position is elsewhere: beyond these entries, or back at the start, from where the next read
    begins.
    """
    if read_to == asked_from:
        return entries
    for num_read, entry in enumerate(entries, 1):
        if entry[0] == read_to:
            return entries[num_read:]
    return ()

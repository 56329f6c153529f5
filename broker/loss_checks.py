"""Checks the followed logs that have been silent for long: Redis may have lost the request."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.errors import BrokerError, LinkLost, Unusable
from orcastream.broker.followed import START, FollowedLog
from orcastream.broker.log_pages import newest_entry
from orcastream.broker.loss import LossCheck, Verdict
from orcastream.schemas.events import EventId

log = logging.getLogger(__name__)


class LossChecks:
    """Checks each log that was not heard of for `interval_s`, one after the other, in a task beside the reading."""

    def __init__(self, loss: LossCheck, interval_s: float, read_again: Callable[[FollowedLog], None]) -> None:
        """`read_again` is called with each log whose entries will not come where it is being read."""
        self._loss = loss
        self._read_again = read_again
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def begin(self, helper: Connection, logs: Iterable[FollowedLog]) -> None:
        """Check those of `logs` that are due over `helper`, unless earlier checks are still under way."""
        if self._task is not None and not self._task.done():
            return
        now = asyncio.get_running_loop().time()
        due = [one for one in logs if now - one.checked_at >= self._interval_s and _may_be_lost(one)]
        if due:
            for followed in due:
                followed.checked_at = now
            self._task = asyncio.create_task(self._check_all(helper, due))

    async def end(self) -> None:
        """End the checks under way: their helper is about to be closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _check_all(self, helper: Connection, due: Sequence[FollowedLog]) -> None:
        try:
            for followed in due:
                await self._check_one(helper, followed)
        except LinkLost as error:
            log.warning("loss check: %s", error)

    async def _check_one(self, helper: Connection, followed: FollowedLog) -> None:
        """Check one request; if it cannot be checked now, that does not stop the other checks. Raises LinkLost."""
        request_id, read_to = followed.watch.request_id, followed.last_id
        try:
            verdict = await self._loss.check(helper, followed.watch)
            is_shorter = await _ends_before(helper, followed.key, read_to)
        except Unusable as error:
            followed.unreadable(f"its reply log cannot be used: {error}")
        except LinkLost:
            raise
        except (BrokerError, ResponseError) as error:
            log.warning("loss check of %s: %s", request_id, error)
        except Exception:
            log.exception("loss check of %s", request_id)
        else:
            if verdict is Verdict.UNKNOWN:
                followed.unreadable("nothing is known of it")
            elif not followed.state.finished and is_shorter:
                self._read_again(followed)
            elif verdict is Verdict.ENDED and (followed.state.is_full or followed.last_id != read_to):
                followed.ended_unread()
            elif verdict is Verdict.ENDED and not followed.state.finished:
                self._read_again(followed)


def _may_be_lost(followed: FollowedLog) -> bool:
    state = followed.state
    return not state.finished and not (state.is_full and followed.has_ended)


async def _ends_before(link: Connection, log_key: bytes, read_to: bytes) -> bool:
    """Whether a log has no entry as new as `read_to`, which was read: the successor of a server that was cut off, but
    continued to accept writes, has only its own entries, and they may all be older.
    """
    if read_to == START:
        return False
    newest = await newest_entry(link, log_key)
    return newest is None or EventId.parse(newest[0]) < EventId.parse(read_to)

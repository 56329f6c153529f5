"""Requests that Redis lost while this worker ran them: written back to Redis, with everything computed."""

import logging

from redis.exceptions import ResponseError

from orcastream.broker.attach import Attached
from orcastream.broker.errors import Fenced, LinkLost, Unusable, Unwritable
from orcastream.broker.queue import EntryState
from orcastream.broker.reply_log import append_many
from orcastream.schemas.events import Terminal
from orcastream.worker.running import Running
from orcastream.worker.session import Session

log = logging.getLogger("orcastream.worker")


class Restorer:
    """Holds requests whose queue entry was gone, or waited again, when this worker renewed its lease.

    They outlive connections. They no longer run here: the next worker to claim them continues from their logs.
    """

    def __init__(self, retention_ms: int, eos_token_ids: frozenset[int]) -> None:
        self._retention_ms = retention_ms
        self._eos_token_ids = eos_token_ids
        self._lost: dict[str, Running] = {}

    def add(self, running: Running) -> None:
        """Add a request whose lease this worker does not hold, and which it has let go of."""
        self._lost[running.id] = running

    async def step(self, session: Session) -> None:
        """Restore each request. Raises LinkLost; Unwritable, after trying all, if Redis refused one."""
        refused: Unwritable | None = None
        for running in list(self._lost.values()):
            try:
                await self._restore(session, running)
            except Unusable as error:
                log.warning("a lost request cannot be restored", extra=running.log_fields(why=str(error)))
            except (Fenced, ResponseError, Unwritable) as error:
                refused = error if isinstance(error, Unwritable) else refused
                continue
            except LinkLost:
                raise
            except Exception:  # the others must not suffer from it; the gateway that accepted it looks for it, too
                log.exception("a lost request cannot be restored", extra=running.log_fields())
            if self._lost.get(running.id) is running:  # it may have been claimed, and lost, again
                del self._lost[running.id]
        if refused is not None:
            raise refused

    async def _restore(self, session: Session, running: Running) -> None:
        """Write what the log lacks, then put the request into the queue again, unless a worker has it."""
        if session.now_ms >= running.request.deadline_ms + self._retention_ms:
            return  # all records of an ended request may have expired, so nothing shows that it was lost
        state = await session.queue.state(running.ref, running.id)
        if _is_held(state):
            return
        mark = await session.queue.find(running.id)
        if mark is not None and mark.ref != running.ref and await session.queue.exists(mark.ref, running.id):
            return
        if mark is not None and mark.outcome is not None and not await session.has_log(running):
            return  # it ended, and its answer has expired
        if await self._publish(session, running) and not state.exists:
            await session.queue.enqueue(
                running.request, terms=None, retention_ms=self._retention_ms, replaces=running.ref
            )
            log.warning("a request that Redis had lost waits again", extra=running.log_fields())

    async def _publish(self, session: Session, running: Running) -> bool:
        """Write the tokens that this worker has and the log lacks; False if the request has ended."""
        outcome = await session.attach(running, owned=False)
        if not isinstance(outcome, Attached):
            return False
        running.last_epoch = outcome.log.epoch
        if running.attached(outcome.log, outcome.fold, self._eos_token_ids):
            return True  # the log differs, and it is authoritative
        while (event := running.next_event()) is not None:
            (failure,) = await append_many([(outcome.log, event)])
            if failure is not None:
                raise failure
            running.logged(event)
            if isinstance(event, Terminal):
                await session.finish(running, event)
                return False
        return True


def _is_held(state: EntryState) -> bool:
    return state.exists and not state.waits

"""What the engine has made and the asyncio side has not looked at yet."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from orcastream.engine import PromptEvent, TokenEvent
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.worker.engine_loop import EngineLoop, EngineOutput, Refused
from orcastream.worker.roster import Roster
from orcastream.worker.running import Running

log = logging.getLogger("orcastream.worker")


class Outbox:
    """Carries engine output from its thread to the requests it belongs to; `iterated` wakes at every delivery."""

    def __init__(self, roster: Roster, mark: Callable[[Iterable[Running]], None], wake: asyncio.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._roster = roster
        self._mark = mark
        self._wake = wake
        self._batches: list[list[EngineOutput]] = []
        self.iterated = asyncio.Event()

    def deliver(self, output: list[EngineOutput]) -> None:
        """Hand over one iteration's output. Called in the engine's thread; never blocks."""
        try:
            self._loop.call_soon_threadsafe(self._arrived, output)
        except RuntimeError:
            return  # the loop has closed: the process is ending

    def take(self, engine_loop: EngineLoop) -> int:
        """Give everything delivered so far to its requests; return how many events that were."""
        batches, self._batches = self._batches, []
        owner_of = self._roster.by_engine_id
        marked: dict[Running, None] = {}
        for output in batches:
            for event in output:
                owner = owner_of(event.request_id)
                if owner is None:
                    continue
                running, candidates = owner
                marked[running] = None
                steady = running.steady
                if (
                    steady is not None
                    and type(event) is TokenEvent
                    and event.finish_reason is None
                    and event.token is not None
                ):
                    steady.tokens.append(event.token)
                elif type(event) is PromptEvent:
                    running.accept_prompt(event)
                elif type(event) is TokenEvent and event.error is None:
                    candidate = candidates[event.choice]
                    running.accept(candidate, event)
                    if candidate.ending is not None and event.finish_reason is None:
                        engine_loop.cancel([event.request_id])
                else:
                    _fail(running, event)
        self._mark(marked)
        return sum(map(len, batches))

    def _arrived(self, output: list[EngineOutput]) -> None:
        self._batches.append(output)
        self.iterated.set()
        self._wake.set()


def _fail(running: Running, event: EngineOutput) -> None:
    """The engine refused the request, or failed on it."""
    if isinstance(event, Refused):
        error = _in_the_producers_words(event.error)
        running.fail(error.code, str(error), error.field)
    elif isinstance(event, TokenEvent) and event.error is not None and not running.answered:
        log.error("the engine failed on a request", extra=running.log_fields())
        running.fail(ErrorCode.ENGINE_ERROR, event.error)


def _in_the_producers_words(error: InvalidRequest) -> InvalidRequest:
    """The engine's refusal under the names of the contract: the width of a beam search is `best_of`."""
    if error.field != "beam_width":
        return error
    return InvalidRequest("best_of", error.value, error.allowed, error.code)

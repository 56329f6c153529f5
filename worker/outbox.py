"""Engine output that the asyncio side has not processed yet."""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple, cast

from orcastream.broker.token_stream import TokenStream
from orcastream.engine import PromptEvent, TokenEvent
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.worker.choice import Choice
from orcastream.worker.engine_loop import EngineLoop, EngineOutput, Refused
from orcastream.worker.publisher import Publisher
from orcastream.worker.roster import Roster
from orcastream.worker.running import Running

log = logging.getLogger("orcastream.worker")


class _Delivery(NamedTuple):
    """One iteration's output: tokens for streams, each with its stream, and everything else."""

    streams: list[TokenStream]
    tokens: list[int]
    others: list[EngineOutput]


class Outbox:
    """Carries engine output from its thread to its requests; `iterated` wakes at every delivery.

    Tokens of streams go to their writer at once, if no earlier output still waits.
    """

    def __init__(self, roster: Roster, publisher: Publisher) -> None:
        self._loop = asyncio.get_running_loop()
        self._roster = roster
        self._publisher = publisher
        self._deliveries: list[_Delivery] = []
        self._last_ids: list[str] = []
        """Engine ids of the last iteration, if it yielded only tokens of streams."""
        self._last_streams: list[TokenStream] = []
        self.iterated = asyncio.Event()

    def deliver(self, output: list[EngineOutput]) -> None:
        """Hand over one iteration's output. Called in the engine's thread; never blocks."""
        ids = [event.request_id for event in output]
        delivery = self._as_before(ids, output) or self._sorted(ids, output)
        try:
            self._loop.call_soon_threadsafe(self._arrived, delivery)
        except RuntimeError:
            return  # the loop has closed: the process is ending

    def _as_before(self, ids: list[str], output: list[EngineOutput]) -> _Delivery | None:
        """Skip the lookup if the same requests continue as in the last iteration, all of them as streams."""
        if not ids or ids != self._last_ids:
            return None
        tokens = [event.token for event in output if type(event) is TokenEvent and event.finish_reason is None]
        if len(tokens) < len(output) or None in tokens:
            return None
        return _Delivery(self._last_streams, cast(list[int], tokens), [])

    def _sorted(self, ids: list[str], output: list[EngineOutput]) -> _Delivery:
        owner_of = self._roster.by_engine_id.get
        delivery = _Delivery([], [], [])
        found: dict[str, TokenStream | None] = {}
        for engine_id, event in zip(ids, output, strict=True):
            token = _token_of(event)
            if engine_id not in found:
                owner = owner_of(engine_id)
                found[engine_id] = None if owner is None else owner[0].stream
            stream = found[engine_id]
            if stream is None or token is None:
                found[engine_id] = None  # later events must not overtake it
                delivery.others.append(event)
            else:
                delivery.streams.append(stream)
                delivery.tokens.append(token)
        self._last_ids = [] if delivery.others else ids
        self._last_streams = delivery.streams
        return delivery

    def take(self, engine_loop: EngineLoop) -> int:
        """Give all deliveries so far to their requests; return the number of events without the tokens taken by the
        streams' writer.
        """
        deliveries, self._deliveries = self._deliveries, []
        owner_of = self._roster.by_engine_id.get
        marked: dict[Running, None] = {}
        num_events = 0
        for streams, tokens, others in deliveries:
            for stream, token in self._publisher.tokens.add(streams, tokens):
                num_events += self._extend(stream, token, marked)
            for event in others:
                owner = owner_of(event.request_id)
                running = None if owner is None else owner[0]
                if running is not None and running.stream is not None and (late := _token_of(event)) is not None:
                    num_events += self._extend(running.stream, late, marked)  # it arrived before there was a stream
                    continue
                num_events += 1
                if owner is not None:
                    marked[owner[0]] = None
                    _accept(*owner, event, engine_loop)
        self._publisher.mark(marked)
        return num_events

    def _extend(self, stream: TokenStream, token: int, marked: dict[Running, None]) -> bool:
        """Add a token to what `stream` publishes, or published; return whether it is left to the owner, then marked."""
        running: Running = stream.owner
        if running.closed:  # earlier tokens, from before there was a stream, may have been dropped
            return True
        now = running.stream
        if now is not None and now.tokens is stream.tokens and not self._publisher.tokens.add([now], [token]):
            return False
        stream.tokens.append(token)
        marked[running] = None
        return True

    def _arrived(self, delivery: _Delivery) -> None:
        publisher = self._publisher
        if delivery.others or self._deliveries or not delivery.streams:
            self._deliveries.append(delivery)
            publisher.wake.set()
        else:
            refused = publisher.tokens.add(delivery.streams, delivery.tokens)
            publisher.tokens.send()
            if refused:
                self._last_ids = []  # to be looked up again
                self._deliveries.append(_Delivery([one for one, _ in refused], [token for _, token in refused], []))
                publisher.wake.set()
        self.iterated.set()


def _accept(running: Running, candidates: Sequence[Choice], event: EngineOutput, engine_loop: EngineLoop) -> None:
    """Take an event that is more than a token of a stream."""
    running.close_stream()
    if type(event) is PromptEvent:
        running.accept_prompt(event)
    elif type(event) is TokenEvent and event.error is None:
        candidate = candidates[event.choice]
        running.accept(candidate, event)
        if candidate.ending is not None and event.finish_reason is None:
            engine_loop.cancel([event.request_id])
    else:
        _fail(running, event)


def _token_of(event: EngineOutput) -> int | None:
    """Return the token of an event that carries nothing else."""
    return event.token if type(event) is TokenEvent and event.finish_reason is None else None


def _fail(running: Running, event: EngineOutput) -> None:
    """Fail a request that the engine refused, or failed on."""
    if isinstance(event, Refused):
        error = _in_the_producers_words(event.error)
        running.fail(error.code, str(error), error.field)
    elif isinstance(event, TokenEvent) and event.error is not None and not running.answered:
        log.error("the engine failed on a request", extra=running.log_fields())
        running.fail(ErrorCode.ENGINE_ERROR, event.error)


def _in_the_producers_words(error: InvalidRequest) -> InvalidRequest:
    """Return the engine's refusal in the contract's names: the width of a beam search is `best_of`."""
    if error.field != "beam_width":
        return error
    return InvalidRequest("best_of", error.value, error.allowed, error.code)

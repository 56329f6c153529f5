"""What the engine has made and the asyncio side has not looked at yet."""

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
    """One iteration's output: the tokens that streams publish, each with its stream, and all else."""

    streams: list[TokenStream]
    tokens: list[int]
    others: list[EngineOutput]


class Outbox:
    """Carries engine output from its thread to the requests it belongs to; `iterated` wakes at every delivery.

    Tokens of streams are handed to their writer at once, where nothing that came before is still to be taken.
    """

    def __init__(self, roster: Roster, publisher: Publisher) -> None:
        self._loop = asyncio.get_running_loop()
        self._roster = roster
        self._publisher = publisher
        self._deliveries: list[_Delivery] = []
        self._last_ids: list[str] = []
        """Of the last iteration that brought nothing but tokens of streams."""
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
        """Where the same requests go on that went on last, and all of them as streams, nothing has to be looked up."""
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
                found[engine_id] = None  # what follows is not to overtake it
                delivery.others.append(event)
            else:
                delivery.streams.append(stream)
                delivery.tokens.append(token)
        self._last_ids = [] if delivery.others else ids
        self._last_streams = delivery.streams
        return delivery

    def take(self, engine_loop: EngineLoop) -> int:
        """Give everything delivered so far to its requests; return how many events that were but for those tokens that
        the writer of the streams has taken.
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
                    num_events += self._extend(running.stream, late, marked)  # it came before there was a stream
                    continue
                num_events += 1
                if owner is not None:
                    marked[owner[0]] = None
                    _accept(*owner, event, engine_loop)
        self._publisher.mark(marked)
        return num_events

    def _extend(self, stream: TokenStream, token: int, marked: dict[Running, None]) -> bool:
        """Add a token to what `stream` publishes, or did; whether it is left to the owner, who is marked."""
        running: Running = stream.owner
        if running.closed:  # tokens before this one, which came before there was a stream, may have been left out
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
    """Take what is more than a token of a stream."""
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
    """The token, if that is all that it brings."""
    return event.token if type(event) is TokenEvent and event.finish_reason is None else None


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

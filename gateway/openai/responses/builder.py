"""A response as its reply arrives: its numbered events, and its content so far."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from orcastream.broker.subscription import Update
from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.logprobs import TokenLogprob
from orcastream.gateway.openai.parts import Arguments, Call, Part
from orcastream.gateway.openai.responses.output import CallItem, MessageItem, OutputItem, ReasoningItem, Told
from orcastream.gateway.openai.responses.shape import ResponseShape, Status
from orcastream.gateway.replies.reply_text import ReplyText
from orcastream.schemas.events import Run, Terminal
from orcastream.text.answer_parser import Reasoning

_ENDS = {
    Status.COMPLETED: "response.completed",
    Status.INCOMPLETE: "response.incomplete",
    Status.FAILED: "response.failed",
    Status.CANCELLED: "response.failed",
}
"""OpenAI has no event for a canceled response: its status tells."""


class NumberedEvent(NamedTuple):
    """An event of a stream. `event_id`: see Told."""

    number: int
    type: str
    body: Json
    event_id: str | None


class ResponseBuilder:
    """Builds a response from its reply, from the start.

    Each token that adds text is an event, however the log was written or read; so the events and their numbers are a
    function of the reply alone, the same for every reader.
    """

    def __init__(self, shape: ResponseShape, text: ReplyText) -> None:
        self.shape = shape
        self.status = Status.QUEUED
        self.text = text
        """The reply's text so far."""
        self._items: list[OutputItem] = []
        self._logprobs: list[TokenLogprob] = []
        """Log probabilities of tokens that have not added text yet."""
        self._terminal: Terminal | None = None
        self._next_number = 0

    @property
    def num_events(self) -> int:
        """Number of events so far."""
        return self._next_number

    @property
    def has_ended(self) -> bool:
        """Whether there will be no more events."""
        return self._terminal is not None

    def response(self) -> Json:
        """Return the response with its output so far."""
        usage = None if self._terminal is None else self.text.usage(self._terminal)
        return self.shape.written(self.status, self.output(), self._terminal, usage)

    def output(self) -> list[Json]:
        """Return the output so far."""
        return [item.json() for item in self._items]

    def begin(self) -> NumberedEvent:
        """Return the first event, which needs nothing of the reply."""
        return self._numbered(Told("response.created", {"response": self.shape.written(self.shape.first_status)}))

    def take(self, update: Update) -> Iterator[NumberedEvent]:
        """Yield the events of an update, including those of a failed request.

        Raises ReplyConflict as `ReplyText.take` does.
        """
        for told in self._told(update):
            yield self._numbered(told)

    def _told(self, update: Update) -> Iterator[Told]:
        if update.started is not None and self.status is Status.QUEUED:
            self.status = Status.IN_PROGRESS
            yield Told("response.in_progress", {"response": self.response()})
        for piece in self.text.take(_by_token(update)):
            self._logprobs += piece.logprobs
            if piece.parts:
                yield from self._add(piece.parts, piece.event_id)
        if update.terminal is not None:
            yield from self._end(update.terminal)

    def _add(self, parts: Sequence[Part], event_id: str | None) -> Iterator[Told]:
        """Add to the output; the last event carries the event id."""
        told = [one for part in parts for one in self._add_part(part)]
        self._logprobs = []
        yield from told[:-1]
        yield told[-1]._replace(event_id=event_id)

    def _add_part(self, part: Part) -> Iterator[Told]:
        """Add to the last item, or begin the next one."""
        item = self._items[-1] if self._items else None
        if isinstance(part, Call):
            yield from self._opened(CallItem(self._next_id("fc"), len(self._items), part))
        elif isinstance(part, Arguments):
            yield from _added_to(item, part)
        elif isinstance(part, Reasoning):
            if not isinstance(item, ReasoningItem):
                item = ReasoningItem(self._next_id("rs"), len(self._items))
                yield from self._opened(item)
            yield item.add(part.text)
        else:
            if not isinstance(item, MessageItem):
                item = MessageItem(self._next_id("msg"), len(self._items))
                yield from self._opened(item)
            logprobs, self._logprobs = self._logprobs, []
            yield item.add(part, logprobs)

    def _next_id(self, kind: str) -> str:
        return self.shape.item_id(kind, len(self._items))

    def _opened(self, item: OutputItem) -> Iterator[Told]:
        """Begin the next item, ending the previous one."""
        yield from self._last_closed(Status.COMPLETED)
        self._items.append(item)
        yield from item.opened()

    def _last_closed(self, status: Status) -> Iterator[Told]:
        """End the last item, if it is open. A complete call is already closed, so an open one was cut."""
        if self._items and self._items[-1].is_open:
            is_cut = isinstance(self._items[-1], CallItem)
            yield from self._items[-1].closed(Status.INCOMPLETE if is_cut else status)

    def _end(self, terminal: Terminal) -> Iterator[Told]:
        self._terminal, self.status = terminal, Status.of(terminal)
        if terminal.error is None:
            for last in self.text.end(terminal):
                if last.parts:
                    yield from self._add(last.parts, last.event_id)
            if not self._items:
                yield from self._opened(MessageItem(self._next_id("msg"), 0))
            yield from self._last_logprobs(self._items[-1])
            yield from self._last_closed(self.status)
        elif self._items:
            self._items[-1].break_off()
        yield Told(_ENDS[self.status], {"response": self.response()})

    def _last_logprobs(self, item: OutputItem) -> Iterator[Told]:
        """Add log probabilities of tokens after the text that added none, such as the end token."""
        if self._logprobs and isinstance(item, MessageItem):
            yield item.add("", self._logprobs)

    def _numbered(self, told: Told) -> NumberedEvent:
        number = self._next_number
        self._next_number += 1
        return NumberedEvent(number, told.type, told.body, told.event_id)


def _added_to(item: OutputItem | None, arguments: Arguments) -> Iterator[Told]:
    """Add arguments to the call, which ends with the last of them."""
    if isinstance(item, CallItem):
        yield item.add(arguments.text)
        if arguments.is_last:
            yield from item.closed(Status.COMPLETED)


def _by_token(update: Update) -> Update:
    """Return the update with a separate run for each token."""
    if all(len(run.tokens) == 1 for run in update.runs):
        return update
    return update._replace(runs=tuple(single for run in update.runs for single in _singles(run)))


def _singles(run: Run) -> Iterator[Run]:
    for offset, token in enumerate(run.tokens):
        logprobs = None if run.logprobs is None else (run.logprobs[offset],)
        yield Run(run.choice, run.position + offset, (token,), logprobs)

"""Writes a response's events as server-sent events."""

from collections.abc import Iterator, Sequence

from orcastream.broker.subscription import Update
from orcastream.gateway.errors import ApiError
from orcastream.gateway.openai.answer_usage import AnswerUsage
from orcastream.gateway.openai.responses.behind import Behind
from orcastream.gateway.openai.responses.builder import NumberedEvent, ResponseBuilder
from orcastream.gateway.replies.chunks import EVENT_ID
from orcastream.gateway.replies.event_writer import check
from orcastream.gateway.replies.reply_writer import ReplyWriter
from orcastream.gateway.replies.sse import event


class ResponseWriter(ReplyWriter):
    """Writes the events after `behind`. `id_lines`: events with an event id also have an `id:` line."""

    def __init__(self, builder: ResponseBuilder, behind: Behind | None = None, *, id_lines: bool = False) -> None:
        super().__init__(builder.text)
        self._builder = builder
        self._behind = behind or Behind()
        self._id_lines = id_lines

    def begin(self) -> list[bytes]:
        """See ReplyWriter."""
        return list(self._written([self._builder.begin()]))

    def write(self, update: Update) -> Iterator[bytes]:
        """See ReplyWriter."""
        yield from self._written(self._builder.take(update))
        if update.terminal is not None:
            self._behind.check_reached()
            check(update.terminal)

    def end(self, usages: Sequence[AnswerUsage]) -> list[bytes]:
        """Return nothing: the response's own last event is the end."""
        return []

    def failure(self, error: ApiError) -> bytes:
        """Return nothing if the response's last event already contains the error.

        An error of the reading alone has the number of the event before it, so resuming after it skips nothing.
        """
        if self._builder.has_ended and error.code != "reply_conflict":
            return b""
        number = self._builder.num_events - 1
        body = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return _written("error", {**body, "sequence_number": number})

    def _written(self, events: "Iterator[NumberedEvent] | Sequence[NumberedEvent]") -> Iterator[bytes]:
        for one in events:
            if self._behind.is_new(one):
                yield self._of(one)

    def _of(self, one: NumberedEvent) -> bytes:
        body = {"type": one.type, "sequence_number": one.number, **one.body}
        if one.event_id is None:
            return _written(one.type, body)
        made = _written(one.type, {**body, EVENT_ID: one.event_id})
        return b"%bid: %b\n\n" % (made[:-1], one.event_id.encode()) if self._id_lines else made


def _written(kind: str, body: dict[str, object]) -> bytes:
    return b"event: %b\n%b" % (kind.encode(), event(body))

"""A response's events as server-sent ones."""

from collections.abc import Iterator, Sequence

from orcastream.broker.subscription import Update
from orcastream.gateway.errors import ApiError
from orcastream.gateway.openai.responses.behind import Behind
from orcastream.gateway.openai.responses.builder import NumberedEvent, ResponseBuilder
from orcastream.gateway.replies.chunks import EVENT_ID
from orcastream.gateway.replies.event_writer import check
from orcastream.gateway.replies.reply_writer import ReplyWriter
from orcastream.gateway.replies.sse import comment, event
from orcastream.schemas.events import Usage


class ResponseWriter(ReplyWriter):
    """Writes what comes after `behind`. `id_lines`: events that tell their places do so in an `id:`, too."""

    def __init__(self, builder: ResponseBuilder, behind: Behind | None = None, *, id_lines: bool = False) -> None:
        self._builder = builder
        self._behind = behind or Behind()
        self._id_lines = id_lines

    def begin(self) -> list[bytes]:
        """See ReplyWriter."""
        return list(self._written([self._builder.begin()]))

    def write(self, update: Update) -> Iterator[bytes]:
        """See ReplyWriter."""
        if update.started is not None:
            yield comment(f"worker {update.started.worker} epoch {update.epoch}")
        yield from self._written(self._builder.take(update))
        if update.terminal is not None:
            self._behind.check_reached()
            check(update.terminal)

    def end(self, usages: Sequence[Usage]) -> list[bytes]:
        """Nothing: the response's own last event is the end."""
        return []

    def failure(self, error: ApiError) -> bytes:
        """Nothing for how the response ended, which its last event told.

        What ends the reading alone bears the number of the event before it: to read on behind that leaves out nothing.
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

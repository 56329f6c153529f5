"""Which events of a response a resuming client already has."""

from orcastream.broker.errors import ReplyConflict
from orcastream.gateway.openai.responses.builder import NumberedEvent
from orcastream.gateway.replies.delivered import Delivered


class Behind:
    """Passes the events after the last one that the client has.

    That event is given by its number, or by its event id, which also says what was delivered.
    """

    def __init__(self, *, number: int = -1, delivered: Delivered | None = None) -> None:
        self._number = number
        self._delivered = delivered
        self._reached = delivered is None and number < 0

    def is_new(self, event: NumberedEvent) -> bool:
        """Whether the client lacks the event. Raises ReplyConflict if something else was delivered to it."""
        if self._reached:
            return True
        if self._delivered is None:
            self._reached = event.number >= self._number
        elif event.event_id is not None:
            self._reached = event.event_id == str(self._delivered)
            if not self._reached and _is_beyond(event.event_id, self._delivered):
                raise ReplyConflict(f"the content delivered to the client ({self._delivered}) does not match the log")
        return False

    def check_reached(self) -> None:
        """Check at the end of the response. Raises ReplyConflict if the client has more than exists."""
        if not self._reached:
            raise ReplyConflict("the response ended before the position that the client has")


def _is_beyond(event_id: str, delivered: Delivered) -> bool:
    here = Delivered.parse(event_id)
    return (here.tokens.counts, here.num_ends) >= (delivered.tokens.counts, delivered.num_ends)

"""Which events of a response a client has, that reads on behind them."""

from orcastream.broker.errors import ReplyConflict
from orcastream.gateway.openai.responses.builder import NumberedEvent
from orcastream.gateway.replies.delivered import Delivered


class Behind:
    """Lets pass what comes after the last event that the client has.

    That is named by its number, or by its event id, which tells in addition what was delivered.
    """

    def __init__(self, *, number: int = -1, delivered: Delivered | None = None) -> None:
        self._number = number
        self._delivered = delivered
        self._reached = delivered is None and number < 0

    def is_new(self, event: NumberedEvent) -> bool:
        """Whether the client lacks the event. ReplyConflict where it was delivered something else."""
        if self._reached:
            return True
        if self._delivered is None:
            self._reached = event.number >= self._number
        elif event.event_id is not None:
            self._reached = event.event_id == str(self._delivered)
            if not self._reached and _is_beyond(event.event_id, self._delivered):
                raise ReplyConflict(f"what the client was given ({self._delivered}) is not what the log says")
        return False

    def check_reached(self) -> None:
        """The response has ended: ReplyConflict where the client has more than there is."""
        if not self._reached:
            raise ReplyConflict("the response ended before what the client was given")


def _is_beyond(event_id: str, delivered: Delivered) -> bool:
    here = Delivered.parse(event_id)
    return (here.tokens.counts, here.num_ends) >= (delivered.tokens.counts, delivered.num_ends)

"""How a reply becomes the events of a stream: each form of answer has a writer of its own."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from orcastream.broker.subscription import Update
from orcastream.gateway.errors import ApiError
from orcastream.schemas.events import Usage


class ReplyWriter(ABC):
    """Writes one reply. Where a stream carries several, the first one's writer writes what is about all of them."""

    def begin(self) -> list[bytes]:
        """The events that are sent at once, before anything is known of the reply."""
        return []

    @abstractmethod
    def write(self, update: Update) -> Iterator[bytes]:
        """The events of one update. ApiError after the events of a request that failed."""

    @abstractmethod
    def end(self, usages: Sequence[Usage]) -> list[bytes]:
        """The events after the last reply, of which these are the token counts."""

    @abstractmethod
    def failure(self, error: ApiError) -> bytes:
        """The last event of a stream that ends with `error`, whether that ended the reply or only its reading."""

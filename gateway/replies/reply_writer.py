"""Writes a reply as the events of a stream; each form of answer has its own writer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from orcastream.broker.subscription import Update
from orcastream.gateway.errors import ApiError
from orcastream.gateway.openai.answer_usage import AnswerUsage
from orcastream.gateway.replies.reply_text import ReplyText


class ReplyWriter(ABC):
    """Writes one reply. In a stream of several, the first one's writer writes the events that concern all of them."""

    def __init__(self, text: ReplyText) -> None:
        self.text = text
        """The reply's text so far."""

    def begin(self) -> list[bytes]:
        """Return the events to send at once, before anything of the reply is known."""
        return []

    @abstractmethod
    def write(self, update: Update) -> Iterator[bytes]:
        """Yield the events of one update. Raises ApiError after the events if the request failed."""

    @abstractmethod
    def end(self, usages: Sequence[AnswerUsage]) -> list[bytes]:
        """Return the events after the last reply; `usages` are the token counts of all."""

    @abstractmethod
    def failure(self, error: ApiError) -> bytes:
        """Return the last event of a stream that ends with `error`, whether it ended the reply or only reading it."""

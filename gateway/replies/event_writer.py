"""One reply's updates as chunks, the events of completions and chats."""

from collections.abc import Generator, Sequence

from orcastream.broker.subscription import Update
from orcastream.gateway.errors import ApiError, ended
from orcastream.gateway.openai.answer_shape import AnswerShape
from orcastream.gateway.openai.answer_usage import AnswerUsage
from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.replies.chunks import Chunks
from orcastream.gateway.replies.reply_text import Piece, ReplyText
from orcastream.gateway.replies.reply_writer import ReplyWriter
from orcastream.gateway.replies.sse import DONE, event
from orcastream.schemas.events import Terminal


class EventWriter(ReplyWriter):
    """Writes what an update adds to a stream of chunks.

    `resumed`: the client already has the beginning. `id_lines`: see Chunks. `resumable`: events carry their position.
    """

    def __init__(
        self,
        shape: AnswerShape,
        text: ReplyText,
        *,
        resumed: bool = False,
        id_lines: bool = False,
        resumable: bool = True,
    ) -> None:
        super().__init__(text)
        self._shape = shape
        self._chunks = Chunks(shape, id_lines=id_lines)
        self._unopened = not resumed
        self._resumable = resumable
        self._is_plain = resumable and not shape.usage.in_every_chunk
        self._prompt_tokens = self._num_choices = 0
        self._served_by: Json = {}
        """What the next chunk says of the worker that writes from there on."""

    def write(self, update: Update) -> Generator[bytes]:
        """See ReplyWriter."""
        started, terminal = update.started, update.terminal
        if started is not None:
            self._prompt_tokens = started.prompt_tokens
            self._served_by = {"served_by": {"worker": started.worker, "epoch": update.epoch}}
            self._num_choices = started.n
        pieces = self.text.take(update)
        if self._unopened and self.text.prompt.is_complete:
            self._unopened = False
            yield from self._openings()
        for piece in pieces:
            yield self._piece(piece, update)
        if terminal is not None:
            check(terminal)
            for last in self.text.end(terminal):
                chunk = self._shape.delta(last.choice, last.parts, last.finish_reason, self._usage(update))
                yield self._whole(chunk, last.event_id)

    def end(self, usages: Sequence[AnswerUsage]) -> list[bytes]:
        """Return the token counts, if requested, and the end."""
        if not self._shape.usage.at_end:
            return [DONE]
        return [event(self._shape.usage_chunk(AnswerUsage.total(usages))), DONE]

    def failure(self, error: ApiError) -> bytes:
        """See ReplyWriter."""
        return event(error.body())

    def _piece(self, piece: Piece, update: Update) -> bytes:
        parts = piece.parts
        is_plain = self._is_plain and not self._served_by and not piece.logprobs
        if is_plain and len(parts) == 1 and isinstance(parts[0], str):
            return self._chunks.delta(piece.choice, parts[0], piece.event_id)
        chunk = self._shape.delta(piece.choice, parts, None, self._usage(update), piece.logprobs)
        return self._whole(chunk, piece.event_id)

    def _whole(self, chunk: Json, event_id: str | None = None) -> bytes:
        served_by, self._served_by = self._served_by, {}
        return self._chunks.whole({**chunk, **served_by}, event_id if self._resumable else None)

    def _usage(self, update: Update) -> AnswerUsage | None:
        """Return the token counts up to an update, if every chunk must carry them."""
        if not self._shape.usage.in_every_chunk:
            return None
        reasoning_tokens = self.text.num_reasoning_tokens
        return AnswerUsage(self._prompt_tokens, sum(update.counts), reasoning_tokens=reasoning_tokens)

    def _openings(self) -> Generator[bytes]:
        """Yield the chunks before the first text of each choice, once everything in them is known."""
        prompt = self.text.prompt
        for choice in range(self._num_choices):
            chunk = self._shape.opened(choice, prompt.echo, prompt.told)
            if chunk is not None:
                yield self._whole(chunk)


def check(terminal: Terminal) -> None:
    """Raise ApiError if the request ended with an error."""
    if terminal.error is not None:
        raise ended(terminal.error, terminal.message, terminal.field_name)

"""A stream's events as bytes: the parts of a chunk that never change are encoded once."""

import json
from typing import Any, Final

from orcastream.gateway.openai.answer_shape import AnswerShape
from orcastream.gateway.openai.encoded_json import encoded_text
from orcastream.gateway.replies.sse import event

EVENT_ID: Final = "event_id"
"""The field of a chunk that a client sends back as Last-Event-ID to resume after it.

It is a field, because load tools treat anything else in an event's block as part of its JSON.
"""
_TEXT, _ID = "text", "@"
_MARK = json.dumps(_TEXT).encode()


class Chunks:
    """Writes the chunks of one stream. `id_lines`: each gets an `id:` line, as browsers' EventSource needs."""

    def __init__(self, shape: AnswerShape, *, id_lines: bool = False) -> None:
        self._shape = shape
        self._id_lines = id_lines
        self._frames: dict[int, tuple[bytes, bytes, bytes]] = {}

    def delta(self, choice: int, text: str, event_id: str) -> bytes:
        """Return the event that adds non-empty `text` to a running choice: byte for byte as `whole` would."""
        frame = self._frames.get(choice)
        if frame is None:
            frame = self._frames[choice] = self._frame(choice)
        place = event_id.encode()
        end = b"\nid: %b\n\n" % place if self._id_lines else b"\n\n"
        return b"".join((frame[0], encoded_text(text), frame[1], place, frame[2], end))

    def whole(self, chunk: dict[str, Any], event_id: str | None = None) -> bytes:
        """Return the event of a chunk; `event_id` if a client can resume after it."""
        if event_id is None:
            return event(chunk)
        made = event({**chunk, EVENT_ID: event_id})
        return b"%bid: %b\n\n" % (made[:-1], event_id.encode()) if self._id_lines else made

    def _frame(self, choice: int) -> tuple[bytes, bytes, bytes]:
        """Return the bytes before the text, between the text and the event id, and at the end.

        Searches from the end, because ids and names before the marks may look like them.
        """
        made = event({**self._shape.delta(choice, (_TEXT,)), EVENT_ID: _ID}).rstrip(b"\n")
        head, _, rest = made.rpartition(b":" + _MARK)
        middle, _, end = rest.rpartition(_ID.encode())
        return head + b":", middle, end

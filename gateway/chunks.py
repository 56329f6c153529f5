"""A stream's events as bytes: of a chunk, all but id and text is the same each time and is encoded once."""

import json

from gateway.openai_shape import Shape
from gateway.sse import encoded, event

_TEXT = "text"
_MARK = json.dumps(_TEXT).encode()


class Chunks:
    """Writes the chunks of one stream as `sse.event` writes `Shape.delta`, byte for byte."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def delta(self, choice: int, text: str, event_id: str) -> bytes:
        """The event that adds `text`, which is not empty, to a choice that goes on."""
        frame = self._frames.get(choice)
        if frame is None:
            frame = self._frames[choice] = self._frame(choice)
        return b"".join((b"id: ", event_id.encode(), b"\n", frame[0], encoded(text), frame[1]))

    def _frame(self, choice: int) -> tuple[bytes, bytes]:
        """What stands before the text and behind it. Its mark comes behind ids and names, which may look like it."""
        whole = event(self._shape.delta(choice, _TEXT))
        head, _, tail = whole.rpartition(b":" + _MARK)
        return head + b":", tail

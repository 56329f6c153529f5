"""The items of a response's output: their content, and their events."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from orcastream.gateway.openai.endpoint import Json, Logprobs
from orcastream.gateway.openai.growing_list import GrowingList
from orcastream.gateway.openai.logprobs import chat_token
from orcastream.gateway.openai.parts import Call
from orcastream.gateway.openai.responses.shape import Status


class Told(NamedTuple):
    """An event without its number. `event_id`, if set, is the position after it."""

    type: str
    body: Json
    event_id: str | None = None


class OutputItem(ABC):
    """One item while it is made. `index` is its position in the output."""

    def __init__(self, item_id: str, index: int) -> None:
        self.id = item_id
        self.index = index
        self.status = Status.IN_PROGRESS

    @property
    def is_open(self) -> bool:
        """Whether more of it may follow."""
        return self.status is Status.IN_PROGRESS

    def break_off(self) -> None:
        """Mark it as incomplete without an event, because the response has failed."""
        if self.is_open:
            self.status = Status.INCOMPLETE

    @abstractmethod
    def json(self) -> Json:
        """Return the item so far."""

    @abstractmethod
    def opened(self) -> Iterator[Told]:
        """Yield the events of its beginning."""

    @abstractmethod
    def closed(self, status: Status) -> Iterator[Told]:
        """Yield the events of its end: `completed` or `incomplete`."""

    def _added(self) -> Told:
        return Told("response.output_item.added", {"output_index": self.index, "item": self.json()})

    def _done(self) -> Told:
        return Told("response.output_item.done", {"output_index": self.index, "item": self.json()})


class _TextItem(OutputItem):
    """Text in one part. `_EVENT`: the prefix of its text events."""

    _EVENT: ClassVar[str]

    def __init__(self, item_id: str, index: int) -> None:
        super().__init__(item_id, index)
        self._texts: list[str] = []
        self._is_open = False

    def opened(self) -> Iterator[Told]:
        """See OutputItem."""
        yield self._added()
        self._is_open = True
        yield Told("response.content_part.added", {**self._place(), "part": self._part()})

    def closed(self, status: Status) -> Iterator[Told]:
        """See OutputItem."""
        self.status = status
        part = self._part()
        body = {name: each for name, each in part.items() if name in ("text", "logprobs")}
        yield Told(f"{self._EVENT}.done", {**self._place(), **body})
        yield Told("response.content_part.done", {**self._place(), "part": part})
        yield self._done()

    @abstractmethod
    def _part(self) -> Json:
        """Return its one part."""

    def _content(self) -> list[Json]:
        return [self._part()] if self._is_open else []

    def _place(self) -> Json:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}

    def _delta(self, text: str, more: Json) -> Told:
        self._texts.append(text)
        return Told(f"{self._EVENT}.delta", {**self._place(), "delta": text, **more})


class MessageItem(_TextItem):
    """The answer's content."""

    _EVENT = "response.output_text"

    def __init__(self, item_id: str, index: int) -> None:
        super().__init__(item_id, index)
        self._logprobs = GrowingList()

    def json(self) -> Json:
        """See OutputItem."""
        head = {"id": self.id, "type": "message", "status": str(self.status), "role": "assistant"}
        return {**head, "content": self._content()}

    def add(self, text: str, logprobs: Logprobs = ()) -> Told:
        """Add text, and the log probabilities of its tokens if they were requested."""
        told = [{**chat_token(one.chosen), "top_logprobs": list(map(chat_token, one.likeliest))} for one in logprobs]
        return self._delta(text, {"logprobs": self._logprobs.add(told)})

    def _part(self) -> Json:
        text = "".join(self._texts)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs.so_far()}


class ReasoningItem(_TextItem):
    """The model's reasoning."""

    _EVENT = "response.reasoning_text"

    def json(self) -> Json:
        """See OutputItem."""
        head = {"id": self.id, "type": "reasoning", "status": str(self.status), "summary": []}
        return {**head, "content": self._content()}

    def add(self, text: str) -> Told:
        """Add text."""
        return self._delta(text, {})

    def _part(self) -> Json:
        return {"type": "reasoning_text", "text": "".join(self._texts)}


class CallItem(OutputItem):
    """A function call."""

    def __init__(self, item_id: str, index: int, call: Call) -> None:
        super().__init__(item_id, index)
        self._call = call
        self._arguments: list[str] = []

    def json(self) -> Json:
        """See OutputItem."""
        named = {"call_id": self._call.id, "name": self._call.name, "arguments": "".join(self._arguments)}
        return {"id": self.id, "type": "function_call", "status": str(self.status), **named}

    def opened(self) -> Iterator[Told]:
        """See OutputItem."""
        yield self._added()

    def add(self, arguments: str) -> Told:
        """Add to the arguments."""
        self._arguments.append(arguments)
        body = {"item_id": self.id, "output_index": self.index, "delta": arguments}
        return Told("response.function_call_arguments.delta", body)

    def closed(self, status: Status) -> Iterator[Told]:
        """See OutputItem."""
        self.status = status
        body = {"item_id": self.id, "output_index": self.index, "name": self._call.name}
        yield Told("response.function_call_arguments.done", {**body, "arguments": "".join(self._arguments)})
        yield self._done()

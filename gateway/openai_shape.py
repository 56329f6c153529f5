"""Answers as OpenAI writes them: whole, or in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.kind import Kind
from schemas.events import Usage

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """How one request's answer is written. `created` is in seconds of Unix time, `id` the request's."""

    id: str
    model: str
    created: int
    include_usage: bool = False

    @property
    def kind(self) -> Kind:
        """Completion or chat."""
        return Kind.of(self.id)

    def opening(self, choice: int) -> Json | None:
        """The chunk before the first text of a choice: a chat's says who speaks."""
        if self.kind is not Kind.CHAT:
            return None
        return self._chunk([self._choice(choice, {"role": "assistant", "content": ""}, None)])

    def delta(self, choice: int, text: str, finish_reason: str | None = None) -> Json:
        """The chunk that adds `text` to a choice, and says why it ended if it did."""
        if self.kind is Kind.CHAT:
            return self._chunk([self._choice(choice, {"content": text} if text else {}, finish_reason)])
        return self._chunk([{"index": choice, "text": text, "logprobs": None, "finish_reason": finish_reason}])

    def usage_chunk(self, usage: Usage) -> Json:
        """The last chunk, when token counts were asked for."""
        return {**self._head(self.kind.chunk_object), "choices": [], "usage": usage_json(usage)}

    def whole(self, choices: Sequence[tuple[str, str | None]], usage: Usage) -> Json:
        """The answer that is not streamed, from each choice's text and finish reason."""
        written = [self._whole_choice(number, text, reason) for number, (text, reason) in enumerate(choices)]
        return {**self._head(self.kind.whole_object), "choices": written, "usage": usage_json(usage)}

    def _whole_choice(self, number: int, text: str, reason: str | None) -> Json:
        choice: Json = {"index": number, "finish_reason": reason, "logprobs": None}
        if self.kind is Kind.CHAT:
            return {**choice, "message": {"role": "assistant", "content": text, "refusal": None}}
        return {**choice, "text": text}

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = {**self._head(self.kind.chunk_object), "choices": choices}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def _head(self, name: str) -> Json:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

    @staticmethod
    def _choice(number: int, delta: Json, finish_reason: str | None) -> Json:
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def usage_json(usage: Usage) -> Json:
    """Token counts under OpenAI's names."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }

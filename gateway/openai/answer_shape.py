"""Answers as OpenAI writes them: whole, or in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from orcastream.broker.entry import EntryRef
from orcastream.gateway.openai.choice_logprobs import ChoiceLogprobs
from orcastream.gateway.openai.endpoint import ChoicesEndpoint, Json, Logprobs
from orcastream.gateway.openai.endpoints import choices_endpoint_of
from orcastream.gateway.openai.options import NO_USAGE, UsageWanted
from orcastream.gateway.openai.parts import Part
from orcastream.gateway.openai.prompt_logprobs import PromptLogprobs
from orcastream.schemas.events import Usage


class WrittenChoice:
    """One choice of an answer that is gathered whole."""

    def __init__(self, echo: str, prompt: PromptLogprobs, logprobs: ChoiceLogprobs) -> None:
        """`echo`: the text that it begins with; `prompt`: what is told of the prompt's tokens."""
        self.parts: list[Part] = [echo] if echo else []
        self.finish_reason: str | None = None
        self.prompt = prompt
        self.logprobs = logprobs

    def add(self, parts: Sequence[Part], logprobs: Logprobs = ()) -> int:
        """More of it: how many bytes of JSON that is, at least."""
        self.parts += parts
        before = self.logprobs.size_bytes
        if logprobs:
            self.logprobs.add(logprobs)
        return sum(len(part) for part in parts if isinstance(part, str)) + self.logprobs.size_bytes - before


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """How one request's answer is written. `created` is in seconds of Unix time, `id` the request's."""

    id: str
    model: str
    created: int
    usage: UsageWanted = NO_USAGE
    first_choice: int = 0
    """The number of the first choice: where a request has several prompts, each has its choices behind the others'."""

    @classmethod
    def of(cls, request_id: str, model: str, ref: EntryRef | None, now_ms: int, usage: UsageWanted) -> Self:
        """That of a request whose queue entry, where it is known, says when it was made."""
        created_ms = now_ms if ref is None else ref.order[0]
        return cls(request_id, model, created_ms // 1000, usage)

    @property
    def endpoint(self) -> ChoicesEndpoint:
        """Where the request was made."""
        return choices_endpoint_of(self.id)

    def begun(self, echo: str, prompt: PromptLogprobs) -> WrittenChoice:
        """A choice to be gathered whole, of which nothing has come. `echo`, `prompt`: see WrittenChoice."""
        return WrittenChoice(echo, prompt, ChoiceLogprobs(self.endpoint.write_logprobs))

    def opened(self, choice: int, echo: str, prompt: PromptLogprobs) -> Json | None:
        """The chunk before the first text of a choice; None where there is none."""
        written = self.endpoint.opening(self.first_choice + choice, echo, prompt)
        return None if written is None else self._chunk(written)

    def delta(
        self,
        choice: int,
        parts: Sequence[Part],
        finish_reason: str | None = None,
        usage: Usage | None = None,
        logprobs: Logprobs = (),
    ) -> Json:
        """The chunk that adds `parts` to a choice, and says why it ended if it did; with the token counts so far."""
        return self._chunk(self.endpoint.delta(self.first_choice + choice, parts, finish_reason, logprobs), usage)

    def usage_chunk(self, usage: Usage) -> Json:
        """The last chunk, when token counts were asked for."""
        return {**self._head(self.endpoint.chunk_object), "choices": [], "usage": usage_json(usage)}

    def whole(self, choices: Sequence[WrittenChoice], usage: Usage) -> Json:
        """The answer that is not streamed."""
        endpoint = self.endpoint
        written = [
            endpoint.whole_choice(number, choice.parts, choice.finish_reason, choice.logprobs.json())
            | choice.prompt.fields(choice.logprobs)
            for number, choice in enumerate(choices)
        ]
        return {**self._head(endpoint.whole_object), "choices": written, "usage": usage_json(usage)}

    def _chunk(self, choice: Json, usage: Usage | None = None) -> Json:
        chunk = {**self._head(self.endpoint.chunk_object), "choices": [choice]}
        if usage is not None:
            return {**chunk, "usage": usage_json(usage)}
        return {**chunk, "usage": None} if self.usage.at_end else chunk

    def _head(self, name: str) -> Json:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}


def usage_json(usage: Usage) -> Json:
    """Token counts under OpenAI's names."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }

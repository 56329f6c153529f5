"""Answers as OpenAI writes them: whole, or in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from orcastream.broker.entry import EntryRef
from orcastream.gateway.openai.answer_usage import AnswerUsage
from orcastream.gateway.openai.choice_logprobs import ChoiceLogprobs
from orcastream.gateway.openai.endpoint import ChoicesEndpoint, Json, Logprobs
from orcastream.gateway.openai.endpoints import choices_endpoint_of
from orcastream.gateway.openai.options import NO_USAGE, UsageWanted
from orcastream.gateway.openai.parts import Part
from orcastream.gateway.openai.prompt_logprobs import PromptLogprobs


class WrittenChoice:
    """One choice of an answer that is gathered whole."""

    def __init__(self, echo: str, prompt: PromptLogprobs, logprobs: ChoiceLogprobs) -> None:
        """`echo`: the text that it begins with; `prompt`: the log probabilities of the prompt's tokens."""
        self.parts: list[Part] = [echo] if echo else []
        self.finish_reason: str | None = None
        self.prompt = prompt
        self.logprobs = logprobs

    def add(self, parts: Sequence[Part], logprobs: Logprobs = ()) -> int:
        """Add more of the choice; return its minimum size as JSON in bytes."""
        self.parts += parts
        before = self.logprobs.size_bytes
        if logprobs:
            self.logprobs.add(logprobs)
        return sum(len(part) for part in parts if isinstance(part, str)) + self.logprobs.size_bytes - before


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The form of one request's answer. `created` is in seconds of Unix time, `id` is the request's."""

    id: str
    model: str
    created: int
    usage: UsageWanted = NO_USAGE
    first_choice: int = 0
    """Index of the first choice: with several prompts, each prompt's choices follow those of the previous one."""

    @classmethod
    def of(cls, request_id: str, model: str, ref: EntryRef | None, now_ms: int, usage: UsageWanted) -> Self:
        """Make the shape of a request; its queue entry, if known, gives the creation time."""
        created_ms = now_ms if ref is None else ref.order[0]
        return cls(request_id, model, created_ms // 1000, usage)

    @property
    def endpoint(self) -> ChoicesEndpoint:
        """The endpoint of the request."""
        return choices_endpoint_of(self.id)

    def begun(self, echo: str, prompt: PromptLogprobs) -> WrittenChoice:
        """Return an empty choice to be gathered whole. `echo`, `prompt`: see WrittenChoice."""
        return WrittenChoice(echo, prompt, ChoiceLogprobs(self.endpoint.write_logprobs))

    def opened(self, choice: int, echo: str, prompt: PromptLogprobs) -> Json | None:
        """Return the chunk before the first text of a choice; None if there is none."""
        written = self.endpoint.opening(self.first_choice + choice, echo, prompt)
        return None if written is None else self._chunk(written)

    def delta(
        self,
        choice: int,
        parts: Sequence[Part],
        finish_reason: str | None = None,
        usage: AnswerUsage | None = None,
        logprobs: Logprobs = (),
    ) -> Json:
        """Return the chunk that adds `parts` to a choice, with any finish reason and the token counts so far."""
        return self._chunk(self.endpoint.delta(self.first_choice + choice, parts, finish_reason, logprobs), usage)

    def usage_chunk(self, usage: AnswerUsage) -> Json:
        """Return the last chunk, if token counts were requested."""
        return {**self._head(self.endpoint.chunk_object), "choices": [], "usage": usage.json()}

    def whole(self, choices: Sequence[WrittenChoice], usage: AnswerUsage) -> Json:
        """Return the answer that is not streamed."""
        endpoint = self.endpoint
        written = [
            endpoint.whole_choice(number, choice.parts, choice.finish_reason, choice.logprobs.json())
            | choice.prompt.fields(choice.logprobs)
            for number, choice in enumerate(choices)
        ]
        return {**self._head(endpoint.whole_object), "choices": written, "usage": usage.json()}

    def _chunk(self, choice: Json, usage: AnswerUsage | None = None) -> Json:
        chunk = {**self._head(self.endpoint.chunk_object), "choices": [choice]}
        if usage is not None:
            return {**chunk, "usage": usage.json()}
        return {**chunk, "usage": None} if self.usage.at_end else chunk

    def _head(self, name: str) -> Json:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

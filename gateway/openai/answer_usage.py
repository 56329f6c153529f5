"""The token counts of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from orcastream.gateway.openai.endpoint import Json
from orcastream.schemas.events import Usage


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """Token counts as clients get them. `reasoning_tokens`: those of the output up to the end of the thinking."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @classmethod
    def of(cls, usage: Usage, reasoning_tokens: int) -> Self:
        """Return the counts of a reply that has ended."""
        return cls(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, reasoning_tokens)

    @classmethod
    def total(cls, usages: Sequence[Self]) -> Self:
        """Return the total of several prompts."""
        return cls(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
            sum(usage.cached_tokens for usage in usages),
            sum(usage.reasoning_tokens for usage in usages),
        )

    @property
    def total_tokens(self) -> int:
        """Tokens of prompt and output."""
        return self.prompt_tokens + self.completion_tokens

    def json(self) -> Json:
        """Return the counts under the names of completions and chats."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

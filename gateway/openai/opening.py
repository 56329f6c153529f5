"""What the choices of an answer begin with: what they tell of their prompt."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Opening:
    """The prompt's `text`, and log probabilities of its tokens: in `logprobs`, with so many likeliest ones of each, as
    an echo has them, and in `prompt_logprobs`, as vLLM tells them. None: not told there.
    """

    text: str = ""
    logprobs: int | None = None
    prompt_logprobs: int | None = None


NO_OPENING: Final = Opening()
"""The choices tell nothing of the prompt."""

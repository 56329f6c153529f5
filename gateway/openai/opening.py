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

    @property
    def logprobs_per_token(self) -> int:
        """Log probabilities for each token of the prompt, in both places together."""
        return sum(1 + count for count in (self.logprobs, self.prompt_logprobs) if count is not None)


MAX_PROMPT_LOGPROBS_IN_ANSWER: Final = 524_288
"""Log probabilities of prompts in one answer, those of all its prompts and choices: some 50 MB of JSON.

As many have 128 prompts of 2,048 tokens, with one likeliest token in each place."""
NO_OPENING: Final = Opening()
"""The choices tell nothing of the prompt."""

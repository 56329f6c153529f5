"""The beginning of an answer's choices: what they contain about their prompt."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Opening:
    """The prompt's `text`, and the number of likeliest tokens to return with its tokens' log probabilities: in
    `logprobs`, as an echo has them, and in `prompt_logprobs`, as vLLM returns them. None means not returned there.
    """

    text: str = ""
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def logprobs_per_token(self) -> int:
        """Log probabilities for each token of the prompt, in both places together."""
        return sum(1 + count for count in (self.logprobs, self.prompt_logprobs) if count is not None)


MAX_PROMPT_LOGPROBS_IN_ANSWER: Final = 524_288
"""Maximum number of prompt log probabilities in one answer, over all its prompts and choices: about 50 MB of JSON.

That is 128 prompts of 2,048 tokens, with one likeliest token in each place.
"""
NO_OPENING: Final = Opening()
"""Nothing about the prompt."""

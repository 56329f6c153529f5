"""What a reply tells of its prompt, as it arrives."""

from orcastream.gateway.openai.logprobs import TokenLogprob
from orcastream.gateway.replies.token_logprobs import told
from orcastream.schemas.events import PromptRun, Started
from orcastream.text.choice_text import ChoiceText
from orcastream.text.tokenizer import Tokenizer


class PromptText:
    """The prompt's tokens with their log probabilities, and where in its text each of them begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = ChoiceText(tokenizer)
        self._expected = 0
        self.told: list[TokenLogprob] = []
        self.count: int | None = None
        """How many likeliest tokens the request asks for in each place; None: nothing of the prompt is told."""

    @property
    def is_complete(self) -> bool:
        """Whether all that is to come has come."""
        return len(self.told) >= self._expected

    def begin(self, started: Started) -> None:
        """An epoch begins: how much is to come."""
        if started.prompt_logprobs is not None:
            self._expected, self.count = started.prompt_tokens, started.prompt_logprobs

    def take(self, run: PromptRun) -> None:
        """More of it, behind what there was."""
        for token, item in zip(run.tokens, run.logprobs, strict=True):
            offset = self._text.length
            self._text.push((token,))
            self.told.append(told(self._tokenizer, token, item, position=len(self.told), text_offset=offset))

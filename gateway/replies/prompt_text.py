"""What a reply contains about its prompt, as it arrives."""

from collections.abc import Sequence

from orcastream.gateway.openai.opening import NO_OPENING, Opening
from orcastream.gateway.openai.prompt_logprobs import PromptLogprobs
from orcastream.gateway.replies.token_logprobs import told
from orcastream.schemas.events import PromptRun, Started
from orcastream.text.choice_text import ChoiceText
from orcastream.text.tokenizer import Tokenizer


class PromptText:
    """The prompt's tokens with their log probabilities, and where each of them begins in its text."""

    def __init__(self, tokenizer: Tokenizer, opening: Opening | None, *, repeated: Sequence[int] | None = None) -> None:
        """`opening`: what to report; None means whatever the log contains, as in vLLM.

        `repeated`: the prompt of `opening`, if an earlier request may have had the same id. The log is about that
        request's prompt; if that differs, only what the log contains is reported.
        """
        self.echo = "" if opening is None else opening.text
        """The text that each choice begins with."""
        self._repeated = repeated
        self._is_echoed = bool(self.echo)
        self._is_another = False
        self._first_ids: list[int] = []
        self._tokenizer = tokenizer
        self._text = ChoiceText(tokenizer)
        self._follows_log = opening is None
        self._expected = self._num_told = 0
        self.told = PromptLogprobs(opening or NO_OPENING)

    @property
    def is_complete(self) -> bool:
        """Whether everything expected has arrived."""
        return self._num_told >= self._expected

    def begin(self, started: Started) -> None:
        """Take the beginning of an epoch, which says how much to expect."""
        if self._repeated is not None and started.prompt_tokens != len(self._repeated):
            self._take_for_another()
        if started.prompt_logprobs is None:
            if self._repeated is not None:
                self.told = PromptLogprobs(NO_OPENING)
            return
        self._expected = started.prompt_tokens
        if self._follows_log:
            self._follows_log = False
            self.told = PromptLogprobs(Opening(prompt_logprobs=started.prompt_logprobs))

    def take(self, run: PromptRun) -> None:
        """Take the next tokens of the prompt."""
        if self._repeated is not None:
            self._compare(run, self._repeated)
        if self.told.is_told:
            all_told = []
            ranks = run.ranks or (None,) * len(run.tokens)
            items = zip(run.tokens, run.logprobs, ranks, strict=True)
            for position, (token, item, rank) in enumerate(items, self._num_told):
                before = self._text.length
                self._text.push((token,))
                brought = before, self._text.length
                all_told.append(told(self._tokenizer, token, item, position=position, brought=brought, rank=rank))
            self.told.add(all_told)
        self._num_told += len(run.tokens)

    def _compare(self, run: PromptRun, repeated: Sequence[int]) -> None:
        told = self._num_told + len(run.tokens)
        if tuple(run.tokens) != tuple(repeated[self._num_told : told]):
            self._take_for_another()
        self._first_ids += run.tokens
        if self._is_another and self._is_echoed and told >= self._expected:
            self.echo = self._tokenizer.decode(self._first_ids)

    def _take_for_another(self) -> None:
        self._is_another, self.echo = True, ""

"""An answer as it arrives in reply logs: tokens by their positions, each of them once, and their text."""

from collections.abc import Iterator, Sequence

from orcastream.broker.subscription import Update
from orcastream.client.errors import conflict, failure
from orcastream.client.result import Choice, Delta, Result, TokenLogprob
from orcastream.client.told_logprobs import of_prompt_run, of_run
from orcastream.schemas.events import Ending, Run, Terminal
from orcastream.text.choice_text import ChoiceText
from orcastream.text.tokenizer import Tokenizer


class _Choice:
    """The tokens of one choice, and their text if there is a tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.text = ""
        self.source = None if tokenizer is None else ChoiceText(tokenizer)

    def push(self, tokens: Sequence[int]) -> str:
        self.tokens += tokens
        return self._add("" if self.source is None else self.source.push(tokens))

    def finish(self) -> str:
        return self._add("" if self.source is None else self.source.finish())

    def _add(self, text: str) -> str:
        self.text += text
        return text


class FoldedAnswer:
    """The delivered part of an answer. A recomputed log repeats it; the repetition is compared and left out."""

    def __init__(self, request_id: str, tokenizer: Tokenizer | None) -> None:
        self._request_id = request_id
        self._tokenizer = tokenizer
        self._choices: list[_Choice] = []
        self._prompt_logprobs: list[TokenLogprob | None] = []

    def take(self, update: Update) -> Iterator[Delta | Result]:
        """Yield what is new in an update; the Result comes last.

        Raises ClientError, after yielding what came before it.
        """
        terminal = update.terminal
        if update.prompt is not None and (fresh_prompt := update.prompt.beyond(len(self._prompt_logprobs))) is not None:
            self._prompt_logprobs += of_prompt_run(self._tokenizer, fresh_prompt)
        if terminal is not None:
            for number, ending in enumerate(terminal.endings):
                if (source := self._choice(number).source) is not None:
                    source.text_length = ending.text_length
        for run in update.runs:
            if fresh := self._fresh(run):
                yield self._delta(run, fresh)
        if terminal is not None:
            yield from self._end(terminal)

    def _delta(self, run: Run, fresh: tuple[int, ...]) -> Delta:
        choice = self._choice(run.choice)
        logprobs: tuple[TokenLogprob, ...] = ()
        if run.logprobs is not None:
            items = run.logprobs[len(run.tokens) - len(fresh) :]
            logprobs = tuple(of_run(self._tokenizer, fresh, items, position=len(choice.tokens)))
            choice.logprobs += logprobs
        return Delta(run.choice, choice.push(fresh), fresh, logprobs)

    def _end(self, terminal: Terminal) -> Iterator[Delta | Result]:
        if terminal.error is not None:
            message = terminal.message or str(terminal.error)
            raise failure(terminal.error, message, request_id=self._request_id, field=terminal.field_name)
        for number, ending in enumerate(terminal.endings):
            choice = self._choice(number)
            if ending.tokens != len(choice.tokens):
                message = f"choice {number}: {len(choice.tokens)} tokens were delivered, it has {ending.tokens}"
                raise conflict(message, self._request_id)
            if text := choice.finish():
                yield Delta(number, text)
        whole = tuple(self._whole(number, ending) for number, ending in enumerate(terminal.endings))
        yield Result(self._request_id, whole, terminal.usage, tuple(self._prompt_logprobs))

    def _whole(self, number: int, ending: Ending) -> Choice:
        choice = self._choice(number)
        reason = None if ending.finish_reason is None else str(ending.finish_reason)
        return Choice(choice.text, tuple(choice.tokens), reason, tuple(choice.logprobs))

    def _fresh(self, run: Run) -> tuple[int, ...]:
        """Return the tokens of a run that were not delivered yet. Raises ReplyConflict."""
        known = self._choice(run.choice).tokens
        overlap = tuple(known[run.position : run.position + len(run.tokens)])
        if run.tokens[: len(overlap)] != overlap:
            place = f"choice {run.choice}, from token {run.position} on"
            raise conflict(f"{place}: {overlap} was delivered, and is now {run.tokens}", self._request_id)
        return run.tokens[len(overlap) :]

    def _choice(self, number: int) -> _Choice:
        while len(self._choices) <= number:
            self._choices.append(_Choice(self._tokenizer))
        return self._choices[number]

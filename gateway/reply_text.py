"""The text of a reply as its tokens arrive, and how far a client has come in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.resume import CaughtUp, ResumePoint, Resumption, extend_checksum, resume_id
from broker.subscription import Update
from gateway.delivered import Delivered
from schemas.events import Run, Terminal
from text.choice_text import ChoiceText
from text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """New text of one choice. `event_id` stands for everything delivered up to and with it, of all choices."""

    choice: int
    text: str
    event_id: str


@dataclass(frozen=True, slots=True)
class Last:
    """The end of one choice: text that only the end made certain, and the finish reason.

    `event_id` stands for everything delivered up to and with it; None where it adds no text.
    """

    choice: int
    text: str
    finish_reason: str | None
    event_id: str | None


class _ChoiceText(ChoiceText):
    """One choice: its text, how many tokens it took, and their checksum."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.num_tokens = 0
        self.checksum = 0

    def take(self, tokens: Sequence[int], checksum: int | None = None) -> str:
        """The text that `tokens` make certain; `checksum` is that of all so far, where it is known."""
        self.num_tokens += len(tokens)
        self.checksum = extend_checksum(self.checksum, tokens) if checksum is None else checksum
        return self.push(tokens)


class ReplyText:
    """Turns a reply's updates into text, choice by choice.

    The text behind an event id is a function of the log alone: of its tokens up to the id's counts, whoever reads them
    and in whatever groups. With `resume`, what a client was given before is taken in silently and compared first.
    """

    def __init__(self, tokenizer: Tokenizer, resume: Delivered | None = None) -> None:
        self._tokenizer = tokenizer
        self._choices: list[_ChoiceText] = []
        self._resume = None if resume is None else Resumption(resume.tokens)
        self._num_ends = 0 if resume is None else resume.num_ends
        """Choices whose end the client has."""

    def take(self, update: Update) -> list[Piece]:
        """The new text of an update. ReplyConflict where a resuming client was told something else."""
        if update.started is not None:
            self._grow(update.started.n)
        if update.terminal is not None:
            for choice, ending in enumerate(update.terminal.endings):
                self._choice(choice).text_length = ending.text_length
        if self._resume is None:
            if len(update.runs) == 1:
                return self._piece(update.runs[0], update)
            return self._pieces(update.runs)
        has_finished = update.terminal is not None and update.terminal.error is None
        caught_up = self._resume.take(update.runs, has_finished=has_finished)
        return [] if caught_up is None else self._catch_up(caught_up)

    def end(self, terminal: Terminal) -> list[Last]:
        """How each choice ended, after `take` took the last update."""
        lasts = []
        for number, ending in enumerate(terminal.endings):
            reason = None if ending.finish_reason is None else str(ending.finish_reason)
            text = self._choice(number).finish()
            if number < self._num_ends:
                text = ""
            event_id = str(Delivered(self._point(), number + 1)) if text else None
            lasts.append(Last(number, text, reason, event_id))
        return lasts

    def _catch_up(self, caught_up: CaughtUp) -> list[Piece]:
        """What the client has goes in without a word, what goes beyond comes out."""
        self._resume = None
        for number, tokens in enumerate(caught_up.delivered):
            self._choice(number).take(tokens)
        return self._pieces(caught_up.beyond)

    def _pieces(self, runs: Sequence[Run]) -> list[Piece]:
        pieces = []
        for run in runs:
            text = self._choice(run.choice).take(run.tokens)
            if text:
                pieces.append(Piece(run.choice, text, self._event_id()))
        return pieces

    def _piece(self, run: Run, update: Update) -> list[Piece]:
        """As `_pieces`, of one run, behind which the counts are the update's own."""
        text = self._choice(run.choice).take(run.tokens, update.checksums[run.choice])
        return [Piece(run.choice, text, update.resume_id)] if text else []

    def _event_id(self) -> str:
        choices = self._choices
        return resume_id([c.num_tokens for c in choices], [c.checksum for c in choices])

    def _point(self) -> ResumePoint:
        return ResumePoint.of([c.num_tokens for c in self._choices], [c.checksum for c in self._choices])

    def _choice(self, number: int) -> _ChoiceText:
        self._grow(number + 1)
        return self._choices[number]

    def _grow(self, num_choices: int) -> None:
        while len(self._choices) < num_choices:
            self._choices.append(_ChoiceText(self._tokenizer))

"""The parts of a reply as its tokens arrive, and the client's position in it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from orcastream.broker.resume import CaughtUp, ResumePoint, Resumption, extend_checksum, resume_id
from orcastream.broker.subscription import Update
from orcastream.gateway.openai.answer_usage import AnswerUsage
from orcastream.gateway.openai.logprobs import TokenLogprob
from orcastream.gateway.openai.opening import NO_OPENING, Opening
from orcastream.gateway.openai.parts import Part
from orcastream.gateway.replies.answer_splitter import AnswerSplitter
from orcastream.gateway.replies.delivered import Delivered
from orcastream.gateway.replies.prompt_text import PromptText
from orcastream.gateway.replies.token_logprobs import told
from orcastream.schemas.events import Ending, Run, Started, Terminal
from orcastream.schemas.stopping import FinishReason
from orcastream.text.answer_format import AnswerFormat
from orcastream.text.answer_parser import Reasoning
from orcastream.text.choice_text import ChoiceText
from orcastream.text.tokenizer import Tokenizer

TOOL_CALLS: Final = "tool_calls"
"""The finish reason of an answer that ended normally and contains calls, all of them complete."""
_PIECE_TOKENS: Final = 16
"""Maximum tokens with log probabilities in one piece: a run may hold a whole answer, and each token takes long."""


class Piece(NamedTuple):
    """New content of one choice. `event_id` is the position after it in all choices.

    `logprobs` are those of its tokens, if requested; then there may be no parts.
    """

    choice: int
    parts: Sequence[Part]
    event_id: str
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True, slots=True)
class Last:
    """The end of one choice: content that only the end made certain, and the finish reason.

    `event_id` is the position after it; None if it adds nothing.
    """

    choice: int
    parts: Sequence[Part]
    finish_reason: str | None
    event_id: str | None


class _Choice:
    """One choice: its text, the text's splitter, its number of tokens, and their checksum."""

    def __init__(self, tokenizer: Tokenizer, splitter: AnswerSplitter | None, prompt: PromptText) -> None:
        self.text = ChoiceText(tokenizer)
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._splitter = splitter
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        """Number of tokens up to the last one that added reasoning."""
        self.checksum = 0

    def take(self, tokens: Sequence[int], checksum: int | None = None) -> Sequence[Part]:
        """Take `tokens`; return the parts that are now certain. `checksum` is that of all tokens so far, if known."""
        self.checksum = extend_checksum(self.checksum, tokens) if checksum is None else checksum
        if self._splitter is not None:
            return self._split(self._splitter, tokens)
        text = self._next_text(tokens)
        return (text,) if text else ()

    def _split(self, splitter: AnswerSplitter, tokens: Sequence[int]) -> Sequence[Part]:
        """Return the parts in `tokens`; while these may be reasoning, they are taken one by one, to count them."""
        parts: list[Part] = []
        taken = 0
        while taken < len(tokens):
            end = taken + 1 if splitter.may_think else len(tokens)
            if text := self._next_text(tokens[taken:end]):
                parts += self._counted(splitter.push(text))
            taken = end
        return parts

    def _next_text(self, tokens: Sequence[int]) -> str:
        self.num_tokens += len(tokens)
        return self.text.push(tokens)

    def _counted(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return `parts`; if there is reasoning in them, all tokens so far count as reasoning."""
        if any(isinstance(part, Reasoning) for part in parts):
            self.num_reasoning_tokens = self.num_tokens
        return parts

    def take_with_logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[Any]
    ) -> tuple[Sequence[Part], list[TokenLogprob]]:
        """As `take`, token by token; tokens beginning after a stop string's cut are not reported."""
        parts: list[Part] = []
        all_told = []
        for token, item in zip(tokens, logprobs, strict=True):
            position, begin = self.num_tokens, len(self._prompt.echo)
            before = begin + self.text.length
            parts += self.take((token,))
            brought = before, begin + self.text.length
            one = told(self._tokenizer, token, item, position=position, brought=brought)
            if self.text.text_length is None or one.text_offset < begin + self.text.text_length:
                all_told.append(one)
        return parts, all_told

    def finish(self) -> Sequence[Part]:
        """Return the parts that only the end makes certain."""
        text = self.text.finish()
        if self._splitter is None:
            return (text,) if text else ()
        return self._counted([*self._splitter.push(text), *self._splitter.finish()])

    def finish_reason(self, ending: Ending) -> str | None:
        """Return the finish reason, after `finish`: normal, with calls, or other."""
        if ending.finish_reason is FinishReason.STOP and self._splitter is not None and self._splitter.has_whole_calls:
            return TOOL_CALLS
        return None if ending.finish_reason is None else str(ending.finish_reason)


class ReplyText:
    """Turns a reply's updates into text and other parts, choice by choice.

    The content after an event id is a function of the log alone: of its tokens up to the id's counts, whoever reads
    them and in whatever groups. With `resume`, content that the client already has is checked against it and not
    output.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        resume: Delivered | None = None,
        *,
        split: str | None = None,
        opening: Opening | None = None,
        repeated: Sequence[int] | None = None,
    ) -> None:
        """`split`: the queue id of a request whose text is split in the format that its log names.

        `opening`: what each choice begins with; None means what the log contains. `repeated`: see PromptText.
        """
        self.prompt = PromptText(tokenizer, opening if resume is None else NO_OPENING, repeated=repeated)
        """The reply's content about its prompt."""
        self._tokenizer = tokenizer
        self._split = split
        self._format = AnswerFormat()
        self._choices: list[_Choice] = []
        self._resume = None if resume is None else Resumption(resume.tokens)
        self._num_ends = 0 if resume is None else resume.num_ends
        """Number of choices whose end the client has."""

    def take(self, update: Update) -> Iterable[Piece]:
        """Return the new pieces of an update; read them to the end, as they are made one by one, none of them long.

        Raises ReplyConflict if a resuming client had received something else.
        """
        if update.started is not None:
            self._begin(update.started)
        if update.prompt is not None:
            self.prompt.take(update.prompt)
        if update.terminal is not None:
            for choice, ending in enumerate(update.terminal.endings):
                self._choice(choice).text.text_length = ending.text_length
        if self._resume is None:
            if len(update.runs) == 1 and update.runs[0].logprobs is None:
                return self._piece(update.runs[0], update)
            return self._pieces(update.runs)
        has_finished = update.terminal is not None and update.terminal.error is None
        caught_up = self._resume.take(update.runs, has_finished=has_finished)
        return [] if caught_up is None else self._catch_up(caught_up)

    def end(self, terminal: Terminal) -> list[Last]:
        """Return the ends of choices that the client does not have yet, after `take` took the last update."""
        lasts = []
        for number, ending in enumerate(terminal.endings):
            choice = self._choice(number)
            parts = choice.finish()
            if number < self._num_ends:
                continue
            event_id = str(Delivered(self._point(), number + 1)) if parts else None
            lasts.append(Last(number, parts, choice.finish_reason(ending), event_id))
        return lasts

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens up to the end of the thinking, in all choices so far: a function of the log alone."""
        return sum(choice.num_reasoning_tokens for choice in self._choices)

    def usage(self, terminal: Terminal) -> AnswerUsage:
        """Return the token counts of the reply, after `end` returned its ends."""
        return AnswerUsage.of(terminal.usage, self.num_reasoning_tokens)

    def _catch_up(self, caught_up: CaughtUp) -> Iterator[Piece]:
        """Take silently what the client has, and return the pieces beyond it."""
        self._resume = None
        for number, tokens in enumerate(caught_up.delivered):
            self._choice(number).take(tokens)
        return self._pieces(caught_up.beyond)

    def _pieces(self, runs: Sequence[Run]) -> Iterator[Piece]:
        for run in runs:
            if run.logprobs is not None:
                yield from self._with_logprobs(run, run.logprobs)
            elif parts := self._choice(run.choice).take(run.tokens):
                yield Piece(run.choice, parts, self._event_id())

    def _with_logprobs(self, run: Run, logprobs: Sequence[Any]) -> Iterator[Piece]:
        """As `_pieces`, for one run with log probabilities."""
        choice = self._choice(run.choice)
        for begin in range(0, len(run.tokens), _PIECE_TOKENS):
            some = slice(begin, begin + _PIECE_TOKENS)
            parts, all_told = choice.take_with_logprobs(run.tokens[some], logprobs[some])
            yield Piece(run.choice, parts, self._event_id(), all_told)

    def _piece(self, run: Run, update: Update) -> list[Piece]:
        """As `_pieces`, for one run whose resulting counts are the update's own."""
        parts = self._choice(run.choice).take(run.tokens, update.checksums[run.choice])
        return [Piece(run.choice, parts, update.resume_id)] if parts else []

    def _event_id(self) -> str:
        choices = self._choices
        return resume_id([c.num_tokens for c in choices], [c.checksum for c in choices])

    def _point(self) -> ResumePoint:
        return ResumePoint.of([c.num_tokens for c in self._choices], [c.checksum for c in self._choices])

    def _begin(self, started: Started) -> None:
        """Begin an epoch; all epochs have the format of the first."""
        self.prompt.begin(started)
        if not self._choices and self._split is not None:
            self._format = AnswerFormat.parse(started.answer_format)
        self._grow(started.n)

    def _choice(self, number: int) -> _Choice:
        self._grow(number + 1)
        return self._choices[number]

    def _grow(self, num_choices: int) -> None:
        for number in range(len(self._choices), num_choices):
            is_plain = self._split is None or self._format.is_plain
            splitter = None if is_plain else AnswerSplitter(self._format, str(self._split), number)
            self._choices.append(_Choice(self._tokenizer, splitter, self.prompt))

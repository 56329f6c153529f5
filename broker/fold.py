"""Folds a reply log by positions into the generated tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

from orcastream.broker.errors import Gap, ReplyConflict
from orcastream.broker.resp import fields_of
from orcastream.broker.resume import extend_checksum
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.events import Event, EventId, Output, PromptRun, Run, Started, Terminal, decode_event
from orcastream.schemas.limits import MAX_CHOICES


class Fold:
    """The state of one reply log after the events fed so far.

    Positions, not ids, define the reply: a run at the next expected position is appended, a lower one must agree with
    the known tokens, a higher one is a Gap. Positions of the prompt, if its log probabilities are logged, precede all
    output. Entries after the first terminal are ignored. An error may count fewer tokens than there are: it changes
    none of them.
    """

    def __init__(self) -> None:
        self.started: Started | None = None
        """The newest started event."""
        self.previous_started: Started | None = None
        """The started event before it."""
        self.first_seed: int | None = None
        """The seed in the first started event, which every continuation uses."""
        self.first_entry = ""
        """The queue entry in the first started event, whose answer this is."""
        self.prompt_told = 0
        """Number of prompt tokens, from the first, whose log probabilities are in the log."""
        self.prompt_expected = 0
        """Number of prompt tokens that need log probabilities before the first output token."""
        self.tokens: list[list[int]] = []
        """Output tokens, per choice."""
        self.terminal: Terminal | None = None
        self.last_id: EventId | None = None
        self._checksums: list[int] = []
        self._barren_epochs = 0
        self._progress = False

    @property
    def epochs_without_progress(self) -> int:
        """How many epochs in a row before the current one added nothing, neither a token nor prompt log probabilities;
        0 once the current epoch added something.
        """
        return 0 if self._progress else self._barren_epochs

    def feed(self, event_id: EventId, event: Event) -> list[Run]:
        """Fold one event in; return the runs of new tokens. Events that were fed before change nothing.

        Raises Gap (nothing folded: feed the log again from its first entry) and ReplyConflict.
        """
        if self.terminal is not None:
            return []
        if isinstance(event, Started):
            self._start(event_id, event)
            return []
        self._check(event)
        if isinstance(event, PromptRun) and event.end > self.prompt_told:
            self.prompt_told, self._progress = event.end, True
        fresh = [new for run in event.runs if (new := self._extend(run)) is not None]
        self._progress = self._progress or bool(fresh)
        if isinstance(event, Terminal):
            self.terminal = event
        if self.last_id is None or event_id > self.last_id:
            self.last_id = event_id
        return fresh

    def progress(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return how far the fold has come: number of tokens and checksum of each choice."""
        return tuple([len(tokens) for tokens in self.tokens]), tuple(self._checksums)

    def _choice(self, index: int) -> Sequence[int]:
        return self.tokens[index] if index < len(self.tokens) else ()

    def _start(self, event_id: EventId, event: Started) -> None:
        if self.last_id is not None and event_id <= self.last_id:
            return
        if self.started is not None:
            self._barren_epochs = 0 if self._progress else self._barren_epochs + 1
        self._progress = False
        self.previous_started, self.started = self.started, event
        self.last_id = event_id
        if self.first_seed is None:
            self.first_seed, self.first_entry = event.seed, event.entry
        if event.prompt_logprobs is not None:
            self.prompt_expected = event.prompt_tokens
        self._grow(event.n)

    def _grow(self, num_choices: int) -> None:
        while len(self.tokens) < num_choices:
            self.tokens.append([])
            self._checksums.append(0)

    def _check(self, event: PromptRun | Output | Terminal) -> None:
        """Raise Gap or ReplyConflict before anything is changed."""
        self._check_prompt(event)
        lengths: dict[int, int] = {}
        for run in event.runs:
            known = self._choice(run.choice)
            length = lengths.get(run.choice, len(known))
            if run.position > length:
                raise Gap(run.choice, length, run.position)
            if run.position < len(known):
                _compare(run, known)
            lengths[run.choice] = max(length, run.position + len(run.tokens))
        if isinstance(event, Terminal):
            for choice, ending in enumerate(event.endings):
                length = lengths.get(choice, len(self._choice(choice)))
                if ending.tokens > length:
                    raise Gap(choice, length, ending.tokens)
                if ending.tokens < length and event.error is None:
                    raise ReplyConflict(f"choice {choice} ended after {ending.tokens} tokens, {length} were delivered")

    def _check_prompt(self, event: PromptRun | Output | Terminal) -> None:
        """Raise Gap if the prompt's log probabilities have a hole, or are incomplete before output or the end."""
        if isinstance(event, PromptRun):
            if event.position > self.prompt_told:
                raise Gap(None, self.prompt_told, event.position)
        elif self.prompt_told < self.prompt_expected and (
            event.runs or (isinstance(event, Terminal) and event.error is None)
        ):
            raise Gap(None, self.prompt_told, self.prompt_expected)

    def _extend(self, run: Run) -> Run | None:
        self._grow(run.choice + 1)
        known = self.tokens[run.choice]
        skip = len(known) - run.position
        fresh = run.tokens[skip:] if skip else run.tokens
        if not fresh:
            return None
        position = len(known)
        known.extend(fresh)
        self._checksums[run.choice] = extend_checksum(self._checksums[run.choice], fresh)
        if not skip:
            return run
        return Run(run.choice, position, fresh, None if run.logprobs is None else run.logprobs[skip:])


def _compare(run: Run, known: Sequence[int]) -> None:
    overlap = known[run.position : run.position + len(run.tokens)]
    for offset, (old, new) in enumerate(zip(overlap, run.tokens, strict=False)):
        if old != new:
            place = f"choice {run.choice}, token {run.position + offset}"
            raise ReplyConflict(f"{place}: {old} was delivered, the log now says {new}")


def decode_entry(entry: Sequence[Any]) -> tuple[EventId, Event] | None:
    """Return id and event of one raw stream entry; None if it is not an event of this version, to be ignored."""
    entry_id, flat = entry
    try:
        event = decode_event(fields_of(flat))
    except InvalidRequest:
        return None
    return (EventId.parse(entry_id), event) if _within_limits(event) else None


def _within_limits(event: Event) -> bool:
    if isinstance(event, Started):
        return 1 <= event.n <= MAX_CHOICES
    return not [run for run in event.runs if run.choice >= MAX_CHOICES]


def fold_log(entries: Iterable[Sequence[Any]]) -> Fold:
    """Fold a whole log as read by XRANGE, for a worker that continues it.

    Entries after a hole, or that contradict earlier ones, do not count: the epoch that begins now replaces them. Only a
    terminal always counts.
    """
    fold = Fold()
    for entry in entries:
        decoded = decode_entry(entry)
        if decoded is None:
            continue
        try:
            fold.feed(*decoded)
        except (Gap, ReplyConflict):
            if isinstance(decoded[1], Terminal):
                fold.terminal = decoded[1]
    return fold

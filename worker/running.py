"""One claimed request in this worker: its choices, its position in the reply log, and the next event to write."""

import time
from collections.abc import Collection, Mapping, Sequence

from orcastream.broker.back_off import BackOff
from orcastream.broker.claimed import Claimed
from orcastream.broker.fold import Fold
from orcastream.broker.lease import Given
from orcastream.broker.reply_log import ReplyLog
from orcastream.broker.token_stream import TokenStream
from orcastream.broker.token_writer import TokenWriter
from orcastream.engine import PromptEvent, Request, Timeline, TokenEvent
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Ending, Event, Output, PromptRun, Run, Started, Terminal, Usage
from orcastream.schemas.request import GenerationRequest
from orcastream.schemas.seed import derived_seed
from orcastream.telemetry.logs import trace_fields
from orcastream.text.matcher import Matcher
from orcastream.text.tokenizer import Tokenizer
from orcastream.worker.adapter_shelf import HeldAdapter
from orcastream.worker.candidates import Candidates
from orcastream.worker.choice import Choice
from orcastream.worker.constraints import Constraints
from orcastream.worker.epoch_span import EpochSpan
from orcastream.worker.times import Times
from orcastream.worker.told_prompt import ToldPrompt

_LEAST_SLO_MS = 1.0
"""The rest of a target that has been missed."""


class Running:
    """State of one request between its claim and its terminal event. Not thread-safe: it lives on the asyncio loop."""

    # Every token touches it: with this many attributes, a dict would be a hash table in rarely cached memory.
    __slots__ = (
        "_candidates",
        "_constraints",
        "_engine_requests",
        "_field",
        "_is_plain",
        "_is_ranked",
        "_matcher",
        "_message",
        "_prompt",
        "_seed",
        "_tokenizer",
        "_was_open",
        "adapter",
        "back_off",
        "blamed",
        "brought",
        "choices",
        "claimed",
        "closed",
        "continued",
        "counted",
        "deadline_s",
        "error",
        "last_epoch",
        "log",
        "max_tokens",
        "progressed",
        "ref",
        "request",
        "span",
        "stream",
        "suspect",
        "times",
    )

    def __init__(
        self,
        claimed: Claimed,
        request: GenerationRequest,
        *,
        max_tokens: int,
        tokenizer: Tokenizer | None,
        claimed_ms: int,
        constraints: Constraints,
    ) -> None:
        """`claimed_ms` is the server's clock at the claim, Unix time; `max_tokens` is resolved."""
        self.claimed = claimed
        self.ref = claimed.ref
        self.request = request
        self.max_tokens = max_tokens
        self.log: ReplyLog | None = None
        self.last_epoch = 0
        self.closed = False
        self._was_open = False
        self.back_off = BackOff()
        """For an attach that follows a refusal; reset by a write that succeeds."""
        self.suspect = claimed.suspect
        """Whether it may have caused the deaths of its previous workers: it has made no progress here yet."""
        self.blamed = claimed.suspect or claimed.deliveries > 1
        """Whether attempts count against it until new output of it is logged."""
        self.counted = False
        """Whether it runs alone here, as one of these attempts."""
        self.brought = False
        """Whether the engine has produced new output of it here: a token, or log probabilities of its prompt."""
        self.progressed = False
        """Whether some of that output is in the log."""
        self.choices: list[Choice] = []
        """The choices in the reply log and their output to come."""
        self.stream: TokenStream | None = None
        """Publishes the tokens of the only choice, while they need nothing but publishing."""
        self.times = Times(claimed.ref.order[0], claimed_ms)
        self.span: EpochSpan | None = None
        """The span of the epoch that is open or being opened."""
        self.deadline_s = self.times.claimed_s + (request.deadline_ms - claimed_ms) / 1000
        """The deadline in seconds of `time.monotonic()`."""
        self.continued = False
        """Whether its choices continue tokens that another attempt wrote."""
        self.adapter: HeldAdapter | None = None
        """The adapter of its engine requests, from before its first attach until it leaves the roster."""
        self._tokenizer = tokenizer
        self._constraints = constraints
        self._matcher: Matcher | None = None
        """The matcher at the start of an answer, once prepared."""
        self.error: ErrorCode | None = None
        self._message = ""
        self._field: str | None = None
        payload = request.payload
        self._is_ranked = payload.is_ranked
        self._prompt = None if payload.prompt_logprobs is None else ToldPrompt(payload)
        self._is_plain = payload.n == 1 and not (payload.is_ranked or payload.stop) and payload.logprobs is None
        self._seed = derived_seed(request.id) if payload.seed is None else payload.seed
        self._candidates: Candidates | None = None
        self._engine_requests: list[Request] = []

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    def log_fields(self, **more: object) -> dict[str, object]:
        """Return the `extra` of a log line about this request: its id, `more`, and its trace."""
        return {"request": self.id, **more, **({} if self.span is None else trace_fields(self.span.context))}

    def started(self, worker: str, model: str) -> Started:
        """Return the event that opens an epoch of this request."""
        payload = self.request.payload
        return Started(
            worker=worker,
            model=model,
            tenant=payload.tenant,
            priority_class=self.ref.priority_class,
            entry=str(self.ref),
            seed=self._seed,
            prompt_tokens=len(payload.prompt),
            n=payload.n,
            traceparent=None if self.span is None else self.span.traceparent,
            answer_format=payload.answer_format,
            prompt_logprobs=payload.prompt_logprobs,
        )

    def is_new(self, now_ms: int) -> bool:
        """Whether nobody has begun it and it must be computed, as far as is known before its log is read.

        `now_ms`: the server's clock, Unix time.
        """
        if self.claimed.taken_over or self.suspect or self.last_epoch or self.choices:
            return False
        return self.error is None and now_ms < self.request.deadline_ms

    @property
    def has_to_prepare(self) -> bool:
        """Whether its answers will follow a constraint whose states are yet to be built."""
        return self.request.payload.constraint is not None and not self.choices and self.error is None

    def prepare(self) -> None:
        """Build those states, which may take seconds: the engine, and so all its requests, would wait for them.

        Raises InvalidRequest if the constraint cannot be followed.
        """
        constraint = self.request.payload.constraint
        if constraint is None:
            return
        if self._matcher is None:
            self._matcher = self._constraints.matcher(constraint)
        self._matcher.make_ready(self.request.payload.num_candidates)

    def put_off(self) -> None:
        """Detach from its log, because its adapter or constraint comes first; the next attach reads the log again."""
        self.detach()
        self.choices = []

    def begin(self, eos_token_ids: Collection[int]) -> None:
        """Begin with an empty log. `attached` finds out whether it was empty."""
        self._adopt([[]] * self.request.payload.n, eos_token_ids)

    def attached(self, log: ReplyLog, fold: Fold, eos_token_ids: Collection[int]) -> bool:
        """Continue from the log just read; True if the engine must (re)start because the log differs.

        If this worker's own tokens extend the log, only the missing ones are published and the engine continues
        undisturbed. Otherwise, or if it failed (for example, was cancelled) before it had an epoch here, the log is
        adopted: clients may have seen its contents.
        """
        self.detach()
        self.log = log
        failed_early, self._was_open = self.error is not None and not self._was_open, True
        goes_on = fold.first_seed in (None, self._seed) and not failed_early
        if fold.first_seed is not None:
            self._seed = fold.first_seed
        logged = [fold.tokens[index] if index < len(fold.tokens) else [] for index in range(self.request.payload.n)]
        if self._prompt is not None and not self._prompt.adopt(fold.prompt_told):
            goes_on = False
        if goes_on and self.choices and all(map(Choice.extends, self.choices, logged)):
            for choice, tokens in zip(self.choices, logged, strict=True):
                choice.num_logged = len(tokens)
            return False
        self._adopt(logged, eos_token_ids)
        return True

    def _adopt(self, logged: Sequence[Sequence[int]], eos_token_ids: Collection[int]) -> None:
        """Continue from the contents of a log, in a new attempt."""
        self.continued = any(logged)
        self.choices = [self._choice(index) for index in range(len(logged))]
        for choice, tokens in zip(self.choices, logged, strict=True):
            choice.adopt(tokens, eos_token_ids)
        self._begin_attempt()

    def engine_requests(self) -> list[Request]:
        """Return new engine requests for what the engine must run in the current attempt."""
        waited_s = self.times.since_arrival_s(time.monotonic())
        slo_ms = self.request.payload.ttft_slo_ms
        if slo_ms is not None:
            slo_ms = max(slo_ms - waited_s * 1000, _LEAST_SLO_MS)
        self._engine_requests = (
            []
            if self._candidates is None
            else self._candidates.engine_requests(
                max_tokens=self.max_tokens,
                seed=self._seed,
                priority_class=self.ref.priority_class,
                deadline_s=self.deadline_s,
                waited_s=waited_s,
                ttft_slo_ms=slo_ms,
                adapter=None if self.adapter is None else self.adapter.adapter,
                prompt_told=None if self._prompt is None else self._prompt.num_known,
            )
        )
        return self._engine_requests

    @property
    def timelines(self) -> list[Timeline]:
        """The engine's timestamps for the current attempt, per choice; its thread keeps writing to them."""
        return [request.timeline for request in self._engine_requests]

    @property
    def num_logged(self) -> int:
        """Output tokens in the log, of all choices."""
        return sum(choice.num_logged for choice in self.choices)

    def candidates(self) -> Mapping[str, Sequence[Choice]]:
        """Return what the engine makes in the current attempt, by engine id."""
        return {} if self._candidates is None else self._candidates.by_engine_id

    def engine_ids(self) -> list[str]:
        """Return the engine ids of the current attempt."""
        return list(self.candidates())

    @property
    def given(self) -> Given:
        """What the next worker must know about it."""
        return Given(self.ref, suspect=self.suspect, counted=self.counted)

    def fail(self, code: ErrorCode, message: str, field: str | None = None) -> None:
        """End the request early; the first reason wins. `field`: the one at fault in an invalid request."""
        if self.error is None:
            self.close_stream()
            self.error, self._message, self._field = code, message, field

    @property
    def ended(self) -> bool:
        """Whether the next event is the terminal one."""
        if self.error is not None:
            return True
        return self.answered and (self._prompt is None or self._prompt.is_logged)

    @property
    def answered(self) -> bool:
        """Whether nothing more is to be computed, although parts of the answer may wait to be written."""
        if self._prompt is not None and not self._prompt.is_known:
            return False
        for choice in self.choices:  # not a generator: called for every token
            if choice.ending is None:
                return False
        return bool(self.choices)

    def accept(self, candidate: Choice, event: TokenEvent) -> None:
        """Take the engine's next token of one of the `candidates()`; the last one of all decides ranked choices."""
        if event.token is None:
            return
        if self.times.first_token_s is None:
            self.times.token_arrived()
            self.brought = True
        if candidate.cached_tokens is None:
            candidate.cached_tokens = event.cached_tokens
        candidate.accept(event.token, event.finish_reason, event.logprobs)
        if self._is_ranked and self.error is None and self._candidates is not None:
            self.choices = self._candidates.best() or self.choices

    def accept_prompt(self, event: PromptEvent) -> None:
        """Take the engine's log probabilities of the prompt."""
        if self._prompt is not None and self._prompt.accept(event):
            self.brought = True

    def next_event(self) -> Event | None:
        """Return the event to write next; None while there is none.

        If the prompt's log probabilities are wanted, no token precedes their end: an earlier terminal event has none.
        """
        if self._prompt is not None and not self._prompt.is_logged:
            return self._prompt.next_run() if self.error is None else self._terminal((), self._logged_endings())
        ended = self.ended
        runs = [run for choice in self.choices if (run := choice.next_run(last=ended)) is not None]
        if ended:
            return self._terminal(tuple(runs), tuple(choice.abandoned() for choice in self.choices))
        return Output(tuple(runs)) if runs else None

    def logged(self, event: Event) -> bool:
        """Record that `event` is in the log; return whether it carried the request's first token."""
        if isinstance(event, Started):
            return False
        if isinstance(event, PromptRun):
            if self._prompt is not None:
                self._prompt.logged(event.end)
            self.progressed = True
            return False
        for run in event.runs:
            self.choices[run.choice].num_logged = run.position + len(run.tokens)
        is_terminal = type(event) is Terminal
        if self.times.first_logged_s is not None and not is_terminal:
            return False
        is_first = self.times.logged(tokens=bool(event.runs), terminal=is_terminal)
        self.progressed = self.progressed or is_first
        return is_first and not self.continued

    @property
    def can_stream(self) -> bool:
        """Whether its next tokens need nothing but publishing: one token is logged, as is the prompt if wanted, and it
        has one choice, without a stop string or log probabilities.
        """
        if not self._is_plain or self.times.first_logged_s is None or self.ended:
            return False
        return self._prompt is None or self._prompt.is_logged

    def open_stream(self, writer: TokenWriter) -> None:
        """Let `writer` publish its tokens from now on, if the log allows it."""
        choice = self.choices[0]
        if self.log is not None:
            self.stream = writer.open(self.log, choice.tokens, choice.num_logged, self)

    def close_stream(self) -> None:
        """Close the stream: something other than the next token must be published, or known."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()
            self.choices[0].num_logged = stream.num_logged

    def detach(self) -> None:
        """End its epoch here."""
        self.close_stream()
        self.log = None

    def _logged_endings(self) -> tuple[Ending, ...]:
        return tuple(Ending(None, choice.num_logged) for choice in self.choices)

    def _terminal(self, runs: tuple[Run, ...], endings: tuple[Ending, ...]) -> Terminal:
        if not endings:
            endings = tuple(Ending(None, 0) for _ in range(self.request.payload.n))
        cached_tokens = 0 if self._candidates is None else self._candidates.cached_tokens
        usage = Usage(len(self.request.payload.prompt), sum(ending.tokens for ending in endings), cached_tokens)
        timings = self.times.terminal_made()
        return Terminal(endings, usage, runs, self.error, self._message or None, self._field, timings)

    def _choice(self, index: int) -> Choice:
        return Choice(index, self.request.payload, self.max_tokens, self._tokenizer)

    def _begin_attempt(self) -> None:
        """Start an attempt; ranked choices stay empty until their candidates have ended."""
        payload, sequences = self.request.payload, self.choices
        if payload.is_ranked:
            sequences = [self._choice(index) for index in range(Candidates.count(payload))]
            if self.continued:
                self.fail(
                    ErrorCode.ENGINE_ERROR,
                    "its log holds tokens before the terminal event, which ranked choices never have",
                )
        self._candidates = Candidates(self.id, payload, sequences, self._matcher)

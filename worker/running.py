"""One claimed request in this worker: its choices, its place in the reply log, and the next event to write there."""

from collections.abc import Collection
from itertools import count

from broker.claim import Claimed
from broker.fold import Fold
from broker.reply_log import ReplyLog
from engine import Request, Timeline
from schemas.errors import ErrorCode
from schemas.events import Ending, Event, Output, Run, Started, Terminal, Usage
from schemas.request import GenerationRequest
from schemas.seed import choice_seed, derived_seed
from telemetry.logs import trace_fields
from text.tokenizer import Tokenizer
from worker.choice import Choice
from worker.epoch_span import EpochSpan
from worker.times import Times

_attempts = count(1)
"""Numbers every submission to the engine, so that a late event of an abandoned one is told apart."""


class Running:
    """State of one request between its claim and its terminal event. Not thread-safe: it lives on the asyncio loop."""

    def __init__(
        self,
        claimed: Claimed,
        request: GenerationRequest,
        *,
        max_tokens: int,
        tokenizer: Tokenizer | None,
        claimed_ms: int,
    ) -> None:
        """`claimed_ms` is the server's clock at the claim, Unix time; `max_tokens` is resolved."""
        self.claimed = claimed
        self.ref = claimed.ref
        self.request = request
        self.max_tokens = max_tokens
        self.log: ReplyLog | None = None
        self.last_epoch = 0
        self.closed = False
        self.choices: list[Choice] = []
        self.times = Times(claimed.ref.order[0], claimed_ms)
        self.span: EpochSpan | None = None
        """Of the epoch that is open or being opened."""
        self.continued = False
        """Whether its choices go on from tokens that somebody else wrote."""
        self._tokenizer = tokenizer
        self.error: ErrorCode | None = None
        self._message = ""
        self._cached_tokens = 0
        payload = request.payload
        self._seed = derived_seed(request.id) if payload.seed is None else payload.seed
        self._engine_requests: list[Request] = []

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    def log_fields(self, **more: object) -> dict[str, object]:
        """`extra` of a log line about this request: its id, `more`, and its trace."""
        return {"request": self.id, **more, **({} if self.span is None else trace_fields(self.span.context))}

    def started(self, worker: str, model: str) -> Started:
        """The event that opens an epoch of this request."""
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
        )

    def attached(self, log: ReplyLog, fold: Fold, eos_token_ids: Collection[int]) -> bool:
        """Continue from the log just read; True when the engine must (re)start because the log says something else.

        Where this worker's own tokens extend the log, only what is missing there is published and the engine goes on
        undisturbed. Otherwise the log is adopted: what stands in it is what clients may have seen.
        """
        self.log = log
        if fold.first_seed is not None:
            self._seed = fold.first_seed
        logged = [fold.tokens[index] if index < len(fold.tokens) else [] for index in range(self.request.payload.n)]
        if self.choices and all(choice.extends(tokens) for choice, tokens in zip(self.choices, logged, strict=True)):
            for choice, tokens in zip(self.choices, logged, strict=True):
                choice.num_logged = len(tokens)
            return False
        self.continued = any(logged)
        self.choices = []
        for index, tokens in enumerate(logged):
            choice = Choice(index, self.request.payload, self.max_tokens, self._tokenizer)
            choice.adopt(tokens, eos_token_ids)
            choice.engine_id = f"{self.id}#{index}@{next(_attempts)}"
            self.choices.append(choice)
        return True

    def engine_requests(self) -> list[Request]:
        """What the engine has to run: every choice that has not ended, continued from its logged tokens.

        New ones with every call, which begins another attempt.
        """
        payload = self.request.payload
        self._engine_requests = [
            Request(
                id=choice.engine_id,
                prompt_ids=payload.prompt,
                sampling=payload.sampling,
                max_tokens=self.max_tokens,
                output_ids=tuple(choice.tokens),
                seed=choice_seed(self._seed, choice.index),
            )
            for choice in self.choices
            if choice.ending is None
        ]
        return self._engine_requests

    @property
    def timelines(self) -> list[Timeline]:
        """What the engine noted of the current attempt, per choice; its thread goes on writing there."""
        return [request.timeline for request in self._engine_requests]

    @property
    def num_logged(self) -> int:
        """Output tokens that stand in the log, of all choices."""
        return sum(choice.num_logged for choice in self.choices)

    def engine_ids(self) -> list[str]:
        """Ids under which the engine knows the choices of the current attempt."""
        return [choice.engine_id for choice in self.choices]

    def fail(self, code: ErrorCode, message: str) -> None:
        """End the request before its time; the first reason wins."""
        if self.error is None:
            self.error, self._message = code, message

    @property
    def ended(self) -> bool:
        """Whether the next event is the terminal one."""
        return self.error is not None or (bool(self.choices) and all(choice.ending for choice in self.choices))

    def token_arrived(self, cached_tokens: int) -> None:
        """Stamp the first token's time and note what a prefix cache saved."""
        self._cached_tokens = max(self._cached_tokens, cached_tokens)
        self.times.token_arrived()

    def next_event(self) -> Event | None:
        """The event to write next; None while there is nothing to say."""
        ended = self.ended
        runs = tuple(run for choice in self.choices if (run := choice.next_run(last=ended)) is not None)
        if ended:
            return self._terminal(runs)
        return Output(runs) if runs else None

    def logged(self, event: Event) -> bool:
        """`event` stands in the log; whether it brought the request's first token."""
        if not isinstance(event, Output | Terminal):
            return False
        for run in event.runs:
            self.choices[run.choice].num_logged = run.position + len(run.tokens)
        is_first = self.times.logged(tokens=bool(event.runs), terminal=isinstance(event, Terminal))
        return is_first and not self.continued

    def _terminal(self, runs: tuple[Run, ...]) -> Terminal:
        endings = tuple(choice.abandoned() for choice in self.choices)
        if not endings:
            endings = tuple(Ending(None, 0) for _ in range(self.request.payload.n))
        usage = Usage(len(self.request.payload.prompt), sum(ending.tokens for ending in endings), self._cached_tokens)
        return Terminal(endings, usage, runs, self.error, self._message or None, timings=self.times.terminal_made())

"""A worker without an engine: real protocol, answers scripted by the test, one step at a time if it wants to."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from orcastream.broker.attach import Attached, attach
from orcastream.broker.cancel import ControlReader, cancelled
from orcastream.broker.claim import Claimer
from orcastream.broker.claimed import Claimed
from orcastream.broker.cleanup import finish
from orcastream.broker.entry import EntryRef
from orcastream.broker.errors import BrokerError, LinkLost
from orcastream.broker.lane_waits import LaneWaits
from orcastream.broker.link import Link
from orcastream.broker.presence import Presence
from orcastream.broker.reply_log import append_many
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Ending, PromptRun, Run, Started, Terminal, Usage
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest, Payload
from orcastream.schemas.seed import derived_seed
from orcastream.schemas.stopping import FinishReason

log = logging.getLogger(__name__)

LEASE_MS = 60_000
RETENTION_MS = 600_000


class Gate:
    """Lets the worker publish a number of events; always open unless created with a number."""

    def __init__(self, events: int | None = None) -> None:
        self._left = events
        self._changed = asyncio.Condition()
        self.passed = 0

    async def open(self, events: int | None = None) -> None:
        """Let this number of further events pass; None means all."""
        async with self._changed:
            self._left = None if events is None or self._left is None else self._left + events
            self._changed.notify_all()

    async def pass_through(self) -> None:
        """Wait until an event may pass, and count it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._left is None or self._left > 0)
            self._left = None if self._left is None else self._left - 1
            self.passed += 1
            self._changed.notify_all()

    async def reached(self, events: int) -> None:
        """Wait until this number has passed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.passed >= events)


@dataclass
class Answer:
    """Tokens per choice, `group` of them per event, the last ones together with the end."""

    choices: list[list[int]]
    group: int = 1
    gate: Gate = field(default_factory=Gate)
    finish_reason: FinishReason = FinishReason.STOP
    text_length: int | None = None
    error: ErrorCode | None = None
    cached_tokens: int = 0
    logprobs: bool = False
    """Whether its runs have log probabilities: see `logprobs_of`."""
    traceparent: str | None = None
    """What the started event says of the worker's span."""
    cleanup_s: float = 0.0
    """How long after the terminal event its worker removes it from the queue."""

    def pending(self, done: list[list[int]]) -> list[tuple[Run, ...]]:
        """Return the events that the log still lacks."""
        events = []
        counts = [len(tokens) for tokens in done] + [0] * (len(self.choices) - len(done))
        while any(count < len(tokens) for count, tokens in zip(counts, self.choices, strict=True)):
            runs = []
            for number, tokens in enumerate(self.choices):
                new = tuple(tokens[counts[number] : counts[number] + self.group])
                if new:
                    items = tuple(logprobs_of(token, counts[number] + at) for at, token in enumerate(new))
                    runs.append(Run(number, counts[number], new, items if self.logprobs else None))
                    counts[number] += len(new)
            events.append(tuple(runs))
        return events


def logprobs_of(token: int, position: int) -> list[Any]:
    """Return made-up values: the chosen token, and it and the next one as the likeliest."""
    own = -0.5 - position
    return [own, [[token, own], [token + 1, own - 1]]]


def prompt_runs(payload: Payload, told: int) -> list[PromptRun]:
    """Return runs made up as in `logprobs_of`, two tokens per event, after the first `told`; none if not requested."""
    if payload.prompt_logprobs is None:
        return []
    items = [logprobs_of(token, position) if position else None for position, token in enumerate(payload.prompt)]
    ranks = (None, *[1] * (len(items) - 1))
    begins = range(told, len(items), 2)
    return [PromptRun(at, payload.prompt[at : at + 2], tuple(items[at : at + 2]), ranks[at : at + 2]) for at in begins]


class ScriptedWorker:
    """Claims everything and answers each request as `script` says."""

    def __init__(self, url: str, keys: Keys, script: Callable[[GenerationRequest], Answer], name: str = "scripted-1"):
        self.requests: list[GenerationRequest] = []
        self.fields: list[dict[bytes, bytes]] = []
        self.name = name
        self.paused = False
        self._url = url
        self._keys = keys
        self._script = script
        self._answers: dict[str, Answer] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._refs: set[EntryRef] = set()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "ScriptedWorker":
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._serve(ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for task in (self._task, *self._running.values()) if task]
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _serve(self, ready: asyncio.Event) -> None:
        while True:
            links: list[Link] = []
            try:
                for _ in range(2):
                    links.append(await Link.open(self._url, name=self.name))
                await self._session(links[0], links[1], ready)
            except (BrokerError, ResponseError) as error:
                if not isinstance(error, LinkLost) and "LOADING" not in str(error):
                    raise
                await asyncio.sleep(0.02)
            finally:
                for link in links:
                    await link.close()

    async def _session(self, link: Link, control: Link, ready: asyncio.Event) -> None:
        await Presence(link, self._keys, self.name).beat({"state": "ready"}, ttl_ms=600_000)
        claimer = Claimer(link, self._keys, self.name, lease_ms=LEASE_MS, retention_ms=RETENTION_MS, max_deliveries=3)
        reader = ControlReader(control, self._keys)
        await reader.begin(control)
        for claimed in await claimer.unknown(()):
            self._begin(link, claimed)
        watching = asyncio.create_task(self._watch_cancels(link, reader))
        waits = LaneWaits(link, self._keys, self.name)
        ready.set()
        try:
            while not watching.done():
                for claimed in await claimer.wait_for_work(waits, 1000):
                    self._begin(link, claimed)
            watching.result()
        finally:
            watching.cancel()
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(watching, *self._running.values(), return_exceptions=True)
            await waits.close()
            self._running.clear()

    async def _watch_cancels(self, link: Link, reader: ControlReader) -> None:
        while True:
            for control in await reader.read(1000):
                task = self._running.get(control.target)
                if task is not None and await cancelled(link, self._keys, [control.target]):
                    self._answers[control.target].error = ErrorCode.CANCELLED
                    await self._answers[control.target].gate.open()

    def _begin(self, link: Link, claimed: Claimed) -> None:
        request = GenerationRequest.from_fields(claimed.fields, stream_class=claimed.ref.priority_class, now_ms=2**50)
        self.requests.append(request)
        self.fields.append(claimed.fields)
        answer = self._answers.get(request.id) or self._script(request)
        self._answers[request.id] = answer
        self._running[request.id] = asyncio.create_task(self._answer(link, claimed, request, answer))

    async def _answer(self, link: Link, claimed: Claimed, request: GenerationRequest, answer: Answer) -> None:
        try:
            await self._write(link, claimed, request, answer)
        except BrokerError as error:
            log.info("%s: %s", request.id, error)
        except Exception:
            log.exception("the scripted worker failed")

    async def _write(self, link: Link, claimed: Claimed, request: GenerationRequest, answer: Answer) -> None:
        payload = request.payload
        started = Started(
            worker=self.name,
            model=self._keys.model,
            tenant=payload.tenant,
            priority_class=request.priority_class,
            entry=str(claimed.ref),
            seed=derived_seed(request.id),
            prompt_tokens=len(payload.prompt),
            n=payload.n,
            traceparent=answer.traceparent,
            answer_format=payload.answer_format,
            prompt_logprobs=payload.prompt_logprobs,
        )
        attached = await attach(
            link,
            self._keys,
            request_id=request.id,
            worker=self.name,
            started=started,
            ref=claimed.ref,
            form=request.form,
            log_expire_at_ms=request.deadline_ms + RETENTION_MS,
            retention_ms=RETENTION_MS,
        )
        if not isinstance(attached, Attached):
            return
        for told in prompt_runs(payload, attached.fold.prompt_told):
            await answer.gate.pass_through()
            await append_many([(attached.log, told)])
        events = answer.pending(attached.fold.tokens)
        done = [len(tokens) for tokens in attached.fold.tokens]
        for runs in events[:-1]:
            await answer.gate.pass_through()
            if answer.error is not None:
                break
            await attached.log.append(runs)
            for run in runs:
                done[run.choice] += len(run.tokens)
        else:
            await answer.gate.pass_through()
            if answer.error is None and events:
                done = [len(tokens) for tokens in answer.choices]
        last = () if answer.error is not None or not events else events[-1]
        terminal = Terminal(
            endings=tuple(self._ending(answer, count) for count in done),
            usage=Usage(len(payload.prompt), sum(done), answer.cached_tokens),
            runs=last,
            error=answer.error,
            message=f"the script says {answer.error}" if answer.error else None,
        )
        await attached.log.end(terminal)
        await asyncio.sleep(answer.cleanup_s)
        await finish(
            link,
            self._keys,
            request_id=request.id,
            tenant=request.payload.tenant,
            ref=claimed.ref,
            terminal=terminal,
            retention_ms=RETENTION_MS,
        )

    @staticmethod
    def _ending(answer: Answer, tokens: int) -> Ending:
        if answer.error is not None:
            return Ending(None, tokens)
        return Ending(answer.finish_reason, tokens, answer.text_length)

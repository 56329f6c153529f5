"""Many clients at once: open loop, where requests come when they come, and closed loop, where each client waits."""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, nullcontext, suppress

from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.serve.client import Client
from orcastream.bench.workloads import SampleRequest, continued, token_ids

_TIMER_S = 0.001
"""So late can a timer of asyncio be, whose epoll counts milliseconds."""


class Stop:
    """Asks for no more requests; those that are under way end."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """No more requests from now on."""
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    async def within(self, seconds: float, *, exactly: bool = False) -> bool:
        """Wait that long; True as soon as it is set. `exactly`: to the tenth of a millisecond, for one of computing."""
        until = time.monotonic() + seconds
        timer_s = seconds - _TIMER_S if exactly else seconds
        if timer_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(timer_s):
                    await self._event.wait()
        while exactly and not self and time.monotonic() < until:  # noqa: ASYNC110 - nothing is polled: time is spent
            await asyncio.sleep(0)
        return bool(self)


class _Asked:
    """The requests so far by index, for those that follow them. Appends each outcome to `outcomes` when it ends."""

    def __init__(self, client: Client, outcomes: list[Outcome], stop: Stop, most_at_once: int | None = None) -> None:
        self._client = client
        self._outcomes = outcomes
        self._stop = stop
        self._has_bound = most_at_once is not None
        self._places = asyncio.Semaphore(most_at_once) if most_at_once else nullcontext()
        self._ended: dict[int, asyncio.Future[Outcome]] = {}

    def expect(self, index: int) -> None:
        """A request of that index has been taken up."""
        self._ended[index] = asyncio.get_running_loop().create_future()

    def has_ended(self, index: int) -> bool:
        """Whether what was taken up has come to its end."""
        return self._ended[index].done()

    async def ask(self, index: int, request: SampleRequest, due_s: float | None, wait: bool = True) -> None:
        """Ask once what the request follows has ended, and, with `wait`, its time has come."""
        if request.follows is not None:
            before = await self._ended[request.follows]
            due_s = time.monotonic() + (request.arrival_s if wait else 0.0)
            if await self._stop.within(due_s - time.monotonic()):
                self._ended[index].set_result(before)  # so that what follows this one sees the end, too
                return
            request = _follow(request, before)
        async with self._places:
            if self._has_bound and self._stop:
                self._ended[index].set_result(Outcome(request, time.monotonic()))  # what follows it sees the end, too
                return
            outcome = await self._client.ask(request, due_s)
        self._outcomes.append(outcome)
        self._ended[index].set_result(outcome)


def _follow(request: SampleRequest, before: Outcome) -> SampleRequest:
    """The API gives an answer's text and not its token ids: as many random ones stand for it in the next prompt."""
    if not request.continues:
        return request
    prompt = token_ids(before.request)
    rng = random.Random(f"answer {len(prompt)} {before.tokens}")
    return continued(request, prompt, rng.choices(prompt, k=before.tokens))


async def open_loop(
    client: Client,
    requests: Iterable[SampleRequest],
    outcomes: list[Outcome],
    stop: Stop,
    *,
    concurrency: int | None = None,
    exactly: bool = False,
) -> None:
    """Ask for each request at its arrival, whether or not earlier answers have come.

    With `concurrency` at most that many are under way; a request that waits for a place has arrived all the same.
    `exactly` takes up to a millisecond of computing per arrival: for few of them, where a part of one counts. Returns
    when all have ended.
    """
    begun = time.monotonic()
    asked = _Asked(client, outcomes, stop, concurrency)
    async with _group() as tasks:
        for index, request in enumerate(requests):
            due = None if request.follows is not None else begun + request.arrival_s
            if due is not None and await stop.within(due - time.monotonic(), exactly=exactly):
                break
            asked.expect(index)
            tasks.add(asyncio.create_task(asked.ask(index, request, due)))


async def closed_loop(
    client: Client,
    requests: Iterable[SampleRequest],
    outcomes: list[Outcome],
    stop: Stop,
    *,
    concurrency: int,
    duration_s: float = float("inf"),
) -> None:
    """`concurrency` clients, each of which asks for the next request as soon as it has its answer, for `duration_s`.

    A request that follows one under way is left for later: nobody waits for it as long as there are others.
    """
    until = time.monotonic() + duration_s
    asked = _Asked(client, outcomes, stop)
    left = enumerate(requests)
    ready: deque[tuple[int, SampleRequest]] = deque()
    later: dict[int, list[tuple[int, SampleRequest]]] = {}

    def taken() -> tuple[int, SampleRequest] | None:
        if ready:
            return ready.popleft()
        for index, request in left:
            asked.expect(index)
            if request.follows is None or asked.has_ended(request.follows):
                return index, request
            later.setdefault(request.follows, []).append((index, request))
        for followers in later.values():
            if followers:
                return followers.pop(0)
        return None

    async def one_after_another() -> None:
        while time.monotonic() < until and not stop and (one := taken()):
            await asked.ask(*one, None, wait=False)
            ready.extend(later.pop(one[0], ()))

    async with _group() as tasks:
        tasks.update(asyncio.create_task(one_after_another()) for _ in range(concurrency))


@asynccontextmanager
async def _group() -> AsyncIterator[set["asyncio.Task[None]"]]:
    """Tasks that are awaited at the end, or cancelled where the caller is."""
    tasks: set[asyncio.Task[None]] = set()
    try:
        yield tasks
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

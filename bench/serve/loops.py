"""Many concurrent clients: open loop with independent arrivals, and closed loop, where each client waits."""

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
"""Maximum lateness of an asyncio timer, because epoll counts milliseconds."""


class Stop:
    """A signal to send no more requests; running ones end."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Send no more requests from now on."""
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    async def within(self, seconds: float, *, exactly: bool = False) -> bool:
        """Wait that long; return True as soon as it is set. `exactly`: to 0.1 ms, at the cost of 1 ms of CPU time."""
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
    """The requests so far by index, for those that follow them; each outcome is appended to `outcomes` at its end."""

    def __init__(self, client: Client, outcomes: list[Outcome], stop: Stop, most_at_once: int | None = None) -> None:
        self._client = client
        self._outcomes = outcomes
        self._stop = stop
        self._has_bound = most_at_once is not None
        self._places = asyncio.Semaphore(most_at_once) if most_at_once else nullcontext()
        self._ended: dict[int, asyncio.Future[Outcome]] = {}

    def expect(self, index: int) -> None:
        """Announce a request with that index."""
        self._ended[index] = asyncio.get_running_loop().create_future()

    def has_ended(self, index: int) -> bool:
        """Return whether an announced request has ended."""
        return self._ended[index].done()

    async def ask(self, index: int, request: SampleRequest, due_s: float | None, wait: bool = True) -> None:
        """Send a request once its predecessor has ended and, with `wait`, its time has come."""
        if request.follows is not None:
            before = await self._ended[request.follows]
            due_s = time.monotonic() + (request.arrival_s if wait else 0.0)
            if await self._stop.within(due_s - time.monotonic()):
                self._ended[index].set_result(before)  # so that its successors see the end, too
                return
            request = _follow(request, before)
        async with self._places:
            if self._has_bound and self._stop:
                self._ended[index].set_result(Outcome(request, time.monotonic()))  # successors see the end, too
                return
            outcome = await self._client.ask(request, due_s)
        self._outcomes.append(outcome)
        self._ended[index].set_result(outcome)


def _follow(request: SampleRequest, before: Outcome) -> SampleRequest:
    """Return the continued request; random token ids replace the answer's, because the API returns only its text."""
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
    """Send each request at its arrival, independent of earlier answers.

    With `concurrency`, at most that many run at once; a request that waits for a slot counts as arrived. `exactly`
    takes up to a millisecond of CPU time per arrival: use it for few arrivals, where fractions of one matter. Returns
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
    """Run `concurrency` clients for `duration_s`, each of which sends the next request when it has its answer.

    A request that follows a running one is postponed: no client waits for it while there are others.
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
    """Yield a set of tasks that are awaited at the end, or canceled with the caller."""
    tasks: set[asyncio.Task[None]] = set()
    try:
        yield tasks
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""The load: requests of mixed lengths, classes and behaviors, over HTTP and directly to Redis."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.chaos import wire
from tests.chaos.cancelling import cancel
from tests.chaos.catalogue import Catalogue
from tests.chaos.http_client import HttpClient, Left, Reply
from tests.chaos.questions import MAX_TOKENS
from tests.chaos.record import Recorder, Seen
from tests.chaos.redis_client import RedisClient, unreadable_entry
from tests.chaos.response_client import ResponseReply

GRACE_S = 2.0
"""How long a client may be away before its request is cancelled, unless it says otherwise: the gateway's default."""
TIMEOUT_S = 120.0
_LATE_S = 20.0
"""How long after its deadline a client waits for the end of its request."""
_MOST_AT_ONCE = 24
_FIXED = 0.35
"""Share of the requests that ask a fixed question."""
_ENDPOINTS = {"completions": "cmpl-", "chat": "chatcmpl-", "responses": "resp_"}
"""For the other requests over HTTP, with the beginnings of their ids."""
_SHARES = (0.65, 0.2, 0.15)
_FINISHED = frozenset({"finished"})


class Load:
    """Sends requests until `until`, on average `rate` per second; all randomness comes from `rng`."""

    def __init__(
        self,
        http: HttpClient,
        redis: RedisClient,
        recorder: Recorder,
        catalogue: Catalogue,
        rng: Random,
        behaviours: Sequence[str],
    ) -> None:
        self.http = http
        self.redis = redis
        self.recorder = recorder
        self._catalogue = catalogue
        self._rng = rng
        self._behaviours = behaviours
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    async def run(self, rate: float, until: float) -> None:
        """Send requests; return at `until` (monotonic), while the last requests still run."""
        weights = [BEHAVIOURS[name].weight for name in self._behaviours]
        while time.monotonic() < until:
            await asyncio.sleep(self._rng.expovariate(rate))
            client = self._new_client(self._rng.choices(self._behaviours, weights)[0])
            if len(self._tasks) < _MOST_AT_ONCE:
                self._start(client)

    async def wait(self, timeout_s: float) -> list[str]:
        """Wait until all clients are done; return the ids of those that are not."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        unfinished = [task.get_name() for task in self._tasks]
        await cancel(self._tasks)
        return unfinished

    def _start(self, client: "Client") -> None:
        self.recorder.add(client.seen)
        behaviour = BEHAVIOURS[client.seen.behaviour]
        task = asyncio.create_task(behaviour.act(client), name=client.seen.id)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            seen = self.recorder.requests[task.get_name()]
            seen.problems.append(("client_error", repr(error)))
            seen.end("client error")

    def _new_client(self, name: str) -> "Client":
        """Draw everything random about a request here, so that one seed gives one load."""
        rng, behaviour = Random(self._rng.random()), BEHAVIOURS[name]
        self._number += 1
        asked = self._catalogue.questions
        fixed, endpoint = rng.random() < _FIXED, rng.choices(list(_ENDPOINTS), _SHARES)[0]
        number = rng.choice([at for at, question in enumerate(asked) if question.fixed == fixed])
        question, compared = asked[number].payload, True
        if fixed:
            payload = behaviour.payload | question
        else:
            chosen = _chosen(rng)
            compared = chosen["temperature"] == 0.0
            payload = question | chosen | behaviour.payload
        if fixed or name.startswith("redis") or (endpoint == "responses" and name == "whole"):
            endpoint = "completions"
        if endpoint != "completions":
            del payload["prompt"]
            text, compared = self._catalogue.text(question["prompt"]), False
        if endpoint == "chat":
            payload["messages"] = [{"role": "user", "content": text}]
        elif endpoint == "responses":
            payload["input"] = text
            payload.pop("n", None)
        seen = Seen(
            id=f"{_ENDPOINTS[endpoint]}chaos-{self._number:05d}",
            behaviour=name,
            payload=payload,
            allowed=behaviour.allowed,
            question=number if compared else None,
        )
        return Client(self, seen, rng.choice(wire.CLASSES), rng)


def _chosen(rng: Random) -> dict[str, Any]:
    """Choose the parameters of a plain question."""
    chosen: dict[str, Any] = {"max_tokens": rng.choice((8, 40, 120, 300, MAX_TOKENS)), "temperature": 0.0}
    if rng.random() < 0.2:
        chosen |= {"temperature": 0.9, "top_p": 0.9, "seed": rng.randrange(2**31)}
    if rng.random() < 0.1:
        chosen["n"] = 2
    return chosen | {"ignore_eos": rng.random() >= 0.15}


class Client:
    """One request, handled by one behavior."""

    def __init__(self, load: Load, seen: Seen, priority_class: str, rng: Random) -> None:
        self.http = load.http
        self.redis = load.redis
        self.recorder = load.recorder
        self.seen = seen
        self.priority_class = priority_class
        self.rng = rng

    def reply(self, timeout_s: float = TIMEOUT_S) -> Reply:
        """Return a reader over HTTP that has not sent its request yet."""
        kind = ResponseReply if "input" in self.seen.payload else Reply
        return kind(self.http, self.seen, self.priority_class, timeout_s)

    @property
    def until(self) -> float:
        """Return when a client stops trying (monotonic)."""
        return (self.seen.posted_at or time.monotonic()) + TIMEOUT_S + _LATE_S

    async def post(self, timeout_s: float = TIMEOUT_S, *, times: int = 1) -> None:
        """Post the request to Redis."""
        await self.redis.post(self.seen, self.priority_class, timeout_s, times=times)

    async def follow(self, num_tokens: int | None = None) -> None:
        """Read the reply from Redis."""
        await self.redis.follow(self.seen, until=self.until, num_tokens=num_tokens)


async def _stay(client: Client) -> None:
    await client.reply().read(until=client.until)


async def _flit(client: Client) -> None:
    """Leave and return in time, occasionally to the other gateway."""
    reply = client.reply()
    for _ in range(client.rng.randint(1, 3)):
        try:
            await reply.read(leave_after=client.rng.randint(1, 12), until=client.until)
            return
        except Left:
            await asyncio.sleep(client.rng.uniform(0.1, 0.6) * GRACE_S)
            if client.rng.random() < 0.7:
                reply.move()
    await reply.read(until=client.until)


async def _return(client: Client) -> None:
    """Leave for longer than the grace period, having asked for the request to continue."""
    reply = client.reply()
    try:
        await reply.read(leave_after=client.rng.randint(1, 8), until=client.until)
    except Left:
        await asyncio.sleep(client.rng.uniform(1.2, 3) * GRACE_S)
        await reply.read(until=client.until)


async def _leave(client: Client) -> None:
    try:
        await client.reply().read(leave_after=client.rng.randint(1, 8), until=client.until)
    except Left:
        client.seen.end("left")


async def _cancel(client: Client) -> None:
    reply = client.reply()
    try:
        await reply.read(leave_after=client.rng.randint(1, 6), until=client.until)
    except Left:
        if await client.http.delete(client.seen.id, client.until):
            await client.recorder.note_cancel(client.seen)
        await reply.read(until=client.until)


async def _expire(client: Client) -> None:
    await client.reply(client.rng.uniform(0.2, 1.0)).read(until=client.until)


async def _post(client: Client) -> None:
    await client.post()
    await client.follow()


async def _post_twice(client: Client) -> None:
    await client.post(times=2)
    await client.follow()


async def _post_and_cancel(client: Client) -> None:
    await client.post()
    await client.follow(client.rng.randint(0, 20))
    if client.seen.ended is None and await client.redis.cancel(client.seen.id, client.until):
        await client.recorder.note_cancel(client.seen)
    await client.follow()


async def _post_and_expire(client: Client) -> None:
    await client.post(client.rng.uniform(0.2, 1.0))
    await client.follow()


async def _post_nonsense(client: Client) -> None:
    deadline_ms = int((time.time() + TIMEOUT_S) * 1000)
    await client.redis.post_raw(client.seen, unreadable_entry(client.seen.id, deadline_ms))
    await client.follow()


async def _post_watched(client: Client) -> None:
    """Let an onlooker read the answer over HTTP briefly; when it leaves, this does not count as a lost client."""
    await client.post()
    await client.follow(1)
    onlooker = Seen(client.seen.id, "onlooker", {}, client.seen.allowed)
    onlooker.accept()
    try:
        reply = Reply(client.http, onlooker, client.priority_class, TIMEOUT_S)
        await reply.read(leave_after=2, until=time.monotonic() + 2)
    except Left:
        pass
    await client.follow()


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a client does, how often, and which ends its own actions explain. Names with `redis` read from Redis."""

    weight: int
    act: Callable[[Client], Coroutine[Any, Any, None]]
    allowed: frozenset[str]
    payload: dict[str, Any]


def _behaviour(
    weight: int, act: Callable[[Client], Coroutine[Any, Any, None]], *ends: str, **payload: Any
) -> Behaviour:
    return Behaviour(weight, act, _FINISHED.union(ends), payload)


_LONG = {"max_tokens": MAX_TOKENS, "ignore_eos": True}

BEHAVIOURS: dict[str, Behaviour] = {
    "stay": _behaviour(26, _stay),
    "whole": _behaviour(10, _stay),
    "flit": _behaviour(12, _flit, max_tokens=MAX_TOKENS),
    "return": _behaviour(6, _return, max_tokens=MAX_TOKENS, on_disconnect="continue"),
    "leave": _behaviour(5, _leave, "cancelled"),
    "cancel": _behaviour(7, _cancel, "cancelled", **_LONG),
    "expire": _behaviour(3, _expire, "expired"),
    "redis": _behaviour(16, _post),
    "redis-twice": _behaviour(4, _post_twice),
    "redis-cancel": _behaviour(5, _post_and_cancel, "cancelled", **_LONG),
    "redis-expire": _behaviour(2, _post_and_expire, "expired"),
    "redis-nonsense": _behaviour(1, _post_nonsense, "invalid_request"),
    "redis-watched": _behaviour(3, _post_watched, **_LONG),
}

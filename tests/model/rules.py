"""What may happen next: the rules of docs/protocol.md, and the faults that they must withstand.

Each step is atomic: one command, one script, one computation. A worker may be slow between any two of its steps, which
models a pause.
"""

from collections.abc import Iterator

from tests.model.state import LENGTH, Client, Event, Redis, State, Worker, fold

Step = tuple[str, State]
"""What happened, in words, and the state after it."""

BROKEN_RULES = {
    "no fencing": "events carry no epoch that Redis compares: every write gets in",
    "no reading": "a worker that takes over goes on without reading the log",
    "ack first": "the entry is acknowledged before the terminal is written",
    "write again": "a write whose outcome is unknown is repeated",
    "epoch outlives connection": "a broken connection does not end an epoch",
    "ack after a refusal": "a worker whose terminal was refused acknowledges the entry all the same",
    "no second look": "after the fence nobody asks again whose the entry is, nor whether the log has ended",
    "nobody checks for loss": "a gateway does not look after what it accepted",
}


class Rules:
    """The protocol; `broken` names an omitted rule."""

    def __init__(self, broken: str | None = None) -> None:
        self._broken = broken

    def steps(self, state: State) -> Iterator[Step]:
        """Yield everything that may happen next."""
        for worker in state.workers:
            yield from self._worker_steps(state, worker)
        yield from self._gateway_steps(state)
        yield from self._misfortunes(state)

    def _worker_steps(self, state: State, worker: Worker) -> Iterator[Step]:
        match worker.phase:
            case "idle":
                yield from self._claim(state, worker)
            case "detached":
                yield self._choose(state, worker)
            case "chosen":
                yield self._fence(state, worker)
            case "fenced":
                yield self._read(state, worker)
            case "running":
                yield from self._run(state, worker)
            case "ending":
                yield self._clean_up(state, worker)

    def _claim(self, state: State, worker: Worker) -> Iterator[Step]:
        """Claim a waiting entry, one with an expired lease, or one under the worker's name that it does not run."""
        redis = state.redis
        if redis.entry and (redis.owner in ("", worker.name) or not redis.leased):
            claimed = state._replace(redis=redis._replace(owner=worker.name, leased=True))
            changes = {"phase": "detached", "entry": redis.entry, "tokens": "", "logged": 0}
            yield f"{worker.name} claims", claimed.with_worker(worker, **changes)

    def _choose(self, state: State, worker: Worker) -> Step:
        """The first look at the log, before anything is written."""
        redis = state.redis
        if redis.has_ended:
            return f"{worker.name} finds the end", state.with_worker(worker, phase="ending")
        if not redis.is_mine(worker):
            return f"{worker.name} lets go", state.idle(worker)
        if self._broken == "no fencing":
            return f"{worker.name} reads", self._adopt(state, worker._replace(epoch=1, index=0))
        epoch = max(redis.newest[0], worker.epoch, state.used if state.has_lost else 0) + 1
        return f"{worker.name} chooses epoch {epoch}", state.with_worker(worker, phase="chosen", epoch=epoch)

    def _fence(self, state: State, worker: Worker) -> Step:
        redis = state.redis.add(Event(worker.epoch, 0, "started"))
        if redis is None:
            return f"{worker.name} is refused its epoch", state.with_worker(worker, phase="detached", index=0)
        begun = state._replace(redis=redis, used=max(state.used, worker.epoch))
        return f"{worker.name} begins epoch {worker.epoch}", begun.with_worker(worker, phase="fenced", index=0)

    def _read(self, state: State, worker: Worker) -> Step:
        """The look after the fence: is there an end, is the entry still this worker's, did a rival intervene?"""
        redis = state.redis
        if self._broken != "no second look":
            if redis.has_ended:
                return f"{worker.name} finds the end", state.with_worker(worker, phase="ending")
            if not redis.is_mine(worker):
                return f"{worker.name} lets go", state.idle(worker)
            if redis.newest[0] > worker.epoch:
                return f"{worker.name} was overtaken", state.with_worker(worker, phase="detached", index=0)
        return f"{worker.name} reads", self._adopt(state, worker)

    def _adopt(self, state: State, worker: Worker) -> State:
        """Keep the worker's own tokens that extend the log; otherwise the log is authoritative."""
        logged, _ = fold(state.redis.log)
        if self._broken == "no reading":
            logged = worker.tokens[: worker.logged]
        tokens = worker.tokens if worker.tokens.startswith(logged) else logged
        return state.with_worker(worker, phase="running", epoch=worker.epoch, tokens=tokens, logged=len(logged))

    def _run(self, state: State, worker: Worker) -> Iterator[Step]:
        ended = len(worker.tokens) == LENGTH
        if not ended:
            yield f"{worker.name} computes", state.with_worker(worker, tokens=worker.tokens + worker.name)
        if len(worker.tokens) > worker.logged or ended:
            if ended and self._broken == "ack first":
                state = state._replace(redis=_without_entry(state.redis, worker))
            yield self._publish(state, worker, ended=ended)
            if state.budget.has("cuts"):
                yield self._publish_into_the_dark(state, worker, ended=ended)

    def _publish(self, state: State, worker: Worker, *, ended: bool) -> Step:
        kind, new = "end" if ended else "tokens", worker.tokens[worker.logged :]
        redis = self._append(state.redis, worker, kind)
        if redis is None and ended and self._broken == "ack after a refusal":
            return f"{worker.name} is refused its end", state.with_worker(worker, phase="ending")
        if redis is None:
            return f"{worker.name} is refused", state.with_worker(worker, phase="detached", index=0)
        phase = "ending" if ended else "running"
        published = state._replace(redis=redis)
        changes = {"phase": phase, "index": worker.index + 1, "logged": len(worker.tokens)}
        return f"{worker.name} writes {kind} {new}", published.with_worker(worker, **changes)

    def _publish_into_the_dark(self, state: State, worker: Worker, *, ended: bool) -> Step:
        """The write arrives, but its reply does not."""
        kind = "end" if ended else "tokens"
        redis = self._append(state.redis, worker, kind) or state.redis
        cut = state._replace(redis=redis, budget=state.budget.less("cuts"))
        words = f"{worker.name} writes {kind} {worker.tokens[worker.logged :]} and never hears of it"
        if self._broken == "write again":
            return words, cut.with_worker(worker, index=worker.index + 1)
        return words, cut.with_worker(worker, phase="detached", index=0)

    def _append(self, redis: Redis, worker: Worker, kind: str) -> Redis | None:
        new = worker.tokens[worker.logged :]
        if self._broken == "no fencing":
            return redis._replace(log=(*redis.log, Event(1, len(redis.log), kind, worker.logged, new)))
        return redis.add(Event(worker.epoch, worker.index + 1, kind, worker.logged, new))

    def _clean_up(self, state: State, worker: Worker) -> Step:
        cleaned = state._replace(redis=_without_entry(state.redis, worker))
        return f"{worker.name} acknowledges", cleaned.idle(worker)

    def _gateway_steps(self, state: State) -> Iterator[Step]:
        """The gateway reads for its client, and checks for losses: first the entry, then the log."""
        client, redis = state.client, state.redis
        if client.status == "reading":
            yield "the gateway reads", state._replace(client=_read_on(state))
        if self._broken == "nobody checks for loss":
            return
        if not client.suspects and not redis.entry:
            yield "the gateway misses the entry", state._replace(client=client._replace(suspects=True))
        if client.suspects:
            calm = state._replace(client=client._replace(suspects=False))
            if not redis.entry and not redis.has_ended:
                number = state.entries + 1
                again = redis._replace(entry=number, owner="", leased=False)
                yield "the gateway enqueues again", calm._replace(redis=again, entries=number)
            else:
                yield "the gateway finds nothing lost", calm

    def _misfortunes(self, state: State) -> Iterator[Step]:
        redis, budget = state.redis, state.budget
        owner = next((one for one in state.workers if one.name == redis.owner), None)
        if redis.entry and redis.leased and owner is not None:
            expired = state._replace(redis=redis._replace(leased=False))
            if owner.phase == "gone":
                yield "the lease of one that is gone runs out", expired
            elif budget.has("pauses"):
                yield f"{owner.name} pauses beyond its lease", expired._replace(budget=budget.less("pauses"))
        for worker in state.workers:
            if worker.phase not in ("idle", "gone"):
                yield from self._befalls(state, worker)
        if budget.has("losses"):
            if state.saved != redis:
                yield "Redis saves", state._replace(saved=redis)
            yield "Redis comes back with what it saved", self._lose(state)

    def _befalls(self, state: State, worker: Worker) -> Iterator[Step]:
        budget = state.budget
        if budget.has("departures"):
            fewer = state._replace(budget=budget.less("departures"))
            yield f"{worker.name} dies", fewer.idle(worker, "gone")
            redis = state.redis._replace(leased=False) if state.redis.is_mine(worker) else state.redis
            yield f"{worker.name} drains", fewer._replace(redis=redis).idle(worker, "gone")
        if budget.has("cuts") and worker.phase != "detached":
            fewer = state._replace(budget=budget.less("cuts"))
            yield f"{worker.name} loses its connection", self._disconnect(fewer, worker)

    def _lose(self, state: State) -> State:
        budget = state.budget.less("losses")
        lost = state._replace(redis=state.saved, budget=budget, saved=Redis(), has_lost=True)
        for worker in state.workers:
            if worker.phase not in ("idle", "gone"):
                lost = self._disconnect(lost, worker)
        return lost

    def _disconnect(self, state: State, worker: Worker) -> State:
        """A worker notices that its connection broke: its epoch ends."""
        if self._broken == "epoch outlives connection":
            return state
        return state.with_worker(worker, phase="detached", index=0)


def _without_entry(redis: Redis, worker: Worker) -> Redis:
    """XACK and XDEL, which do not check the owner."""
    return redis._replace(entry=0, owner="", leased=False) if redis.entry == worker.entry else redis


def _read_on(state: State) -> Client:
    client = state.client
    tokens, contradicts = fold(state.redis.log)
    common = min(len(tokens), len(client.delivered))
    if contradicts or tokens[:common] != client.delivered[:common]:
        return client._replace(status="conflict")
    delivered = max(tokens, client.delivered, key=len)
    if not state.redis.has_ended:
        return client._replace(delivered=delivered)
    return client._replace(delivered=delivered, status="finished" if delivered == tokens else "conflict")

"""The world of the model: one request, its entry and its reply log in Redis, two workers, one gateway with a client."""

from typing import Any, NamedTuple

LENGTH = 2
"""Tokens of the answer."""
WORKERS = "ab"
"""Each computes tokens of its own letter: nobody's arithmetic is anybody else's, so that a change shows."""


class Event(NamedTuple):
    """An entry of the reply log, `epoch-index`. `kind`: started, tokens or end; an end carries the last tokens."""

    epoch: int
    index: int
    kind: str
    position: int = 0
    tokens: str = ""

    @property
    def id(self) -> tuple[int, int]:
        """The id that Redis compares."""
        return self.epoch, self.index


class Redis(NamedTuple):
    """`entry` is the number of the queue entry, 0 if there is none; `owner` holds its lease, '' if it waits."""

    entry: int = 0
    owner: str = ""
    leased: bool = False
    log: tuple[Event, ...] = ()

    @property
    def newest(self) -> tuple[int, int]:
        """The id of the newest event."""
        return self.log[-1].id if self.log else (0, 0)

    @property
    def has_ended(self) -> bool:
        """Whether the log contains a terminal."""
        return any(event.kind == "end" for event in self.log)

    def is_mine(self, worker: "Worker") -> bool:
        """Whether a worker holds the entry that it works on."""
        return self.entry != 0 and self.entry == worker.entry and self.owner == worker.name

    def add(self, event: Event) -> "Redis | None":
        """XADD with an id; None if Redis refuses it. Only a started event may create the stream."""
        refused = event.id <= self.newest or (not self.log and event.kind != "started")
        return None if refused else self._replace(log=(*self.log, event))


class Worker(NamedTuple):
    """`phase`: idle; detached (has the request, but no epoch); chosen (knows the number of its next epoch); fenced (has
    begun it); running (has read the log); ending (the terminal is written); gone.
    """

    name: str
    phase: str = "idle"
    entry: int = 0
    epoch: int = 0
    index: int = 0
    tokens: str = ""
    logged: int = 0
    """How many of its tokens stand in the log, as far as it knows."""


class Client(NamedTuple):
    """What the gateway delivered to its client. `status`: reading, finished or conflict. `suspects`: the entry was gone
    when the gateway checked.
    """

    delivered: str = ""
    status: str = "reading"
    suspects: bool = False


class Budget(NamedTuple):
    """How many faults may still occur, in total and of each kind: a lease that expires under a live worker (it pauses),
    a connection that breaks, a worker that dies or drains, Redis that loses its tail.
    """

    total: int
    pauses: int = 2
    cuts: int = 1
    departures: int = 1
    losses: int = 1

    def has(self, kind: str) -> bool:
        """Whether a fault of this kind may occur."""
        return self.total > 0 and getattr(self, kind) > 0

    def less(self, kind: str) -> "Budget":
        """Return the counts after one of this kind; after the last fault, the counts per kind are meaningless."""
        left = self._replace(total=self.total - 1, **{kind: getattr(self, kind) - 1})
        return left if left.total else Budget(0, 0, 0, 0, 0)


class State(NamedTuple):
    """The whole world. `saved` is what Redis would restart with; `used` is the newest epoch used by any worker."""

    redis: Redis
    workers: tuple[Worker, Worker]
    client: Client
    budget: Budget
    saved: Redis = Redis()
    entries: int = 1
    used: int = 0
    has_lost: bool = False

    def idle(self, worker: Worker, phase: str = "idle") -> "State":
        """Return the same state with one worker that has forgotten the request."""
        return self.with_worker(Worker(worker.name), phase=phase)

    def with_worker(self, worker: Worker, **changes: Any) -> "State":
        """Return the same state with one worker changed."""
        new = worker._replace(**changes)
        first, second = (new if one.name == new.name else one for one in self.workers)
        return self._replace(workers=(first, second))


BEGIN = State(Redis(entry=1), (Worker("a"), Worker("b")), Client(), Budget(2))
"""The request was accepted; nobody has claimed it yet, and not even its entry is on disk."""


def fold(log: tuple[Event, ...]) -> tuple[str, bool]:
    """Return a reader's view of a log: its tokens by position up to the first terminal, and whether they conflict.

    Entries after a gap do not count.
    """
    tokens = ""
    for event in log:
        overlap = tokens[event.position : event.position + len(event.tokens)]
        if event.position <= len(tokens):
            if overlap != event.tokens[: len(overlap)]:
                return tokens, True
            tokens += event.tokens[len(overlap) :]
        if event.kind == "end":
            return tokens, event.position + len(event.tokens) != len(tokens)
    return tokens, False

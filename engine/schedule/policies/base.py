"""The interface of scheduling policies."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from orcastream.engine.extensions import adding
from orcastream.engine.request import Request
from orcastream.engine.schedule.budget import TokenBudget
from orcastream.engine.schedule.memory import MemoryRule
from orcastream.engine.schedule.preemption import PreemptionChoice
from orcastream.engine.schedule.timing import IterationTimes
from orcastream.schemas.keys import CLASS_WEIGHT

if TYPE_CHECKING:
    from orcastream.engine.record import IterationRecord


@dataclass(frozen=True, slots=True)
class PolicyTools:
    """The tools of a policy: the memory rule, the token budget, and the engine's limits.

    `class_weight` is the factor by which a request of one class ages faster than one of the class below. `times`
    predicts how long an iteration takes, and `preemption` knows which kind of preemption is cheaper.
    """

    memory: MemoryRule
    budget: TokenBudget
    max_batch_size: int
    class_weight: float = CLASS_WEIGHT
    times: IterationTimes = field(default_factory=IterationTimes)
    preemption: PreemptionChoice = field(default_factory=PreemptionChoice)


class Policy(ABC):
    """Decides in every iteration which request is next, whether it may join, which to preempt and how, and how many
    tokens to compute.

    The scheduler carries the decisions out. It calls `push`, `remove`, `joined`, `left` and `ended` as requests wait,
    stop waiting, enter and leave the batch, and end for good, so that a policy can track them, and `observe` after each
    iteration. `head`, `precedes` and `makes_way` are called in every iteration with waiting requests: their cost must
    not grow with the number of waiting requests.
    """

    name: ClassVar[str]
    sees_all: ClassVar[bool] = False
    """Whether its guarantee holds only among requests that wait in the engine, so that its feeder should keep none
    waiting elsewhere."""
    forms_batches: ClassVar[bool] = False
    """Whether it forms a whole batch from the requests that wait in the engine, so that its feeder should keep as many
    waiting as there are places."""

    def __init__(self, tools: PolicyTools) -> None:
        self.tools = tools
        self.memory = tools.memory
        self.budget = tools.budget
        self.max_batch_size = tools.max_batch_size
        self.class_weight = tools.class_weight
        self.times = tools.times
        self.preemption = tools.preemption

    @abstractmethod
    def push(self, request: Request) -> None:
        """Add `request` to the waiting ones: it is new, was preempted, or could not join and keeps waiting."""

    @abstractmethod
    def head(self) -> Request | None:
        """Return the request to consider next, the same until it is removed or another is pushed; None: none waits."""

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Remove `request` from the waiting ones: it joins the batch, or was canceled."""

    def may_join(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether `request`, the head, may join `running` now; a place is free. If nothing runs, this must be true for
        any request that can ever fit, or the engine would stall.
        """
        return self.memory.fits(request)

    def precedes(self, waiting: Request, prefill: Request) -> bool:
        """Whether `waiting`, the head, is computed before running `prefill` continues, if it can join.

        False by default: waiting requests get what running prefills leave of the token budget. Once both run, `order`
        should agree.
        """
        return False

    def joined(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """Note that `request` has entered the batch."""

    def left(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """Note that `request` has left the batch: finished, canceled or preempted."""

    def ended(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """Note that `request` has ended for good."""

    def order(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return running `requests`, most urgent first, for when budget or memory does not suffice for all.

        The first of all running requests is never preempted, so that the engine always makes progress. By arrival
        unless a policy overrides this.
        """
        return requests

    def victim(self, running: Sequence[Request]) -> Request:
        """Return the request to preempt when blocks run out: the last in `order`."""
        return self.order(running)[-1]

    def swaps(self, victim: Request) -> bool:
        """How to preempt running `victim`: True to swap it to host memory if there is room, False to recompute it."""
        return self.preemption.prefers_swap(victim)

    def makes_way(self, waiting: Request, running: Sequence[Request]) -> Request | None:
        """Return a running request to preempt so that `waiting`, the head, can join; None: it waits.

        Called if no place is free, or `may_join` returns False.
        """
        return None

    def token_budget(self, running: Sequence[Request]) -> int:
        """Return the most tokens of the next iteration; decode steps are always computed."""
        return self.budget.tokens(running)

    def observe(self, record: "IterationRecord") -> None:
        """Take note of a computed iteration."""
        self.times.observe(record)

    def check_integrity(self, waiting: Sequence[Request], running: Sequence[Request]) -> None:  # noqa: B027
        """Raise IntegrityError if the policy's bookkeeping does not match the waiting and running requests."""


POLICIES: dict[str, type[Policy]] = {}


def register(name: str) -> Callable[[type[Policy]], type[Policy]]:
    """Class decorator: register a policy under `name`, its value of EngineConfig.policy."""
    return adding(POLICIES, name)

"""What a scheduling policy decides."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

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
    """What a policy may use: the rule of memory, the token budget, and the engine's limits.

    `class_weight` is the factor by which a request of one class ages faster than one of the class below. `times` has
    learnt how long an iteration takes, and `preemption` knows which way of leaving is cheaper.
    """

    memory: MemoryRule
    budget: TokenBudget
    max_batch_size: int
    class_weight: float = CLASS_WEIGHT
    times: IterationTimes = field(default_factory=IterationTimes)
    preemption: PreemptionChoice = field(default_factory=PreemptionChoice)


class Policy(ABC):
    """Owns the decision of every iteration: who is looked at next, who may join, who leaves and how, how many tokens.

    The scheduler carries it out. It calls `push`, `remove`, `joined`, `left` and `ended` as requests wait, stop
    waiting, enter and leave the batch and are gone for good, so that a policy can keep books, and `observe` after each
    iteration. `head`, `precedes` and `makes_way` are called in every iteration with work that waits: their cost must
    not grow with the number of those who wait.
    """

    name: ClassVar[str]
    sees_all: ClassVar[bool] = False
    """Whether its promise holds only among those that wait in the engine, so that whoever feeds it should keep nobody
    waiting elsewhere."""
    forms_batches: ClassVar[bool] = False
    """Whether a whole batch is formed of those that wait in the engine, so that whoever feeds it should keep as many
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
        """`request` waits: it is new, was preempted, or could not join just now and waits on as before."""

    @abstractmethod
    def head(self) -> Request | None:
        """Who is looked at next; the same one until it is removed or another is pushed. None: nobody waits."""

    @abstractmethod
    def remove(self, request: Request) -> None:
        """`request` does not wait any more: it joins the batch, or was cancelled."""

    def may_join(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether `request`, the head, may join `running` now; a place is free. Must be true for any request that can
        ever fit when nothing runs, or the engine would stand still.
        """
        return self.memory.fits(request, running)

    def precedes(self, waiting: Request, prefill: Request) -> bool:
        """Whether `waiting`, the head, is computed before running `prefill` goes on, if it can join.

        No, unless a policy says otherwise: it gets what the prefills under way leave of the token budget. Once both
        run, `order` should agree.
        """
        return False

    def joined(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """`request` has entered the batch."""

    def left(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """`request` has left the batch: finished, cancelled or preempted."""

    def ended(self, request: Request) -> None:  # noqa: B027  (nothing to do by default)
        """`request` is gone for good."""

    def order(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Running `requests` with those first that must not wait, when budget or memory is not enough for all.

        The first of all running requests is never preempted, so that the engine never stands still. By arrival unless
        a policy says otherwise.
        """
        return requests

    def victim(self, running: Sequence[Request]) -> Request:
        """Who is preempted when blocks run out: the last in `order`."""
        return self.order(running)[-1]

    def swaps(self, victim: Request) -> bool:
        """How running `victim` is preempted: True to host memory, if there is room; False to be computed again."""
        return self.preemption.prefers_swap(victim)

    def makes_way(self, waiting: Request, running: Sequence[Request]) -> Request | None:
        """A running request that is preempted so that `waiting`, the head, can join; None: it waits.

        Asked when no place is free, or `may_join` says no.
        """
        return None

    def token_budget(self, running: Sequence[Request]) -> int:
        """Most tokens of the next iteration; decode steps are computed in any case."""
        return self.budget.tokens(running)

    def observe(self, record: "IterationRecord") -> None:
        """An iteration has been computed."""
        self.times.observe(record)

    def check_integrity(self, waiting: Sequence[Request], running: Sequence[Request]) -> None:  # noqa: B027
        """IntegrityError where the policy's books do not match who waits and who runs."""


POLICIES: dict[str, type[Policy]] = {}


def register(name: str) -> Callable[[type[Policy]], type[Policy]]:
    """Class decorator: make a policy known under `name`, the value of EngineConfig.policy."""

    def decorate(policy: type[Policy]) -> type[Policy]:
        policy.name = name
        POLICIES[name] = policy
        return policy

    return decorate

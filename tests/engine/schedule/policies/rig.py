"""A policy alone, driven as a scheduler drives it, and compared with a plain statement of its rule after every move."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from orcastream.engine.record import IterationRecord
from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule.policies import POLICIES, Policy, PolicyTools
from orcastream.schemas.keys import CLASSES
from tests.engine.schedule import pretended

BATCH, BUDGET = 6, 8


class Rig:
    """The waiting and running requests, and the policy's state next to them."""

    def __init__(self, policy: str) -> None:
        scheduler = pretended.make(num_blocks=2000, batch=BATCH, budget=BUDGET, max_model_len=4000)
        tools = PolicyTools(scheduler.policy.memory, scheduler.policy.budget, BATCH)
        self.policy: Policy = POLICIES[policy](tools)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.arrived = 0
        self.gone: list[Request] = []
        self.preempted: set[int] = set()

    def arrive(self, at_s: float, prompt: int = 5, max_tokens: int = 50, **fields: Any) -> Request:
        made = pretended.request(prompt, max_tokens, **fields)
        made.arrive(self.arrived)
        made.timeline.submitted_s = at_s
        self.arrived += 1
        self.waiting.append(made)
        self.policy.push(made)
        return made

    def join(self) -> Request:
        """Let the head join, as if there were room."""
        head = self.policy.head()
        assert head is not None
        self.policy.remove(head)
        self.waiting.remove(head)
        self.running.append(head)
        self.running.sort(key=lambda each: each.arrival)
        head.state = RequestState.INITIATION
        self.policy.joined(head)
        return head

    def decode(self, each: Request, num_tokens: int) -> None:
        """End the request's prefill, if it has not ended, and generate a token."""
        each.state = RequestState.INCREMENT
        each.num_computed = len(each.tokens)
        each.num_pending += num_tokens
        for _ in range(num_tokens):
            each.append(7)
        self.policy.observe(IterationRecord(0.0, 0.0, 0.0, 0.0, 0.0, 0.01, 0, 1, 1, [each], [1]))

    def preempt(self, victim: Request) -> None:
        self.policy.left(victim)
        self.running.remove(victim)
        victim.state = RequestState.WAITING
        victim.num_computed = 0
        victim.timeline.preempted_s.append(0.0)
        self.preempted.add(victim.arrival)
        self.waiting.append(victim)
        self.policy.push(victim)

    def finish(self, each: Request) -> None:
        if each in self.running:
            self.policy.left(each)
            self.running.remove(each)
        else:
            self.policy.remove(each)
            self.waiting.remove(each)
        each.state = RequestState.FINISHED
        self.policy.ended(each)
        self.gone.append(each)

    def check(self) -> None:
        self.policy.check_integrity(self.waiting, self.running)


FIELDS = st.fixed_dictionaries(
    {
        "prompt": st.integers(1, 40),
        "max_tokens": st.integers(10, 60),
        "priority_class": st.sampled_from(CLASSES),
        "tenant": st.sampled_from("abc"),
        "ttft_slo_ms": st.sampled_from([None, 100.0, 5_000.0, 120_000.0]),
        "tbt_slo_ms": st.sampled_from([None, None, 20.0, 80.0]),
    }
)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.floats(0, 30), FIELDS),
        st.tuples(st.just("arrive"), st.floats(0, 0.5), FIELDS),
        st.tuples(st.just("join")),
        st.tuples(st.just("join")),
        st.tuples(st.just("decode"), st.integers(0, 50), st.integers(0, 9)),
        st.tuples(st.just("preempt")),
        st.tuples(st.just("finish"), st.integers(0, 50)),
        st.tuples(st.just("look")),
    ),
    max_size=60,
)


class Follower:
    """The events that a model of a rule receives; by default it keeps no state."""

    def arrived(self, each: Request) -> None: ...

    def joined(self, each: Request) -> None: ...

    def decoded(self, each: Request, num_tokens: int) -> None: ...


def play(policy: str, moves: list[Any], look: Callable[[Rig], None], follower: Follower | None = None) -> Rig:
    """Make `moves`, and call `look` after each of them."""
    rig, told, now_s = Rig(policy), follower or Follower(), 0.0
    for kind, *values in moves:
        if kind == "arrive":
            now_s += values[0]
            told.arrived(rig.arrive(now_s, **values[1]))
        elif kind == "join" and rig.waiting and len(rig.running) < BATCH:
            told.joined(rig.join())
        elif kind == "decode" and rig.running:
            each = rig.running[values[0] % len(rig.running)]
            rig.decode(each, values[1])
            told.decoded(each, values[1])
        elif kind == "preempt" and len(rig.running) > 1:
            rig.preempt(rig.policy.victim(rig.running))
        elif kind == "finish" and (rig.waiting or rig.running):
            everyone = [*rig.waiting, *rig.running]
            rig.finish(everyone[values[0] % len(everyone)])
        rig.check()
        look(rig)
    return rig


def agree(rig: Rig, key: Callable[[Request], Any], rank: Callable[[Request], Any] | None = None) -> None:
    """Check that the head is the least by (key, arrival), and that running requests are ordered by `rank`, by default
    `key`.

    The head precedes requests with a greater key.
    """

    def by_key(each: Request) -> Any:
        return key(each), each.arrival

    assert rig.policy.head() is min(rig.waiting, key=by_key, default=None)
    wanted = sorted(rig.running, key=rank or by_key)
    assert list(rig.policy.order(rig.running)) == wanted
    if wanted:
        assert rig.policy.victim(rig.running) is wanted[-1]
    if (head := rig.policy.head()) is not None:
        assert all(rig.policy.precedes(head, each) is (key(head) < key(each)) for each in rig.running)

"""The scheduler with a pretended model: invariants under any order of arrivals, cancels and iterations."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.errors import IntegrityError
from engine.kv.blocks import BlockPool
from engine.request import Request, RequestState
from engine.schedule.policy import POLICIES
from engine.schedule.pool import RequestPool
from engine.schedule.scheduler import Scheduler, Span
from schemas.sampling import SamplingParams
from schemas.stopping import FinishReason

BLOCK_SIZE = 4


def make_scheduler(
    admission: str = "paged", *, num_blocks: int = 10, token_budget: int = 8, max_batch_size: int = 4
) -> Scheduler:
    blocks = BlockPool(num_blocks, BLOCK_SIZE)
    policy = POLICIES[admission](blocks)
    return Scheduler(RequestPool(), blocks, policy, token_budget=token_budget, max_batch_size=max_batch_size)


def add(scheduler: Scheduler, name: str, prompt: int, max_tokens: int, outputs: int = 0) -> Request:
    request = Request(
        name, tuple(range(prompt)), SamplingParams(max_tokens=max_tokens), output_ids=tuple(range(outputs))
    )
    scheduler.requests.add(request)
    return request


def pretend(scheduler: Scheduler, plan: list[Span]) -> None:
    """What the engine does with a plan, every token being 7."""
    for span in plan:
        request, samples = span.request, span.samples
        request.advance(span.length)
        if samples:
            request.append(7)
            if request.num_outputs == request.max_tokens:
                scheduler.finish(request)
                request.finish(FinishReason.LENGTH)


def lengths(plan: list[Span]) -> dict[str, int]:
    return {span.request.id: span.length for span in plan}


def test_decodes_go_first_and_prefill_takes_the_rest_of_the_budget() -> None:
    scheduler = make_scheduler(num_blocks=30)
    add(scheduler, "a", 3, 10)
    pretend(scheduler, scheduler.select())
    add(scheduler, "b", 20, 4)
    add(scheduler, "c", 2, 4)
    assert lengths(scheduler.select()) == {"a": 1, "b": 7}


def test_chunks_cover_the_prompt_once() -> None:
    scheduler = make_scheduler(num_blocks=30)
    add(scheduler, "a", 20, 2)
    seen = []
    while len(scheduler.requests):
        plan = scheduler.select()
        seen += [(span.start, span.length, span.samples) for span in plan]
        pretend(scheduler, plan)
    assert seen == [(0, 8, False), (8, 8, False), (16, 4, True), (20, 1, True)]


def test_preemption_hits_the_latest_arrival_and_keeps_its_tokens() -> None:
    scheduler = make_scheduler(num_blocks=4, token_budget=16)
    first, second = add(scheduler, "first", 7, 8), add(scheduler, "second", 7, 8)
    pretend(scheduler, scheduler.select())
    pretend(scheduler, scheduler.select())
    # Both fill two blocks now, and the token just sampled needs a third.
    assert first.num_computed == second.num_computed == 8
    plan = scheduler.select()
    assert lengths(plan) == {"first": 1}
    assert second.state is RequestState.WAITING
    assert len(second.tokens) == 9
    assert second.num_computed == 0
    assert scheduler.preemptions == 1
    pretend(scheduler, plan)
    while first.state is not RequestState.FINISHED:
        pretend(scheduler, scheduler.select())
    recomputed = scheduler.select()
    assert [(span.start, span.length, span.samples) for span in recomputed] == [(0, 9, True)]


def test_decode_that_was_planned_loses_its_span_when_it_is_preempted() -> None:
    scheduler = make_scheduler(num_blocks=6, token_budget=8, max_batch_size=2)
    add(scheduler, "long", 19, 4)
    pretend(scheduler, scheduler.select())
    late = Request("late", (1, 2, 3), SamplingParams(max_tokens=4))
    scheduler.requests.add(late)
    scheduler.requests.admit(late)
    scheduler.policy.admitted(late)
    scheduler.blocks.grow(late.table, 16)
    late.advance(3)
    late.append(7)
    plan = scheduler.select()
    assert lengths(plan) == {"long": 7}
    assert late.state is RequestState.WAITING
    scheduler.check_integrity()


def test_reserve_holds_the_line() -> None:
    scheduler = make_scheduler("reserve", num_blocks=10, token_budget=64)
    add(scheduler, "large", 8, 20)
    add(scheduler, "larger", 8, 24)
    add(scheduler, "small", 1, 1)
    assert lengths(scheduler.select()) == {"large": 8}
    assert [request.id for request in scheduler.requests.waiting] == ["larger", "small"]


def test_paged_admits_what_reserve_does_not() -> None:
    scheduler = make_scheduler("paged", num_blocks=10, token_budget=64)
    add(scheduler, "large", 8, 20)
    add(scheduler, "larger", 8, 24)
    assert lengths(scheduler.select()) == {"large": 8, "larger": 8}


def test_a_prefill_under_way_keeps_its_blocks_from_newcomers() -> None:
    scheduler = make_scheduler("paged", num_blocks=6, token_budget=8)
    add(scheduler, "long", 18, 2)
    pretend(scheduler, scheduler.select())
    add(scheduler, "new", 7, 1)
    while scheduler.requests.running:
        scheduler.check_integrity()
        pretend(scheduler, scheduler.select())
        if len(scheduler.requests.running) == 2:
            break
    assert scheduler.preemptions == 0


def test_integrity_check_sees_a_stolen_block() -> None:
    scheduler = make_scheduler()
    request = add(scheduler, "a", 8, 2)
    scheduler.select()
    scheduler.check_integrity()
    request.table.clear()
    with pytest.raises(IntegrityError):
        scheduler.check_integrity()


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, continuations, cancels, failures and iterations in any order."""

    admission = "paged"

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = make_scheduler(self.admission)
        self.arrived = 0
        self.admitted: list[int] = []

    @rule(prompt=st.integers(1, 30), max_tokens=st.integers(1, 25), outputs=st.integers(0, 6))
    def submit(self, prompt: int, max_tokens: int, outputs: int) -> None:
        if prompt + max_tokens > 10 * BLOCK_SIZE or outputs >= max_tokens:
            return
        add(self.scheduler, str(self.arrived), prompt, max_tokens, outputs)
        self.arrived += 1

    @precondition(lambda self: len(self.scheduler.requests))
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        requests = self.scheduler.requests
        request = data.draw(st.sampled_from([*requests.running, *requests.waiting]))
        self.scheduler.finish(request)
        request.finish(None)

    @rule()
    def iterate(self) -> None:
        requests = self.scheduler.requests
        had_work = len(requests)
        before = set(requests.running)
        plan = self.scheduler.select()
        assert bool(plan) == bool(had_work)
        assert sum(span.length for span in plan) <= self.scheduler.token_budget
        assert len({span.request.id for span in plan}) == len(plan)
        for span in plan:
            assert span.length >= 1
            assert span.start == span.request.num_computed
            assert len(span.request.table) * BLOCK_SIZE >= span.stop
            assert span.request in requests.running
        self.admitted += [request.arrival for request in requests.running if request not in before]
        pretend(self.scheduler, plan)

    @invariant()
    def books_agree(self) -> None:
        self.scheduler.check_integrity()

    def teardown(self) -> None:
        """Whatever state it is in, the work that is left comes to an end."""
        for _ in range(2000):
            if not len(self.scheduler.requests):
                break
            self.iterate()
            self.books_agree()
        assert not len(self.scheduler.requests)
        assert self.scheduler.blocks.num_free == 10


class ReserveMachine(SchedulerMachine):
    """Reservation adds: nobody is preempted, and admission is in order of arrival."""

    admission = "reserve"

    @invariant()
    def in_order_of_arrival(self) -> None:
        assert self.scheduler.preemptions == 0
        assert self.admitted == sorted(self.admitted)


FEW = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestPagedMachine = SchedulerMachine.TestCase
TestPagedMachine.settings = FEW
TestReserveMachine = ReserveMachine.TestCase
TestReserveMachine.settings = FEW

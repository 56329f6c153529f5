"""Every policy, memory rule and kind of preemption under any order of arrivals, cancels and iterations."""

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule import plan as plans
from orcastream.engine.schedule.memory import OnDemand
from orcastream.engine.schedule.policies import POLICIES
from orcastream.engine.schedule.scheduler import Scheduler
from orcastream.schemas.keys import CLASSES
from tests.engine.schedule import pretended

NUM_BLOCKS = 10
BUDGET = 8
BATCH = 4
TICK_S = 1e-4
"""How much later it is at each look at the clock."""


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, groups, continuations, cancels, failures, pauses and iterations, by the machine's own clock."""

    scheduler: Scheduler

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[Request] = []
        self.joined: list[int] = []
        self.now_s = 0.0
        self.patched = pytest.MonkeyPatch()

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        admission=st.sampled_from(["paged", "reserve"]),
        preemption=st.sampled_from(["recompute", "swap", "auto"]),
        host_slots=st.sampled_from([0, 3, 12]),
        token_budget=st.sampled_from(["fixed", "adaptive"]),
        window=st.sampled_from([None, 6]),
        prefix_cache=st.booleans(),
        rows=st.sampled_from([2, 5, 512]),
    )
    def begin(self, rows: int, **choices: Any) -> None:
        self.patched.setattr(plans, "MOST_PROMPT_ROWS", rows)
        self.patched.setattr(time, "monotonic", self.look_at_clock)
        choices["tbt_target_ms"] = 5.0 if choices["token_budget"] == "adaptive" else None
        self.scheduler = pretended.make(num_blocks=NUM_BLOCKS, budget=BUDGET, batch=BATCH, **choices)
        self.choices = choices
        memory = self.scheduler.policy.memory
        if isinstance(memory, OnDemand):
            fits = memory.fits
            self.patched.setattr(memory, "fits", lambda waiting: self.as_defined(waiting, fits(waiting)))

    def as_defined(self, waiting: Request, fits: bool) -> bool:
        """Return `fits`, if that is so next to the blocks that all running prefills still need."""
        cache, running = self.scheduler.cache, self.scheduler.requests.running
        prefills = [(each.kv, len(each.tokens)) for each in running if each.state is RequestState.INITIATION]
        if waiting.swapped is not None:
            assert fits == cache.can_swap_in(waiting.swapped, prefills)
        else:
            matchable = waiting.num_matchable
            assert fits == cache.fits(waiting.chain, len(waiting.tokens), prefills, matchable=matchable)
        return fits

    def look_at_clock(self) -> float:
        self.now_s += TICK_S
        return self.now_s

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(
        prompt=st.integers(1, 30),
        beginning=st.sampled_from([0, 8, 20]),
        max_tokens=st.integers(1, 25),
        outputs=st.integers(0, 6),
        copies=st.sampled_from([1, 1, 1, 2, 5]),
        priority_class=st.sampled_from(CLASSES),
        tenant=st.sampled_from("abc"),
        ttft_slo_ms=st.sampled_from([None, 0.001, 60_000.0]),
        tbt_slo_ms=st.sampled_from([None, 3.0, 100.0]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
    )
    def submit(self, prompt: int, beginning: int, max_tokens: int, outputs: int, copies: int, **fields: Any) -> None:
        if prompt + max_tokens > NUM_BLOCKS * pretended.BLOCK_SIZE or outputs >= max_tokens:
            return
        first = len(self.arrived)
        shared = min(beginning, prompt)
        ids = (*range(shared), *range(1000 * first, 1000 * first + prompt - shared))
        for index in range(copies):
            made = pretended.request(
                ids,
                max_tokens,
                name=str(first + index),
                output_ids=tuple(range(outputs)),
                group=None if copies == 1 else str(first),
                **fields,
            )
            self.scheduler.add(made)
            self.arrived.append(made)

    @precondition(lambda self: len(self.scheduler.requests) > 0)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        pretended.cancel(self.scheduler, data.draw(st.sampled_from(self.unfinished)))

    @precondition(lambda self: self.scheduler.requests.running)
    @rule(data=st.data())
    def fail(self, data: Any) -> None:
        """An iteration in which the model failed on one request."""
        plan = self.scheduler.select()
        poisoned = data.draw(st.sampled_from(plan.requests))
        index = plan.requests.index(poisoned)
        plan.num_decodes -= index < plan.num_decodes
        del plan.requests[index], plan.lengths[index]
        self.scheduler.finish(poisoned, discard=True)
        poisoned.finish(None)
        pretended.compute(self.scheduler, plan)

    @property
    def unfinished(self) -> list[Request]:
        return [each for each in self.arrived if each.state is not RequestState.FINISHED]

    @rule()
    def iterate(self) -> None:
        requests = self.scheduler.requests
        before = set(requests.running)
        had_work = len(requests)
        preempted = self.scheduler.preemptions
        plan = self.scheduler.select()
        assert self.scheduler.preemptions - preempted <= BATCH
        assert bool(plan) == bool(had_work)
        assert plan.num_tokens <= BUDGET
        assert len(set(plan.requests)) == len(plan)
        for index, (each, length) in enumerate(zip(plan.requests, plan.lengths, strict=True)):
            assert length >= 1
            assert each in requests.running
            assert (each.state is RequestState.INCREMENT) == (index < plan.num_decodes)
        self.joined += [each.arrival for each in requests.running if each not in before]
        pretended.compute(self.scheduler, plan)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    @invariant()
    def promises_hold(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        policy, scheduler = self.choices["policy"], self.scheduler
        alone = all(each.group is None for each in self.arrived)
        if (policy == "static" and alone) or (self.choices["admission"] == "reserve" and policy in ("fcfs", "sjf")):
            assert scheduler.preemptions == 0
        if policy == "fair" and self.choices["admission"] == "reserve":  # no request is preempted for lack of blocks
            assert all(len(each.timeline.preempted_s) <= 1 for each in self.arrived)
        if self.choices["preemption"] == "recompute" or not self.choices["host_slots"]:
            assert scheduler.swaps == 0

    def teardown(self) -> None:
        """From any state, the remaining work ends, and everything is released."""
        try:
            if hasattr(self, "scheduler"):
                self.finish()
        finally:
            self.patched.undo()

    def finish(self) -> None:
        for _ in range(4000):
            if not len(self.scheduler.requests):
                break
            self.iterate()
            self.books_agree()
        cache = self.scheduler.cache
        assert not len(self.scheduler.requests)
        assert cache.blocks_used == 0
        assert all(group.host.num_free == self.choices["host_slots"] for group in cache.groups)
        for each in self.arrived:
            if each.finish_reason is not None:
                own = [pretended.next_token(each, index) for index in range(each.num_outputs)]
                given = next(index for index in range(each.num_outputs + 1) if each.output_ids[index:] == own[index:])
                assert list(each.output_ids[:given]) == list(range(given))


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes, and failures are short
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

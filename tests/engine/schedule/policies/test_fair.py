"""Fair shares of tenants, against the paper's algorithm in a form that scans all requests each time."""

from typing import Any

from hypothesis import given

from orcastream.engine.request import Request
from tests.engine.schedule.policies.rig import BATCH, BUDGET, MOVES, Follower, Rig, play
from tests.engine.schedule.pretended import add, compute, drain, make, step


class Counters(Follower):
    """Algorithm 2 of the paper, with a dictionary and loops, and a prompt counted in two parts."""

    def __init__(self) -> None:
        self.served: dict[str, float] = {}
        self.joins: list[str] = []
        self.waiting: list[Request] = []
        self.uncounted: dict[int, int] = {}

    def arrived(self, each: Request) -> None:
        self.served.setdefault(each.tenant, 0.0)
        queued = {other.tenant for other in self.waiting if other.arrival != each.arrival}
        if each.tenant not in queued:
            level = min(
                (self.served[tenant] for tenant in queued), default=self.served[self.joins[-1]] if self.joins else 0.0
            )
            self.served[each.tenant] = max(self.served[each.tenant], level)

    def joined(self, each: Request) -> None:
        if each.arrival not in self.uncounted:
            begun = min(BUDGET, len(each.prompt_ids))
            self.served[each.tenant] += begun
            self.uncounted[each.arrival] = len(each.prompt_ids) - begun
        self.joins.append(each.tenant)

    def decoded(self, each: Request, num_tokens: int) -> None:
        self.served[each.tenant] += self.uncounted[each.arrival] + 2 * num_tokens
        self.uncounted[each.arrival] = 0

    def look(self, rig: Rig) -> None:
        self.waiting = list(rig.waiting)
        head = rig.policy.head()
        assert head is min(self.waiting, key=self.rank, default=None)
        wanted = sorted(rig.running, key=self.rank)
        assert list(rig.policy.order(rig.running)) == wanted
        if wanted:
            assert rig.policy.victim(rig.running) is wanted[-1]
        if head is not None:
            assert rig.policy.makes_way(head, rig.running) is self.leaves(rig, head)
            ahead = [each for each in rig.running if self.rank(head)[:3] < self.rank(each)[:3]]
            assert [each for each in rig.running if rig.policy.precedes(head, each)] == ahead

    def rank(self, each: Request) -> tuple[float, int, str, int]:
        """The least served tenant first; among equals, the one whose last turn was longest ago."""
        turn = max((index for index, tenant in enumerate(self.joins) if tenant == each.tenant), default=-1)
        return self.served[each.tenant], turn, each.tenant, each.arrival

    def leaves(self, rig: Rig, head: Request) -> Request | None:
        of = {tenant: [each for each in rig.running if each.tenant == tenant] for tenant in "abc"}
        share = BATCH // len({head.tenant, *(each.tenant for each in rig.running)})
        if len(of[head.tenant]) >= share:
            return None
        for each in sorted(rig.running, key=self.rank, reverse=True):
            if len(of[each.tenant]) > share and each.arrival not in rig.preempted:
                lead = self.served[each.tenant] - self.served[head.tenant]
                return each if not of[head.tenant] or lead > len(each.tokens) else None
        return None


@given(MOVES)
def test_counters_decide(moves: list[Any]) -> None:
    counters = Counters()
    play("fair", moves, counters.look, counters)


def test_a_heavy_tenant_does_not_get_ahead_of_a_light_one() -> None:
    scheduler = make("fair", num_blocks=60, batch=2, budget=16)
    heavy = [add(scheduler, 4, 4, tenant="heavy") for _ in range(20)]
    step(scheduler)
    light = [add(scheduler, 4, 4, tenant="light") for _ in range(3)]
    while any(each.finish_reason is None for each in light):
        step(scheduler)
    # Since its arrival, the light tenant has had half of the computed tokens.
    assert sum(each.finish_reason is not None for each in heavy) <= 6
    drain(scheduler)


def test_a_tenant_without_a_batch_slot_gets_one_of_a_full_batch_at_once() -> None:
    scheduler = make("fair", num_blocks=60, batch=3, budget=16)
    heavy = [add(scheduler, 4, 40, tenant="heavy") for _ in range(5)]
    for _ in range(10):
        step(scheduler)
    light = add(scheduler, 4, 2, tenant="light")
    assert light.id in step(scheduler)
    assert scheduler.preemptions == 1
    assert heavy[2].id in scheduler.requests.waiting
    drain(scheduler)


def test_a_tenants_second_batch_slot_is_taken_for_a_sufficient_lead() -> None:
    scheduler = make("fair", num_blocks=60, batch=4, budget=16)
    heavy = [add(scheduler, 4, 40, tenant="heavy") for _ in range(5)]
    for _ in range(10):
        step(scheduler)
    light = [add(scheduler, 4, 30, tenant="light") for _ in range(3)]
    waited = 0
    while light[1].id not in step(scheduler):
        waited += 1
        # Each iteration adds 2 · 3 to one tenant and 2 to the other.
        assert 4 * waited <= len(heavy[2].tokens) + 6 + 4
    assert waited > 1
    assert scheduler.preemptions == 2
    drain(scheduler)
    assert scheduler.preemptions == 2


def test_no_request_is_displaced_repeatedly() -> None:
    """Long requests, and a tenant that submits another short one whenever its last has ended."""
    scheduler = make("fair", num_blocks=60, batch=2, budget=16, prefix_cache=False)
    long = [add(scheduler, 20, 60, tenant="long") for _ in range(3)]
    computed = answered = 0
    short: Request | None = None
    while any(each.finish_reason is None for each in long):
        if short is None or short.finish_reason is not None:
            answered += short is not None
            short = add(scheduler, 2, 1, tenant="short")
        lengths = step(scheduler)
        computed += sum(lengths.get(each.id, 0) for each in long)
    assert answered > 30
    assert [len(each.timeline.preempted_s) for each in long] == [1, 1, 0]  # the last request ran alone at its end
    assert computed <= 2 * sum(len(each.tokens) for each in long)
    drain(scheduler)


def test_many_tenants_starve_no_one() -> None:
    """More tenants than batch slots, each with more work than its share, one with long requests only."""
    scheduler = make("fair", num_blocks=100, batch=4, budget=16)
    requests = [add(scheduler, 4, 30 if name == "a" else 3, tenant=name) for _ in range(6) for name in "abcdefgh"]
    drain(scheduler, most=1500)
    assert all(each.finish_reason is not None for each in requests)
    assert all(len(each.timeline.preempted_s) <= 1 for each in requests)


def test_equal_tenants_do_not_push_each_other_out() -> None:
    scheduler = make("fair", num_blocks=90, batch=4, budget=32)
    for index in range(24):
        add(scheduler, 4, 10, tenant="ab"[index % 2])
    drain(scheduler)
    assert scheduler.preemptions == 0


def test_a_long_prompt_shares_the_budget_with_those_of_another_tenant() -> None:
    scheduler = make("fair", num_blocks=200, max_model_len=400)
    add(scheduler, 320, 1, name="long", tenant="heavy")
    for _ in range(5):
        step(scheduler)
    light = [add(scheduler, 24, 1, tenant="light") for _ in range(2)]
    computed = {"heavy": 0, "light": 0}
    while any(each.finish_reason is None for each in light):
        for name, length in step(scheduler).items():
            computed["heavy" if name == "long" else "light"] += length
    assert computed["light"] == 48
    assert 48 - 16 <= computed["heavy"] <= 48 + 16
    drain(scheduler)


def test_an_idle_tenant_accumulates_no_credit() -> None:
    scheduler = make("fair", num_blocks=60, batch=1, budget=16)
    add(scheduler, 4, 2, tenant="away")
    drain(scheduler)
    for _ in range(10):
        add(scheduler, 4, 20, tenant="busy")
    for _ in range(100):
        step(scheduler)
    back = [add(scheduler, 4, 20, tenant="away") for _ in range(10)]
    finished = []
    while len(scheduler.requests):
        finished += [each.tenant for each in compute(scheduler, scheduler.select())]
    assert "busy" in finished[:3]
    assert all(each.finish_reason is not None for each in back)


def test_cached_tokens_are_not_counted() -> None:
    scheduler = make("fair", num_blocks=60, batch=1, budget=64)
    for _ in range(2):
        add(scheduler, tuple(range(33)), 1, tenant="a")
        drain(scheduler)
    assert scheduler.policy._tenants["a"].served == 33 + 2 + 1 + 2  # type: ignore[attr-defined]


def test_idle_tenants_are_forgotten() -> None:
    scheduler = make("fair", num_blocks=60, batch=4, budget=64)
    for index in range(5000):
        add(scheduler, 1, 1, tenant=f"tenant-{index}")
        compute(scheduler, scheduler.select())
    assert len(scheduler.policy._tenants) < 2100  # type: ignore[attr-defined]
    scheduler.check_integrity()

"""Fair shares of tenants, against the paper's algorithm done by looking at everybody each time."""

from typing import Any

from hypothesis import given

from engine.request import Request
from tests.engine.schedule.policies.rig import BATCH, MOVES, Follower, Rig, play
from tests.engine.schedule.pretended import add, compute, drain, make, step


class Counters(Follower):
    """Algorithm 2 of the paper, with a dictionary and loops."""

    def __init__(self) -> None:
        self.served: dict[str, float] = {}
        self.last: str | None = None
        self.waiting: list[Request] = []
        self.counted: set[int] = set()

    def arrived(self, each: Request) -> None:
        self.served.setdefault(each.tenant, 0.0)
        queued = {other.tenant for other in self.waiting if other.arrival != each.arrival}
        if each.tenant not in queued:
            level = min((self.served[tenant] for tenant in queued), default=self.served.get(self.last or "", 0.0))
            self.served[each.tenant] = max(self.served[each.tenant], level)

    def joined(self, each: Request) -> None:
        if each.arrival not in self.counted:
            self.counted.add(each.arrival)
            self.served[each.tenant] += len(each.prompt_ids)
        self.last = each.tenant

    def decoded(self, each: Request, num_tokens: int) -> None:
        self.served[each.tenant] += 2 * num_tokens

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

    def rank(self, each: Request) -> tuple[float, str, int]:
        return self.served[each.tenant], each.tenant, each.arrival

    def leaves(self, rig: Rig, head: Request) -> Request | None:
        of = {tenant: [each for each in rig.running if each.tenant == tenant] for tenant in "abc"}
        share = BATCH // len({head.tenant, *(each.tenant for each in rig.running)})
        if len(of[head.tenant]) >= share:
            return None
        heavy = [tenant for tenant in "abc" if len(of[tenant]) > share]
        if not heavy:
            return None
        most = max(heavy, key=lambda tenant: (self.served[tenant], tenant))
        victim = of[most][-1]
        return victim if self.served[most] - self.served[head.tenant] > len(victim.tokens) else None


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
    # From its arrival on the light tenant has had its half of what was computed.
    assert sum(each.finish_reason is not None for each in heavy) <= 6
    drain(scheduler)


def test_a_light_tenant_gets_a_place_of_a_full_batch() -> None:
    scheduler = make("fair", num_blocks=60, batch=3, budget=16)
    heavy = [add(scheduler, 4, 40, tenant="heavy") for _ in range(5)]
    for _ in range(10):
        step(scheduler)
    light = add(scheduler, 4, 2, tenant="light")
    # It begins at the other's counter, and goes first once that is ahead by what the latest would have to recompute.
    waited = 0
    while light.id not in step(scheduler):
        waited += 1
        assert 3 * 2 * waited <= len(heavy[2].tokens) + 6
    assert scheduler.preemptions == 1
    assert heavy[2].id in scheduler.requests.waiting
    drain(scheduler)


def test_equal_tenants_do_not_push_each_other_out() -> None:
    scheduler = make("fair", num_blocks=90, batch=4, budget=32)
    for index in range(24):
        add(scheduler, 4, 10, tenant="ab"[index % 2])
    drain(scheduler)
    assert scheduler.preemptions == 0


def test_nobody_saves_up_service_while_away() -> None:
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


def test_tenants_that_went_away_are_forgotten() -> None:
    scheduler = make("fair", num_blocks=60, batch=4, budget=64)
    for index in range(5000):
        add(scheduler, 1, 1, tenant=f"tenant-{index}")
        compute(scheduler, scheduler.select())
    assert len(scheduler.policy._tenants) < 2100  # type: ignore[attr-defined]
    scheduler.check_integrity()

"""The rules of memory: on demand, and Orca's reservation."""

import pytest

from orcastream.engine.beam import Beam
from orcastream.engine.errors import IntegrityError
from orcastream.engine.kv.group import GroupCache
from orcastream.engine.kv.sequence import Sequence
from orcastream.engine.schedule.memory import MEMORY_RULES, OnDemand, Reserve
from tests.engine.schedule.pretended import add, cancel, drain, make, request, step


def test_both_have_their_name() -> None:
    assert MEMORY_RULES["paged"] is OnDemand
    assert MEMORY_RULES["reserve"] is Reserve


def test_a_running_prefill_keeps_its_blocks_from_newcomers() -> None:
    scheduler = make(num_blocks=6, budget=8)
    add(scheduler, 18, 2)
    step(scheduler)
    add(scheduler, 7, 1)
    drain(scheduler)
    assert scheduler.preemptions == 0


def test_requests_that_have_their_blocks_are_not_looked_at_for_each_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def num_held(group: GroupCache, sequence: Sequence) -> int:
        nonlocal looks
        looks += 1
        return len(sequence.blocks[group.index]) - sequence.first[group.index]

    monkeypatch.setattr(GroupCache, "num_held", num_held)
    scheduler = make(num_blocks=400, budget=900, batch=100)
    for _ in range(100):
        add(scheduler, 9)
    assert len(scheduler.select()) == 100
    assert looks < 3 * 100


def test_a_prefill_that_nobody_knows_of_is_found() -> None:
    scheduler = make(num_blocks=8, budget=8)
    prefill = add(scheduler, 24, 4)
    step(scheduler)
    scheduler.policy.memory.give_back(prefill)
    with pytest.raises(IntegrityError, match="lack blocks"):
        scheduler.check_integrity()


def test_cached_blocks_in_use_need_no_room() -> None:
    scheduler = make(num_blocks=9, budget=64)
    add(scheduler, tuple(range(24)), 6)
    step(scheduler)
    memory = scheduler.policy.memory
    same, other = request((*range(20), 5, 6)), request(22)
    for each in (same, other):
        each.chain.extend(each.tokens, len(each.tokens), 4)
    assert memory.fits(same)
    assert not memory.fits(other)
    drain(scheduler)


def test_reservations_of_followers_come_and_go() -> None:
    scheduler = make(admission="reserve", num_blocks=10, budget=4)
    leader, *followers = [add(scheduler, (1,) * 8, 4, group="n") for _ in range(3)]
    step(scheduler)
    assert scheduler.policy.memory.slots_held() == 9 * 4
    cancel(scheduler, followers[0])
    scheduler.check_integrity()
    assert scheduler.policy.memory.slots_held() == 6 * 4
    cancel(scheduler, leader)
    scheduler.check_integrity()
    assert scheduler.policy.memory.slots_held() == 0
    drain(scheduler)


def test_a_group_that_does_not_fit_together_is_not_one() -> None:
    scheduler = make(admission="reserve", num_blocks=10, budget=64)
    leader, follower = (add(scheduler, (1,) * 16, 8, group="n") for _ in range(2))
    assert leader.followers == []
    drain(scheduler)
    assert follower.num_outputs == 8


def test_hypotheses_of_a_search_reserve_no_more_than_it_did() -> None:
    scheduler = make(admission="reserve", num_blocks=12, budget=16)
    root = add(scheduler, 8, 4, beam=Beam(4))
    scheduler.select()
    assert scheduler.policy.memory.slots_held() == 4 * 12
    scheduler.begin_beams(root)
    for number in range(1, 4):
        hypothesis = request(root.prompt_ids, 4, f"hypothesis-{number}", beam=root.beam)
        hypothesis.hypotheses = root.hypotheses
        scheduler.spawn(hypothesis, root, number)
    assert scheduler.policy.memory.slots_held() == 4 * 12


def test_a_lost_reservation_is_found() -> None:
    scheduler = make(admission="reserve")
    each = add(scheduler, 8, 4)
    step(scheduler)
    scheduler.policy.memory.give_back(each)
    with pytest.raises(IntegrityError, match="reservations"):
        scheduler.check_integrity()


def test_worst_cases_add_up() -> None:
    memory = make(num_blocks=10, window=5).policy.memory
    requests = [request(9, 4), request(3, 1)]
    assert memory.most_blocks(requests) == [4 + 1, 4 + 1]
    assert memory.has_blocks([10, 10])
    assert not memory.has_blocks([1, 11])


def test_a_swapped_request_leaves_a_running_prefill_its_blocks() -> None:
    scheduler = make(num_blocks=8, host_slots=8, budget=8)
    prefill = add(scheduler, 24, 4)
    step(scheduler)
    back = request(9)
    back.swapped = scheduler.cache.swap_out(scheduler.cache.sequence_of(9))
    # Six blocks are free: it needs four, and the prefill four more.
    memory = scheduler.policy.memory
    assert not memory.fits(back)
    memory.give_back(prefill)
    assert memory.fits(back)

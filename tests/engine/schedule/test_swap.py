"""Blocks are copied to host memory only if they can be copied back, and the copies are measured."""

from orcastream.engine.schedule.preemption import PreemptionChoice
from orcastream.engine.schedule.swap import Swapper
from tests.engine.schedule.pretended import add, make, step


def test_out_and_back() -> None:
    scheduler = make(num_blocks=10, host_slots=10, budget=16)
    each = add(scheduler, 9, 4)
    step(scheduler)
    choice = PreemptionChoice("auto")
    swapper = Swapper(scheduler.cache, choice)
    assert each.kv is not None
    swapped = swapper.out(each.kv)
    assert swapped is not None
    each.preempt(swapped)
    assert (swapper.swaps, scheduler.cache.blocks_used, each.num_computed) == (1, 0, 9)
    swapper.back(each, swapped)
    assert (len(choice._out), len(choice._back)) == (1, 1)
    scheduler.check_integrity()
    step(scheduler)


def test_a_request_that_fills_the_cache_could_not_be_swapped_in() -> None:
    scheduler = make(num_blocks=3, host_slots=10, budget=16)
    each = add(scheduler, 11, 1)
    scheduler.select()
    assert each.kv is not None
    assert Swapper(scheduler.cache, PreemptionChoice("swap")).out(each.kv) is None


def test_no_room_in_host_memory() -> None:
    scheduler = make(num_blocks=10, host_slots=2, budget=16)
    each = add(scheduler, 9, 4)
    step(scheduler)
    assert each.kv is not None
    assert Swapper(scheduler.cache, PreemptionChoice("swap")).out(each.kv) is None

"""Request-level batching, against a plain statement of its rule."""

from hypothesis import given
from hypothesis import strategies as st

from orcastream.engine.request import Request
from tests.engine.schedule.pretended import add, cancel, compute, drain, make, step

NUM_BLOCKS = 20


def batches(requests: list[Request], batch: int) -> list[list[str]]:
    """All wait from the beginning: batches in order of arrival, as many as fit at their maximum length."""
    formed: list[list[Request]] = []
    for each in requests:
        blocks = sum(-(-other.most_tokens // 4) for other in (*formed[-1], each)) if formed else NUM_BLOCKS + 1
        if not formed or len(formed[-1]) == batch or blocks > NUM_BLOCKS:
            formed.append([])
        formed[-1].append(each)
    return [[each.id for each in members] for members in formed]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=12), st.integers(1, 5))
def test_batches_by_arrival_and_worst_case(sizes: list[tuple[int, int]], batch: int) -> None:
    scheduler = make("static", num_blocks=NUM_BLOCKS, batch=batch, budget=8, prefix_cache=False)
    requests = [add(scheduler, prompt, max_tokens) for prompt, max_tokens in sizes]
    seen: list[list[str]] = []
    while len(scheduler.requests):
        if not scheduler.requests.running and not scheduler.policy._batch:  # type: ignore[attr-defined]
            seen.append([])
        plan = scheduler.select()
        scheduler.check_integrity()
        seen[-1] += [each.id for each in plan.requests if each.id not in seen[-1]]
        compute(scheduler, plan)
    assert [sorted(each) for each in seen] == [sorted(each) for each in batches(requests, batch)]
    assert scheduler.preemptions == 0


def test_no_request_joins_before_the_whole_batch_has_ended() -> None:
    scheduler = make("static", num_blocks=30, batch=3, budget=16)
    long, short = add(scheduler, 4, 8, name="long"), add(scheduler, 4, 2, name="short")
    step(scheduler)
    add(scheduler, 4, 2, name="late")
    while long.finish_reason is None:
        assert "late" not in step(scheduler)
    assert short.finish_reason is not None
    assert step(scheduler) == {"late": 4}
    drain(scheduler)


def test_members_that_were_cancelled_do_not_hold_the_next_batch_up() -> None:
    scheduler = make("static", num_blocks=30, batch=2, budget=4)
    first, second = add(scheduler, 8, 2), add(scheduler, 8, 2)
    step(scheduler)
    cancel(scheduler, second)
    cancel(scheduler, first)
    late = add(scheduler, 4, 2)
    assert step(scheduler) == {late.id: 4}
    drain(scheduler)

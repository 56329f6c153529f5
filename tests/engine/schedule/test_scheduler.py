"""The scheduler with a fake model: the contents of an iteration."""

import pytest

from orcastream.engine.errors import IntegrityError
from orcastream.engine.request import RequestState
from tests.engine.schedule.pretended import TokenStore, add, cancel, compute, drain, ids, make, step


def test_decodes_go_first_and_prefill_takes_the_rest_of_the_budget() -> None:
    scheduler = make(num_blocks=30)
    add(scheduler, 3, 10, name="a")
    step(scheduler)
    add(scheduler, 20, name="b")
    add(scheduler, 2, name="c")
    add(scheduler, 9, name="d")
    plan = scheduler.select()
    # A long prompt's chunk ends with a block, and the rest goes to a request that fits into it.
    assert (ids(plan.requests), plan.lengths, plan.num_decodes) == (["a", "b", "c"], [1, 4, 2], 1)


def test_chunks_cover_the_prompt_once_and_end_at_blocks() -> None:
    scheduler = make(num_blocks=30, budget=10)
    add(scheduler, 23, 2, name="a")
    assert drain(scheduler) == [{"a": 8}, {"a": 8}, {"a": 7}, {"a": 1}]


def test_a_budget_below_a_block_is_used_up() -> None:
    scheduler = make(num_blocks=30, budget=3, batch=3)
    add(scheduler, 8, 1, name="a")
    assert drain(scheduler) == [{"a": 3}, {"a": 1}, {"a": 3}, {"a": 1}]


def test_preemption_hits_the_latest_arrival_and_keeps_its_tokens() -> None:
    scheduler = make(num_blocks=4, budget=16, prefix_cache=False, preemption="recompute")
    first, second = add(scheduler, 7, 8, name="first"), add(scheduler, 7, 8, name="second")
    step(scheduler), step(scheduler)
    # Both fill two blocks now, and the newly sampled token needs a third.
    assert first.num_computed == second.num_computed == 8
    assert step(scheduler) == {"first": 1}
    assert (second.state, len(second.tokens), second.num_computed) == (RequestState.WAITING, 9, 0)
    assert (scheduler.preemptions, scheduler.swaps) == (1, 0)
    while first.state is not RequestState.FINISHED:
        step(scheduler)
    assert step(scheduler) == {"second": 9}


def test_a_re_prefill_after_preemption_at_a_block_boundary_must_not_drop_the_token_just_sampled() -> None:
    undisturbed = make(num_blocks=30)
    wanted = add(undisturbed, (1, 2, 3, 4, 5, 6, 7), 8, name="same")
    drain(undisturbed)
    for kind in ("recompute", "swap"):
        scheduler = make(num_blocks=4, budget=16, host_slots=8, preemption=kind)
        add(scheduler, 7, 8)
        preempted = add(scheduler, (1, 2, 3, 4, 5, 6, 7), 8, name="same")
        drain(scheduler)
        assert len(preempted.timeline.preempted_s) == 1
        assert preempted.output_ids == wanted.output_ids


@pytest.mark.parametrize("kind", ["recompute", "swap"])
def test_phase_is_never_guessed_from_counts_after_a_preemption(kind: str) -> None:
    scheduler = make(num_blocks=4, budget=16, host_slots=8, prefix_cache=False, preemption=kind)
    first, second = add(scheduler, 7, 8, name="first"), add(scheduler, 7, 8, name="second")
    step(scheduler), step(scheduler), step(scheduler)
    assert second.state is RequestState.WAITING
    while first.state is not RequestState.FINISHED:
        step(scheduler)
    plan = scheduler.select()
    # All nine known tokens are recomputed, outputs like a prompt; or none are, and the request continues decoding.
    again = kind == "recompute"
    assert (plan.lengths, plan.num_decodes) == (([9], 0) if again else ([1], 1))
    assert second.state is (RequestState.INITIATION if again else RequestState.INCREMENT)
    compute(scheduler, plan)
    drain(scheduler)


def test_a_hit_on_a_block_that_the_same_batch_has_not_computed_yet() -> None:
    scheduler = make(num_blocks=30, budget=64)
    shared = tuple(range(16))
    first, second = add(scheduler, (*shared, 100), name="first"), add(scheduler, (*shared, 200), name="second")
    assert step(scheduler) == {"first": 17}
    assert step(scheduler) == {"first": 1, "second": 1}
    assert (first.cached_tokens, second.cached_tokens) == (0, 16)


def test_a_request_that_awaits_a_prefix_blocks_no_other() -> None:
    scheduler = make(num_blocks=30, budget=64)
    shared = tuple(range(16))
    for name in ("first", "second"):
        add(scheduler, (*shared, len(name)), name=name)
    add(scheduler, 5, name="other")
    assert step(scheduler) == {"first": 17, "other": 5}


def test_the_cost_of_requests_that_await_a_prefix_is_bounded_by_the_batch_size() -> None:
    scheduler = make(num_blocks=60, budget=64, batch=4)
    for index in range(30):
        add(scheduler, (*range(16), 1000 + index))
    looked_at = []
    remove = scheduler.policy.remove
    scheduler.policy.remove = lambda each: (looked_at.append(each), remove(each))[1]  # type: ignore[method-assign]
    scheduler.select()
    assert len(looked_at) <= 5


def test_a_swapped_request_continues_where_it_was() -> None:
    scheduler = make(num_blocks=4, budget=16, host_slots=4, preemption="swap")
    first, second = add(scheduler, 7, 8, name="first"), add(scheduler, 7, 8, name="second")
    step(scheduler), step(scheduler), step(scheduler)
    assert (scheduler.preemptions, scheduler.swaps) == (1, 1)
    assert second.swapped is not None
    assert second.num_computed == 8
    drain(scheduler)
    assert first.num_outputs == second.num_outputs == 8
    assert second.timeline.chunks == []


def test_with_full_host_memory_preemption_recomputes() -> None:
    scheduler = make(num_blocks=4, budget=16, host_slots=1, preemption="swap")
    add(scheduler, 7, 8), add(scheduler, 7, 8)
    drain(scheduler)
    assert scheduler.preemptions >= 1
    assert scheduler.swaps == 0


def test_a_request_too_large_to_swap_in_is_recomputed() -> None:
    scheduler = make("priority", num_blocks=3, budget=16, batch=1, host_slots=8, preemption="swap")
    whole = add(scheduler, 11, 1, name="whole", priority_class="low")
    whole.timeline.submitted_s = 1e9  # its key is greater than any other
    plan = scheduler.select()
    assert plan.lengths == [11]
    for each, length in zip(plan.requests, plan.lengths, strict=True):
        each.launch(length - 1)
    urgent = add(scheduler, 3, 2, name="urgent", priority_class="realtime")
    plan = scheduler.select()
    assert plan.requests == [urgent]
    assert whole.swapped is None
    compute(scheduler, plan)
    drain(scheduler)


def test_cancelling_a_swapped_request_frees_its_host_memory() -> None:
    scheduler = make(num_blocks=4, budget=16, host_slots=4, preemption="swap")
    add(scheduler, 7, 8)
    second = add(scheduler, 7, 8)
    step(scheduler), step(scheduler), step(scheduler)
    assert second.swapped is not None
    cancel(scheduler, second)
    scheduler.check_integrity()
    assert scheduler.cache.groups[0].host.num_free == 4


def test_a_swapped_request_does_not_take_the_blocks_of_a_running_prefill() -> None:
    scheduler = make(num_blocks=8, budget=8, host_slots=8, preemption="swap")
    add(scheduler, 14, 5, name="first")
    back = add(scheduler, 14, 8, name="back")
    while back.swapped is None:
        step(scheduler)
    cancel(scheduler, next(iter(scheduler.requests.running)))
    drain(scheduler)
    assert len(back.timeline.preempted_s) == 1


def test_no_request_is_preempted_while_its_token_is_pending() -> None:
    scheduler = make(num_blocks=4, budget=16, preemption="recompute", prefix_cache=False)
    first, second = add(scheduler, 7, 8, name="first"), add(scheduler, 7, 8, name="second")
    step(scheduler), step(scheduler)
    first.num_pending = second.num_pending = 1  # as between the halves of an iteration
    assert scheduler.select().requests == []
    first.num_pending = second.num_pending = 0
    assert step(scheduler) == {"first": 1}


def test_choices_of_one_prompt_compute_it_once() -> None:
    scheduler = make(num_blocks=30, budget=64)
    prompt = tuple(range(18))
    choices = [add(scheduler, prompt, 3, group="n", name=f"choice-{index}") for index in range(3)]
    assert step(scheduler) == {"choice-0": 18}
    assert step(scheduler) == {each.id: 1 for each in choices}
    store = scheduler.cache.groups[0].store
    assert isinstance(store, TokenStore)
    assert store.copies == 2
    drain(scheduler)


def test_the_choices_of_two_prompts_of_one_group_find_their_own_leader() -> None:
    scheduler = make(num_blocks=30, budget=64)
    pairs = [add(scheduler, (prompt,) * 5, 3, group="n") for _ in range(2) for prompt in (1, 2)]
    assert [[each.id for each in leader.followers] for leader in pairs[:2]] == [[pairs[2].id], [pairs[3].id]]
    cancel(scheduler, pairs[0])
    late = add(scheduler, (1,) * 5, 3, group="n")
    assert pairs[2].followers == [late]
    drain(scheduler)
    assert len(scheduler._admission.leaders) == 0


def test_integrity_check_detects_a_stolen_block() -> None:
    scheduler = make()
    each = add(scheduler, 8, 2)
    scheduler.select()
    scheduler.check_integrity()
    assert each.kv is not None
    each.kv.blocks[0].clear()
    with pytest.raises(IntegrityError):
        scheduler.check_integrity()


def test_relief_does_not_query_the_policy_about_ended_requests() -> None:
    scheduler = make("slo", budget=16)
    one, other = add(scheduler, 4), add(scheduler, 4)
    plan = scheduler.select()
    cancel(scheduler, one)
    assert scheduler.relieve(plan)
    assert other.state is RequestState.INITIATION
    drain(scheduler)
    assert not scheduler.policy._latest  # type: ignore[attr-defined]  # it would keep what nobody ends any more


@pytest.mark.parametrize(
    ("prompt", "lengths"),
    [(100, [100] * 5 + [12]), (85, [85] * 6)],
    ids=["none left", "less than a block left"],
)
def test_a_request_without_rows_for_its_prompt_blocks_no_other(prompt: int, lengths: list[int]) -> None:
    scheduler = make(num_blocks=600, budget=1024, batch=16)
    asking = [add(scheduler, prompt, 1, prompt_logprobs=0) for _ in range(9)]
    other = add(scheduler, 30, 1)
    plan = scheduler.select()
    assert plan.requests == scheduler.requests.running == [*asking[: len(lengths)], other]
    assert plan.lengths == [*lengths, 30]
    compute(scheduler, plan)
    plan = scheduler.select()
    assert plan.requests == [each for each in asking if each.state is not RequestState.FINISHED]
    compute(scheduler, plan)
    assert not drain(scheduler)


def test_no_request_is_preempted_for_one_without_rows() -> None:
    scheduler = make("priority", num_blocks=600, budget=1024, batch=2, max_model_len=2000)
    add(scheduler, 1500, 1, name="long", priority_class="realtime", prompt_logprobs=0)
    add(scheduler, 5, 9, name="small", priority_class="low")
    assert step(scheduler) == {"long": 512, "small": 5}
    add(scheduler, 20, 1, name="urgent", priority_class="realtime", prompt_logprobs=0)
    assert step(scheduler) == {"small": 1, "long": 512}
    assert scheduler.preemptions == 0
    assert step(scheduler) == {"long": 476, "urgent": 20}


def test_a_request_without_rows_that_runs_alone_blocks_no_other() -> None:
    scheduler = make(num_blocks=600, budget=1024, batch=16, max_model_len=1000)
    for name in ("first", "second"):
        add(scheduler, 600, 1, name=name, prompt_logprobs=0)
    add(scheduler, 30, 1, name="third")
    add(scheduler, 30, 1, name="outside")
    scheduler.isolation.request_ids = ("first", "second", "third")
    assert step(scheduler) == {"first": 512, "third": 30}
    assert step(scheduler) == {"first": 88, "second": 424}
    drain(scheduler)


def test_waiting_requests_begin_soon_if_only_tokens_are_lacking() -> None:
    scheduler = make(num_blocks=30, budget=8)
    assert scheduler.begins_soon
    add(scheduler, 8, 4), add(scheduler, 8, 4)
    step(scheduler)
    assert (len(scheduler.requests.waiting), scheduler.begins_soon) == (1, True)
    add(scheduler, 8, 4)
    assert not scheduler.begins_soon, "two iterations of 8 tokens do not compute 16 and a decode step"


def test_waiting_requests_that_lack_a_place_or_memory_do_not_begin_soon() -> None:
    for num_blocks, batch in ((30, 1), (3, 4)):
        scheduler = make(budget=16, num_blocks=num_blocks, batch=batch, prefix_cache=False)
        add(scheduler, 8, 4), add(scheduler, 5, 1)
        step(scheduler)
        assert (len(scheduler.requests.waiting), scheduler.begins_soon) == (1, False)
        drain(scheduler)
        assert scheduler.begins_soon


def test_waiting_requests_that_lack_memory_do_not_begin_soon_while_a_prompt_takes_all_tokens() -> None:
    scheduler = make(num_blocks=6, prefix_cache=False)
    add(scheduler, 20, 1), add(scheduler, 8, 1)
    assert [len(step(scheduler)), len(step(scheduler))] == [1, 1]
    assert (scheduler.requests.prompt_tokens_left, scheduler.begins_soon) == (12, False)
    drain(scheduler)
    assert scheduler.begins_soon


def test_tokens_for_decode_steps_are_not_left_for_waiting_requests() -> None:
    scheduler = make(num_blocks=30)
    for name in ("a", "b"):
        add(scheduler, 3, 9, name=name)
    step(scheduler)
    add(scheduler, 20, 1, name="long")
    assert step(scheduler) == {"a": 1, "b": 1, "long": 4}
    assert (scheduler.requests.prompt_tokens_left, scheduler.begins_soon) == (16, False)
    step(scheduler)
    assert (scheduler.requests.prompt_tokens_left, scheduler.begins_soon) == (12, False)
    step(scheduler)
    assert (scheduler.requests.prompt_tokens_left, scheduler.begins_soon) == (8, True)


def test_after_a_preemption_no_waiting_request_begins_soon() -> None:
    scheduler = make(num_blocks=4, budget=16, prefix_cache=False, preemption="recompute")
    add(scheduler, 7, 8), add(scheduler, 7, 8)
    step(scheduler), step(scheduler)
    assert scheduler.begins_soon
    step(scheduler)
    assert (scheduler.preemptions, scheduler.begins_soon) == (1, False)
    add(scheduler, 3, 1, name="alone")
    scheduler.isolation.request_ids = ["alone"]
    step(scheduler)
    assert not scheduler.begins_soon

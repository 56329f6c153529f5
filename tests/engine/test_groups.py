"""The choices of one prompt: the prompt is computed once, blocks are shared, and each choice is as if alone."""

from typing import Any

import pytest

from orcastream.engine import Request, RequestState
from orcastream.schemas.sampling import SamplingParams
from tests.engine.running import MakeEngine, crowd, run, tokens

PROMPT = tuple(range(2, 33))


def choices(count: int, group: str | None, prompt: tuple[int, ...] = PROMPT, **params: Any) -> list[Request]:
    sampling = SamplingParams(**{"temperature": 1.0, "max_tokens": 10, **params})
    return [Request(f"{group}-{index}", prompt, sampling, seed=index, group=group) for index in range(count)]


@pytest.mark.parametrize(
    "settings", [{}, {"prefix_cache": False}, {"admission": "reserve"}, {"overlap": "on"}], ids=str
)
def test_sixteen_choices_compute_the_prompt_once(settings: dict[str, Any], make_engine: MakeEngine) -> None:
    alone = {}
    for each in choices(16, "a"):
        each.group = None
        alone |= run(make_engine(num_blocks=256), each)
    engine = make_engine(num_blocks=256, **settings)
    together = run(engine, *choices(16, "a"))
    assert {name: tokens(each) for name, each in together.items()} == {
        name: tokens(each) for name, each in alone.items()
    }
    assert engine.stats().prompt_tokens == len(PROMPT)
    assert engine.stats().cached_tokens == 15 * len(PROMPT)
    assert {event.cached_tokens for name in together for event in together[name]} == {0, len(PROMPT)}


def test_choices_wait_for_a_batch_slot_only_if_none_is_reserved(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=256, max_num_batched_tokens=8, max_batch_size=6, prefix_cache=False)
    for each in (*choices(4, "a"), *choices(4, "b")):
        engine.submit(each)
    assert engine.num_waiting == 8
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (1, 4)
    engine.cancel("a-0")  # the others must start over
    assert engine.num_waiting == 7
    while engine.num_running < 3:
        engine.step()
    assert engine.num_waiting == 4


def test_blocks_are_shared_until_a_write(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=256, block_size=4)
    for each in choices(16, "a", PROMPT[:30]):
        engine.submit(each)
    engine.step()
    assert engine.num_running == 16
    assert engine.stats().blocks_used == 8
    engine.step()  # each writes after the 30 tokens, into a copy of the eighth block
    assert engine.stats().blocks_used == 7 + 16
    engine.check_integrity()


@pytest.mark.parametrize("admission", ["paged", "reserve"])
def test_choices_among_others_with_too_little_memory(admission: str, make_engine: MakeEngine) -> None:
    expected = run(make_engine(num_blocks=256, prefix_cache=False), *choices(6, "a"), *choices(5, "b"), *crowd())
    engine = make_engine(num_blocks=24, admission=admission, max_num_batched_tokens=16, max_batch_size=8)
    found = run(engine, *choices(6, "a"), *choices(5, "b"), *crowd())
    assert {name: tokens(each) for name, each in found.items()} == {
        name: tokens(each) for name, each in expected.items()
    }


def test_more_choices_than_batch_slots(make_engine: MakeEngine) -> None:
    expected = run(make_engine(num_blocks=256), *choices(11, None))
    engine = make_engine(num_blocks=256, max_batch_size=4)
    found = run(engine, *choices(11, "None"))
    assert [tokens(each) for each in found.values()] == [tokens(each) for each in expected.values()]
    assert engine.stats().prompt_tokens <= len(PROMPT) + 2 * 4


@pytest.mark.parametrize("when", [0, 1, 3])
@pytest.mark.parametrize("who", [0, 2])
def test_cancelling_one_choice_leaves_the_others(who: int, when: int, make_engine: MakeEngine) -> None:
    expected = run(make_engine(num_blocks=256), *choices(4, "a"))
    engine = make_engine(num_blocks=256, max_num_batched_tokens=32, prefix_cache=False)
    requests = choices(4, "a", PROMPT)
    found: dict[str, list[int | None]] = {}
    for each in requests:
        engine.submit(each)
    for step in range(40):
        if step == when:
            assert engine.cancel(f"a-{who}")
        for event in engine.step():
            found.setdefault(event.request_id, []).append(event.token)
        engine.check_integrity()
    assert requests[who].state is RequestState.FINISHED
    for index in range(4):
        if index != who:
            assert found[f"a-{index}"] == tokens(expected[f"a-{index}"])


def test_remaining_choices_still_reuse_and_share_the_prompt(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=256)
    for name, most in (("a", len(PROMPT) + 2 * 4), ("b", 3 * 4)):
        before = engine.stats().prompt_tokens
        for each in choices(4, name):
            engine.submit(each)
        engine.cancel(f"{name}-0")
        while engine.has_work:
            engine.step()
            engine.check_integrity()
        assert engine.stats().prompt_tokens - before <= most


def test_generate_gives_n_completions_per_prompt(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=256)
    sampling = SamplingParams(temperature=1.0, max_tokens=5, seed=3)
    found = engine.generate([PROMPT, PROMPT[:9]], sampling, n=3)
    assert [len(each.prompt_ids) for each in found] == [31, 31, 31, 9, 9, 9]
    assert len({each.output_ids for each in found}) == 6
    assert engine.stats().prompt_tokens <= 31 + 9
    beams = engine.generate([PROMPT], SamplingParams(temperature=0, max_tokens=5), n=2, beam_width=4)
    assert len({each.output_ids for each in beams}) == 2
    with pytest.raises(ValueError, match="n: got 0"):
        engine.generate([PROMPT], sampling, n=0)


def test_choices_with_different_outputs_are_no_group(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=256, prefix_cache=False)
    first, second = choices(2, "a")
    expected = tokens(run(make_engine(num_blocks=256), choices(2, "b")[1])["b-1"])
    second = Request("a-1", PROMPT, second.sampling, seed=1, group="a", output_ids=tuple(expected[:3]))  # type: ignore[arg-type]
    found = run(engine, first, second)
    assert tokens(found["a-1"]) == expected[3:]
    assert engine.stats().prompt_tokens == 2 * len(PROMPT)


@pytest.mark.parametrize("other", [{"tenant": "another"}, {"cache_salt": "another"}])
def test_tenants_and_salts_share_nothing_even_in_one_group(other: dict[str, Any], make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=256)
    sampling = SamplingParams(temperature=0, max_tokens=5)
    first, second = Request("a", PROMPT, sampling, group="a"), Request("b", PROMPT, sampling, group="a", **other)
    found = run(engine, first, second)
    assert tokens(found["a"]) == tokens(found["b"])
    assert engine.stats().prompt_tokens == 2 * len(PROMPT)
    assert first.cached_tokens == second.cached_tokens == 0

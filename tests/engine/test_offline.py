"""Many prompts at once through generate."""

from collections.abc import Callable

import pytest

from orcastream.engine import OrcaEngine, Request
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.stopping import FinishReason

MakeEngine = Callable[..., OrcaEngine]
GREEDY = SamplingParams(temperature=0, max_tokens=5)


def test_completions_are_in_the_order_of_the_prompts(make_engine: MakeEngine) -> None:
    prompts = [[1, 2, 3], list(range(30)), [7]]
    together = make_engine(max_batch_size=2).generate(prompts, GREEDY)
    assert [completion.prompt_ids for completion in together] == [tuple(prompt) for prompt in prompts]
    apart = [make_engine().generate([prompt], GREEDY)[0] for prompt in prompts]
    assert together == apart
    assert all(completion.finish_reason is FinishReason.LENGTH for completion in together)
    assert all(len(completion.output_ids) == 5 and completion.logprobs is None for completion in together)


def test_each_prompt_can_have_its_own_sampling(make_engine: MakeEngine) -> None:
    short, long = make_engine().generate(
        [[1, 2], [1, 2]], [SamplingParams(max_tokens=2, logprobs=1), SamplingParams(max_tokens=6, seed=3)]
    )
    assert (len(short.output_ids), len(long.output_ids)) == (2, 6)
    assert short.logprobs is not None
    assert len(short.logprobs) == 2


def test_the_same_call_gives_the_same_tokens(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompts = [[1, 2]] * 3
    first = engine.generate(prompts, SamplingParams(max_tokens=10))
    assert first == engine.generate(prompts, SamplingParams(max_tokens=10))
    assert len({completion.output_ids for completion in first}) == 3


def test_one_bad_prompt_leaves_nothing_behind(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequest):
        engine.generate([[1, 2], []], GREEDY)
    assert not engine.has_work
    with pytest.raises(ValueError, match="one, or as many as prompts"):
        engine.generate([[1]], [GREEDY, GREEDY])


def test_generate_needs_an_idle_engine(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit(Request("a", (1,), GREEDY))
    with pytest.raises(RuntimeError, match="under way"):
        engine.generate([[1]], GREEDY)
    assert engine.num_waiting == 1


def test_no_prompts(make_engine: MakeEngine) -> None:
    assert make_engine().generate([], GREEDY) == []

"""Log probabilities of prompts equal those of a plain forward pass, whatever is batched, chunked or interrupted."""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine, PromptEvent, Request
from orcastream.engine.model.passes import apply_passes, passes_unavailable
from orcastream.engine.schedule.plan import MOST_PROMPT_ROWS
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.sampling import SamplingParams
from tests.engine.running import MakeEngine, MakeModel, crowd
from tests.lora import merged, save_adapter

PROMPT = tuple((7 * index + index * index) % 96 for index in range(50))
Items = list[Any]
"""Log probabilities and rank of each token of a prompt."""


def ask(name: str, prompt: tuple[int, ...] = PROMPT, count: int | None = 3, **fields: Any) -> Request:
    params = SamplingParams(temperature=0, max_tokens=fields.pop("max_tokens", 4))
    return Request(name, prompt, params, prompt_logprobs=count, **fields)


def run(engine: OrcaEngine, *requests: Request) -> tuple[dict[str, Items], dict[str, list[int | None]]]:
    """Submit all at once; return each request's prompt items, each position once, before all tokens, and its tokens."""
    items: dict[str, Items] = {each.id: [] for each in requests}
    tokens: dict[str, list[int | None]] = {each.id: [] for each in requests}
    for each in requests:
        engine.submit(each)
    told = {each.id: each.prompt_told for each in requests}
    while engine.has_work:
        events = engine.step()
        for event in engine.prompt_events:
            take(event, items[event.request_id], told[event.request_id])
            assert not tokens[event.request_id]
        for token in events:
            assert token.error is None, token.error
            tokens[token.request_id].append(token.token)
        engine.check_integrity()
    assert engine.stats().blocks_used == 0
    return items, tokens


def take(event: PromptEvent, items: Items, told: int) -> None:
    assert event.position == told + len(items)
    assert event.logprobs
    items += zip(event.logprobs, event.ranks, strict=True)


def reference(model: PreTrainedModel, prompt: Sequence[int]) -> torch.Tensor:
    """Return a matrix whose row i has the log probabilities of token i + 1."""
    with torch.inference_mode():
        model.set_attn_implementation("eager")
        logits: torch.Tensor = model(torch.tensor([prompt], device=model.device)).logits[0]
    return logits.double().log_softmax(dim=-1)


def check(items: Items, prompt: Sequence[int], expected: torch.Tensor, count: int, *, told: int = 0) -> None:
    """Check that `items` cover the tokens of `prompt` from `told` on."""
    assert len(items) == len(prompt) - told
    for position, (item, rank) in enumerate(items, told):
        if position == 0:
            assert (item, rank) == (None, None)
            continue
        row = expected[position - 1]
        own, likeliest = item
        assert own == pytest.approx(row[prompt[position]].item(), abs=2e-4)
        above = [int((row > row[prompt[position]] + margin).sum()) for margin in (2e-4, -2e-4)]
        assert above[0] < rank <= above[1] + 1
        assert len(likeliest) == count
        assert [value for _, value in likeliest] == pytest.approx(row.topk(count).values.tolist(), abs=2e-4)
        for token, value in likeliest:
            assert value == pytest.approx(row[token].item(), abs=2e-4)
        assert all(first >= second for (_, first), (_, second) in pairwise(likeliest))


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt2", "mixtral"])
@pytest.mark.parametrize("budget", [8, 256])
def test_log_probabilities_equal_a_forward_pass(
    family: str, budget: int, make_model: MakeModel, make_engine: MakeEngine
) -> None:
    model = make_model(family)
    expected = {count: reference(model, PROMPT[:count]) for count in (1, 2, 17, 50)}
    engine = make_engine(model, max_num_batched_tokens=budget)
    items, tokens = run(engine, *[ask(str(count), PROMPT[:count]) for count in expected])
    for count, rows in expected.items():
        check(items[str(count)], PROMPT[:count], rows, 3)
        assert len(tokens[str(count)]) == 4


@pytest.mark.parametrize("count", [0, 1, 20])
def test_the_requested_number_of_likeliest_tokens(count: int, make_model: MakeModel, make_engine: MakeEngine) -> None:
    model = make_model()
    expected = reference(model, PROMPT)
    items, _ = run(make_engine(model), ask("a", count=count))
    check(items["a"], PROMPT, expected, count)


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("settings", [{}, {"preemption": "swap", "host_cache_memory": 1 << 20}], ids=["again", "swap"])
def test_with_other_requests_and_through_preemptions(
    overlap: str, settings: dict[str, Any], make_model: MakeModel, make_engine: MakeEngine
) -> None:
    model = make_model()
    rows = reference(model, PROMPT)
    alone = run(make_engine(model, num_blocks=256), *crowd(6))[1]
    asking = [ask(f"ask-{number}", PROMPT[: 50 - 9 * number], max_tokens=20) for number in range(4)]
    engine = make_engine(model, num_blocks=26, max_num_batched_tokens=8, overlap=overlap, **settings)
    items, tokens = run(engine, *[each for pair in zip(asking, crowd(6), strict=False) for each in pair], *crowd(6)[4:])
    assert engine.stats().preemptions > 0
    for each in asking:
        check(items[each.id], each.prompt_ids, rows, 3)
    for name, found in alone.items():
        assert tokens[name] == found
        assert items[name] == []


def test_a_cached_prefix_is_computed_again_and_serves_others(make_model: MakeModel, make_engine: MakeEngine) -> None:
    model = make_model()
    rows = reference(model, PROMPT)
    engine = make_engine(model)
    plain = run(engine, ask("first", count=None))[1]["first"]
    items, tokens = run(engine, ask("again"))
    check(items["again"], PROMPT, rows, 3)
    assert tokens["again"] == plain
    assert engine.stats().cached_tokens == 0
    run(engine, ask("third", count=None))
    assert engine.stats().cached_tokens >= 48


@pytest.mark.parametrize("told", [1, 2, 30, 49])
def test_only_positions_not_yet_published(told: int, make_model: MakeModel, make_engine: MakeEngine) -> None:
    model = make_model()
    rows = reference(model, PROMPT)
    engine = make_engine(model, max_num_batched_tokens=16)
    run(engine, ask("before", count=None))
    items, _ = run(engine, ask("a", prompt_told=told))
    check(items["a"], PROMPT, rows, 3, told=told)
    assert engine.stats().cached_tokens <= max(0, told - 1)


def test_all_positions_and_some_tokens_already_published(make_engine: MakeEngine) -> None:
    engine = make_engine()
    expected = run(engine, ask("whole", count=None))[1]["whole"]
    outputs = [token for token in expected[:2] if token is not None]
    items, tokens = run(engine, ask("rest", prompt_told=len(PROMPT), output_ids=outputs))
    assert (items["rest"], tokens["rest"]) == ([], expected[2:])


def test_a_group_computes_its_prompt_once(make_model: MakeModel, make_engine: MakeEngine) -> None:
    model = make_model()
    rows = reference(model, PROMPT)
    choices = [ask(f"choice-{number}", count=None if number else 2, group="g") for number in range(3)]
    engine = make_engine(model, max_num_batched_tokens=16)
    items, tokens = run(engine, *choices)
    check(items["choice-0"], PROMPT, rows, 2)
    assert tokens["choice-1"] == tokens["choice-2"] == tokens["choice-0"]
    assert engine.stats().prompt_tokens == len(PROMPT)


def test_each_request_of_a_group_gets_its_own(make_model: MakeModel, make_engine: MakeEngine) -> None:
    model = make_model()
    rows = reference(model, PROMPT)
    items, _ = run(make_engine(model), *[ask(f"choice-{number}", group="g") for number in range(2)])
    for found in items.values():
        check(found, PROMPT, rows, 3)


def test_an_iteration_holds_few_rows_of_logits(make_model: MakeModel, make_engine: MakeEngine) -> None:
    model = make_model(max_position_embeddings=2048)
    prompt = tuple((5 * index + index * index) % 96 for index in range(MOST_PROMPT_ROWS + 300))
    rows = reference(model, prompt)
    engine = make_engine(model, num_blocks=1024, max_num_batched_tokens=2048, max_batch_size=8)
    most: list[int] = []
    forward = engine._runner.forward

    def noted(batch: Any, *_: object) -> torch.Tensor:
        most.append(len(batch.logit_rows))
        return forward(batch)

    engine._runner.forward = noted  # type: ignore[method-assign]
    items, tokens = run(engine, ask("a", prompt), ask("b", prompt[::-1]), ask("plain", prompt, count=None))
    check(items["a"], prompt, rows, 3)
    assert len(items["b"]) == len(prompt)
    assert tokens["plain"] == tokens["a"]
    assert max(most) <= MOST_PROMPT_ROWS + 3


def test_a_request_that_runs_alone(make_model: MakeModel, make_engine: MakeEngine) -> None:
    model = make_model()
    engine = make_engine(model, max_num_batched_tokens=8)
    engine.isolate(["a"])
    items, _ = run(engine, ask("a"), ask("other", count=None))
    check(items["a"], PROMPT, reference(model, PROMPT), 3)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_model_with_passes(backend: str, make_model: MakeModel) -> None:
    why = passes_unavailable(torch.device("cpu"))
    if why is not None:
        pytest.skip(why)
    model = make_model(vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=3, head_dim=32).to("cpu")
    rows = reference(model, PROMPT)
    changed = copy.deepcopy(model)
    assert apply_passes(changed)["compile_decoder"] == 1
    config = EngineConfig("tiny", attention_backend=backend, max_num_batched_tokens=16, max_batch_size=8)
    engine = OrcaEngine(config, changed)
    assert engine._runner.is_compiled is (backend == "native")
    items, _ = run(engine, ask("a"), ask("plain", PROMPT[:9], count=None), ask("b", PROMPT[:20]))
    check(items["a"], PROMPT, rows, 3)
    check(items["b"], PROMPT[:20], rows, 3)


def test_with_an_adapter(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model().to("cpu")
    folder = save_adapter(model, tmp_path, seed=1)
    rows = {"base": reference(model, PROMPT), "adapted": reference(merged(model, folder), PROMPT)}
    config = EngineConfig("tiny", max_adapters=1, max_num_batched_tokens=16, max_batch_size=8)
    engine = OrcaEngine(config, model)
    assert engine.adapters is not None
    items, _ = run(engine, ask("base"), ask("adapted", adapter=engine.adapters.read("one", folder)))
    for name, expected in rows.items():
        check(items[name], PROMPT, expected, 3)


def test_a_prompt_without_finite_scores_ends_alone(make_model: MakeModel, make_engine: MakeEngine) -> None:
    model = make_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[PROMPT[20]] = math.nan
    engine = make_engine(model)
    good, bad = ask("good", tuple(each for each in PROMPT if each != PROMPT[20])), ask("bad")
    for each in (good, bad):
        engine.submit(each)
    events = [event for _ in range(12) if engine.has_work for event in engine.step()]
    assert [event.request_id for event in events if event.error is not None] == ["bad"]
    assert [event.token is not None for event in events if event.request_id == "good"] == [True] * 4


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"count": 21}, "prompt_logprobs"),
        ({"count": -1}, "prompt_logprobs"),
        ({"count": 1.5}, "prompt_logprobs"),
        ({"prompt_told": 51}, "prompt_told"),
        ({"prompt_told": 0.5}, "prompt_told"),
    ],
)
def test_unsupported_requests_are_refused(fields: dict[str, Any], field: str, make_engine: MakeEngine) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{field}: got"):
        make_engine().submit(ask("a", **fields))


def test_requests_without_them_pay_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    rows: list[int] = []
    forward = engine._runner.forward

    def noted(batch: Any, *_: object) -> torch.Tensor:
        rows.append(len(batch.logit_rows))
        assert len(batch.logit_rows) <= batch.num_spans
        return forward(batch)

    engine._runner.forward = noted  # type: ignore[method-assign]
    items, _ = run(engine, *crowd(6))
    assert rows
    assert not any(items.values())


@pytest.mark.parametrize("policy", ["fcfs", "fair", "sjf", "priority", "slo"])
def test_later_requests_join_in_the_same_iteration(policy: str, make_model: MakeModel, make_engine: MakeEngine) -> None:
    settings = {"max_num_batched_tokens": 1024, "max_batch_size": 16}
    engine = make_engine(make_model(), num_blocks=256, policy=policy, **settings)
    prompts = [tuple((first + step) % 96 for step in range(100)) for first in range(12)]
    asking = [ask(f"ask-{first}", prompt, 0) for first, prompt in enumerate(prompts)]
    plain = ask("plain", (*PROMPT, *PROMPT, *PROMPT[:20]), None)
    for each in (*asking, plain):
        engine.submit(each)
    assert "plain" in [event.request_id for event in engine.step()]
    assert engine.last_iteration is not None
    assert sum(engine.last_iteration.lengths) == MOST_PROMPT_ROWS + len(plain.prompt_ids)
    engine.check_integrity()
    assert engine.num_running == 7
    while engine.has_work:
        engine.step()
    assert all(each.prompt_told == 100 for each in asking)


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_logits_are_freed_before_the_next_iteration(overlap: str, make_engine: MakeEngine) -> None:
    engine = make_engine(overlap=overlap, max_num_batched_tokens=16)
    earlier: list[StorageWeakRef] = []
    forward = engine._runner.forward

    def noted(batch: Any, *_: object) -> torch.Tensor:
        assert all(each.expired() for each in earlier)
        logits = forward(batch)
        earlier.append(StorageWeakRef(logits.untyped_storage()))
        return logits

    engine._runner.forward = noted  # type: ignore[method-assign]
    items, _ = run(engine, ask("a"), ask("plain", count=None))
    assert len(items["a"]) == len(PROMPT)
    assert len(earlier) > 4

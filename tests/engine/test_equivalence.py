"""The engine's tokens equal those of transformers' generate, whatever is batched, chunked or preempted."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import OrcaEngine, Request
from orcastream.engine.attention import TorchBackend
from orcastream.engine.model.self_check import check_model
from orcastream.schemas.sampling import SamplingParams

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gpt2", "phi3", "olmo2", "mixtral")
Case = tuple[PreTrainedModel, list[tuple[tuple[int, ...], int]], list[list[int]]]


@pytest.fixture(scope="module", params=FAMILIES)
def case(
    request: pytest.FixtureRequest, make_model: Callable[..., PreTrainedModel], greedy_reference: Callable[..., Any]
) -> Case:
    """A model, twelve prompts with their numbers of tokens, and the expected tokens."""
    model = make_model(request.param)
    choose = random.Random(7)
    lengths = [3, 41, 1, 17, 30, 8, 16, 5, 33, 12, 2, 24]
    prompts = [(tuple(choose.randrange(96) for _ in range(length)), choose.randint(6, 20)) for length in lengths]
    return model, prompts, [greedy_reference(model, prompt, number) for prompt, number in prompts]


def run_with_arrivals(engine: OrcaEngine, prompts: list[tuple[tuple[int, ...], int]]) -> list[list[int]]:
    """Submit one request every other step; return the tokens of the events, per request."""
    tokens: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    arriving = list(enumerate(prompts))
    steps = 0
    while arriving or engine.has_work:
        if arriving and steps % 2 == 0:
            index, (prompt, number) = arriving.pop(0)
            engine.submit(Request(str(index), prompt, SamplingParams(temperature=0, max_tokens=number)))
        for event in engine.step():
            assert event.error is None
            assert event.position == len(tokens[event.request_id])
            assert event.token is not None
            tokens[event.request_id].append(event.token)
        engine.check_integrity()
        steps += 1
    assert engine.stats().blocks_used == 0
    return list(tokens.values())


def test_paged_with_preemptions_and_chunks_of_8(case: Case, make_engine: Callable[..., OrcaEngine]) -> None:
    model, prompts, expected = case
    few = 10 if getattr(model.config, "sliding_window", None) and model.config.model_type != "gemma2" else 20
    engine = make_engine(model, num_blocks=few, max_num_batched_tokens=8)
    assert run_with_arrivals(engine, prompts) == expected
    assert engine.stats().preemptions > 0


def test_reserve_with_chunks_of_8(case: Case, make_engine: Callable[..., OrcaEngine]) -> None:
    model, prompts, expected = case
    engine = make_engine(model, num_blocks=30, admission="reserve", max_num_batched_tokens=8)
    assert run_with_arrivals(engine, prompts) == expected
    assert engine.stats().preemptions == 0


def test_whole_prompts_in_one_batch(case: Case, make_engine: Callable[..., OrcaEngine]) -> None:
    model, prompts, expected = case
    engine = make_engine(model, num_blocks=256, block_size=16)
    assert run_with_arrivals(engine, prompts) == expected


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3", "gemma3_text", "cohere2", "qwen3_moe", "phi"])
def test_unusual_attention(
    family: str,
    make_model: Callable[..., PreTrainedModel],
    make_engine: Callable[..., OrcaEngine],
    greedy_reference: Callable[..., Any],
) -> None:
    model = make_model(family, **UNUSUAL[family])
    # Sinks are zeros in a fresh model.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.copy_(torch.linspace(-1, 2, parameter.numel()))
    prompts = [(tuple(range(start, start + length)), 8) for start, length in ((3, 20), (9, 1), (5, 33))]
    expected = [greedy_reference(model, prompt, number) for prompt, number in prompts]
    check_model(model, TorchBackend(), 128)
    engine = make_engine(model, num_blocks=16, max_num_batched_tokens=8)
    assert run_with_arrivals(engine, prompts) == expected


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
UNUSUAL: dict[str, dict[str, Any]] = {
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 10},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        **EXPERTS,
    },
    "gemma3_text": {"head_dim": 16, "sliding_window": 10, "num_hidden_layers": 6},
    "cohere2": {"sliding_window": 10, "num_hidden_layers": 4},
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, **EXPERTS},
    "phi": {},
    "cwm": {"head_dim": 16, "sliding_window": 10, "num_hidden_layers": 4},
}

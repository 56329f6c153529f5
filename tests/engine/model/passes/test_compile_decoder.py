"""Decoders computed by one call: their logits equal those of the modules, and other kinds are left alone."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine, Request
from orcastream.engine.attention import NativeBackend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import group_layers
from orcastream.engine.model.decoder_model import ATTRIBUTE
from orcastream.engine.model.passes import apply_passes, passes_unavailable
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.model.self_check import Reference, check_loaded
from orcastream.engine.native.maxima import RowMaxima
from orcastream.schemas.sampling import SamplingParams

pytestmark = pytest.mark.skipif(
    passes_unavailable(torch.device("cpu")) is not None,
    reason="no compiled operators: python -m orcastream.engine.native.build",
)

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 131,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 4, "moe_intermediate_size": 32}
GROUPED = EXPERTS | {"n_routed_experts": 16, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7}
SAME_KIND: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen2": {"head_dim": None, "hidden_size": 128},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {
        "num_experts": 40,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 40,
        "norm_topk_prob": False,
        "mlp_only_layers": [1],
    },
    "qwen2_moe": EXPERTS | {"head_dim": None, "num_experts": 16, "shared_expert_intermediate_size": 64},
    "glm4_moe": GROUPED | {"use_qk_norm": True, "pad_token_id": 0},
}
_SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
HALF = {"head_dim": None, "hidden_size": 128}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
_SEEING = {
    "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
}
VARIANTS: dict[str, dict[str, Any]] = {
    "arcee": {},
    "cohere": {**HALF, "pad_token_id": 0, "logit_scale": 0.3},
    "cohere2": {**_SLIDING, "pad_token_id": 0},
    "ernie4_5": {"pad_token_id": 0},
    "exaone4": {**_SLIDING, "pad_token_id": 0},
    "gemma": {},
    "gemma2": {**_SLIDING, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    "gpt_oss": {**_SLIDING, "num_local_experts": 5, "num_experts_per_tok": 2, "rope_parameters": _YARN},
    "gemma3": {**_SEEING, "text_config": {**SIZES, **_SLIDING, "tie_word_embeddings": True}, "pad_token_id": 0},
    "gemma3_text": {**_SLIDING, "tie_word_embeddings": True},
    "glm": {"pad_token_id": 0},
    "glm4": {"pad_token_id": 0},
    "granite": {**HALF, "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 3.0},
    "granitemoe": {**HALF, "num_local_experts": 5, "num_experts_per_tok": 2, "residual_multiplier": 0.5},
    "jais2": {},
    "nemotron": {**HALF, "hidden_act": "relu2"},
    "olmo": {**HALF, "eos_token_id": 2},
    "olmo2": {**HALF},
    "olmo3": {**HALF, **_SLIDING},
    "olmoe": {**HALF, "num_experts": 5, "num_experts_per_tok": 2},
    "phi": {**HALF},
    "phi3": {**HALF, "partial_rotary_factor": 0.5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "seed_oss": {"pad_token_id": 0},
    "smollm3": {**HALF, "no_rope_layers": [1, 0, 1], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "stablelm": {**HALF, "use_qkv_bias": True},
    "starcoder2": {**HALF, "hidden_act": "relu"},
}
"""Other norms, activations, factors, rotated neighbors, and layers that rotate nothing or by angles of their own."""


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def random_model(family: str, dtype: torch.dtype, **own: Any) -> PreTrainedModel:
    options = {name: value for name, value in {**SIZES, **own}.items() if value is not None}
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING[family](**options), attn_implementation="eager"
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("correction_bias"):
                weight.uniform_(0, 0.3)
            elif name.endswith(("norm.weight", "bias")):
                weight.normal_(1.0, 0.3)
            else:
                weight.mul_(3)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.uniform_(0, 0.3)
    return model.to(dtype).eval()


@pytest.mark.usefixtures("computes_with")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", SAME_KIND)
def test_logits_equal_those_of_the_model(family: str, dtype: torch.dtype) -> None:
    model = random_model(family, dtype, **SAME_KIND[family])
    reference = Reference.of(model, 128)
    assert apply_passes(model)["compile_decoder"] == 1
    assert ModelRunner(model, NativeBackend()).is_compiled
    check_loaded(model, NativeBackend(), reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", VARIANTS)
def test_logits_of_variants_equal_those_of_the_model(family: str, dtype: torch.dtype) -> None:
    model = random_model(family, dtype, **VARIANTS[family])
    reference = Reference.of(model, 128)
    implementation = model.config._attn_implementation
    assert apply_passes(model)["compile_decoder"] == 1
    assert model.config._attn_implementation == implementation
    check_loaded(model, NativeBackend(), reference)


@pytest.mark.usefixtures("computes_with")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["cohere", "gemma2", "nemotron", "olmo2"])
def test_variants_are_computed_with_every_instruction_set(family: str, dtype: torch.dtype) -> None:
    test_logits_of_variants_equal_those_of_the_model(family, dtype)


@pytest.mark.parametrize("family", [*SAME_KIND, *VARIANTS])
def test_variants_are_computed_with_weights_in_8_bits(family: str) -> None:
    model = random_model(family, torch.bfloat16, **{**SAME_KIND, **VARIANTS}[family])
    reference = Reference.of(model, 128)
    assert apply_passes(model, int8=True)["compile_decoder"] == 1
    check_loaded(model, NativeBackend(), reference, rounded=True)


@pytest.mark.parametrize("wanted", [(1, 1, 1, 1), (0, 0, 3, 0), (0, 1, 0, 57), (70, 1, 9, 90)], ids=str)
@pytest.mark.parametrize("family", ["llama", "mistral", "mixtral", "cohere", "olmo2"])
def test_omitting_logits_changes_no_other_logits(family: str, wanted: tuple[int, ...]) -> None:
    """The given number of last logits of each request equal those computed when all are requested."""
    model = random_model(family, torch.float32, **{**SAME_KIND, **VARIANTS}[family])
    assert apply_passes(model)["compile_decoder"] == 1
    lengths = (70, 1, 9, 90)
    every, some = _last_logits(model, lengths, lengths), _last_logits(model, lengths, wanted)
    for all_rows, rows, count in zip(every, some, wanted, strict=True):
        assert len(rows) == count
        torch.testing.assert_close(rows, all_rows[len(all_rows) - count :], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("computes_with")
@pytest.mark.parametrize("wanted", [(1, 0, 0, 0), (1, 1, 1, 1), (0, 0, 0, 0), (3, 1, 9, 40)], ids=str)
@pytest.mark.parametrize("value", [0.5, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_highest_logits_are_found_with_them(dtype: torch.dtype, value: float, wanted: tuple[int, ...]) -> None:
    """Of one row, which threads share, and of many; a NaN counts as the highest."""
    model = random_model("llama", dtype)
    assert apply_passes(model)["compile_decoder"] == 1
    with torch.inference_mode():
        getattr(model, ATTRIBUTE).final_norm.weight[3] = value
    runner, batch = _batch(model, (70, 1, 9, 90), wanted)
    maxima = RowMaxima(sum(wanted))
    logits = runner.forward(batch, maxima)
    assert maxima.found
    assert logits.isnan().any(dim=1).tolist() == [math.isnan(value)] * sum(wanted)
    torch.testing.assert_close(maxima.values, logits.float().amax(dim=1), rtol=0, atol=0, equal_nan=True)
    assert maxima.places.tolist() == logits.float().argmax(dim=1).tolist()


@pytest.mark.usefixtures("computes_with")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_experts_of_a_request_with_nan_disturb_no_other(dtype: torch.dtype) -> None:
    """Its scores are NaN, too, and no expert is the highest; whichever are computed have rows of other requests."""
    model = random_model("mixtral", dtype, **SAME_KIND["mixtral"])
    assert apply_passes(model)["compile_decoder"] == 1
    lengths = (3, 2, 9, 4)
    expected = _last_logits(model, lengths, (1, 1, 1, 1))
    with torch.inference_mode():
        getattr(model, ATTRIBUTE).embedding[_ids(9)[-1]] = torch.nan
    found = _last_logits(model, lengths, (1, 1, 1, 1))
    assert found[2].isnan().all()
    rounding = 1e-4 if dtype is torch.float32 else 0.05
    for index in (1, 3):  # the first request has that token, too
        torch.testing.assert_close(found[index], expected[index], rtol=rounding, atol=rounding)


def _last_logits(model: PreTrainedModel, lengths: Sequence[int], wanted: Sequence[int]) -> list[torch.Tensor]:
    """Return the last logits of several requests in one batch."""
    runner, batch = _batch(model, lengths, wanted)
    logits, spans_of = runner.forward(batch), torch.tensor(batch.logit_spans)
    return [logits[spans_of == span] for span in range(batch.num_spans)]


def _batch(model: PreTrainedModel, lengths: Sequence[int], wanted: Sequence[int]) -> tuple[ModelRunner, FlatBatch]:
    """Return several requests in one batch; the first has a context, so it is attended in parts."""
    runner = ModelRunner(model, NativeBackend())
    groups = group_layers(runner.shapes, 1200)
    blocks = [400 for _ in groups]
    runner.allocate(groups, blocks, 16)
    cache = KVCache(
        groups, blocks, block_size=16, max_sequences=4, max_model_len=1300, longest_span=1200, prefix_cache=False
    )
    earlier, *others = (cache.sequence_of(length) for length in (1200 + lengths[0], *lengths[1:]))
    runner.forward(FlatBatch.build([SpanTokens(earlier, _ids(1200), 0, 0)], cache, runner.device))
    spans = [SpanTokens(earlier, _ids(lengths[0]), 1200, wanted[0])]
    spans += [
        SpanTokens(sequence, _ids(length), 0, count)
        for sequence, length, count in zip(others, lengths[1:], wanted[1:], strict=True)
    ]
    return runner, FlatBatch.build(spans, cache, runner.device)


def _ids(count: int) -> tuple[int, ...]:
    return tuple(3 + 7 * index % 120 for index in range(count))


def test_the_callback_runs_once_the_batch_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier call would wake threads that then delay the computing call."""
    model = random_model("llama", torch.float32)
    assert apply_passes(model)["compile_decoder"] == 1
    engine = OrcaEngine(EngineConfig("random", device="cpu", self_check=False, kv_cache_memory=1 << 20), model)
    order: list[str] = []
    lay_out = NativeBackend.group_calls
    monkeypatch.setattr(
        NativeBackend, "group_calls", lambda *given, **named: order.append("laid out") or lay_out(*given, **named)
    )
    engine.call_before_forward(lambda: order.append("called"))
    engine.submit(Request("a", (5, 6, 7), SamplingParams(max_tokens=2, ignore_eos=True)))
    while engine.has_work:
        engine.step()
    assert order == ["laid out", "called"] * 2


def test_angles_are_not_precomputed_beyond_a_length_that_changes_them() -> None:
    """Longrope changes the angles of all positions as soon as one exceeds the original length."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
    half = SIZES["head_dim"] // 2
    factors = {"short_factor": [1.0] * half, "long_factor": [4.0] * half}
    model = random_model("llama", torch.float32, rope_parameters=rope | factors)
    prompts = [_ids(290), _ids(200)[::-1]]
    with torch.inference_mode():
        for weight in model.parameters():
            if weight.dim() > 1:  # so that attention is far from uniform
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
        expected = [int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) for ids in prompts]
    apply_passes(model)
    lengths: dict[str, Any] = {"max_model_len": 512, "max_num_batched_tokens": 300}
    config = EngineConfig("random", device="cpu", self_check=False, kv_cache_memory=1 << 22, **lengths)
    engine = OrcaEngine(config, model)
    greedy = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    assert [engine.generate([ids], greedy)[0].output_ids[0] for ids in prompts] == expected

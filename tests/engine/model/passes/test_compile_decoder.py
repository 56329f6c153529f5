"""Decoders computed by one call: their logits equal those of the modules, and other kinds are left alone."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine, Request
from orcastream.engine.attention import NativeBackend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import group_layers
from orcastream.engine.model.decoder_model import ATTRIBUTE
from orcastream.engine.model.passes import apply_passes
from orcastream.engine.model.runner import ModelRunner
from orcastream.engine.model.self_check import Reference, check_loaded
from orcastream.engine.native.maxima import RowMaxima
from orcastream.schemas.sampling import SamplingParams
from tests.engine.model.passes.families import SAME_KIND, SIZES, VARIANTS, random_model
from tests.engine.needs_operators import needs_operators

pytestmark = needs_operators


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


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

"""Requests with different adapters and without in one flat batch get the results of weights merged by PEFT."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream.engine import Adapter, Adapters, Beam, OrcaEngine, Request
from orcastream.engine.attention import NativeBackend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanColumns
from orcastream.engine.errors import UnsupportedAdapter
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import group_layers
from orcastream.engine.model.passes import apply_passes, passes_unavailable
from orcastream.engine.model.runner import ModelRunner
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.sampling import SamplingParams
from tests.engine.running import MakeEngine, MakeModel, run, tokens
from tests.lora import ATTENTION, MLP, merged, save_adapter

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [tuple(range(1, 6)), tuple(range(7, 28)), (9, 9), tuple(range(40, 53))]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {
        "use_rslora": True,
        "rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 7},
        "alpha_pattern": {"v_proj": 3},
    },
    "gemma2": {"target_modules": [*ATTENTION, *MLP]},
    "phi3": {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
    "cohere": {"target_modules": [*ATTENTION, *MLP]},
    "starcoder2": {"target_modules": [*ATTENTION, "c_fc", "c_proj"]},
    "gpt2": {"target_modules": ["c_attn", "c_fc", "c_proj"], "fan_in_fan_out": True},
    "mixtral": {"target_modules": ATTENTION},
}
"""Settings of their adapters."""
COMPILED = {"llama", "qwen3", "mixtral", "gemma2", "phi3", "cohere", "starcoder2"}
"""Those whose decoder one call computes; a mixture's iterations with adapters are computed by the modules."""
WIDE = {"hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": False}
"""Widths that the passes merge."""
NATIVE = pytest.mark.skipif(
    passes_unavailable(torch.device("cpu")) is not None,
    reason="no compiled operators: python -m orcastream.engine.native.build",
)
Reference = Callable[..., list[int]]


def read(engine: OrcaEngine, *folders: Path) -> list[Adapter]:
    assert engine.adapters is not None
    return [engine.adapters.read(folder.name, folder) for folder in folders]


def three(model: PreTrainedModel, folder: Path, **settings: Any) -> list[Path]:
    """Adapters that differ in more than their weights."""
    own: list[dict[str, Any]] = [settings, {**settings, "r": 3, "lora_alpha": 2}, {**settings, "r": 8}]
    own[1]["target_modules"] = (settings.get("target_modules") or ATTENTION)[:1]
    own[1].pop("rank_pattern", None)
    return [save_adapter(model, folder / f"a{seed}", seed=seed, **each) for seed, each in enumerate(own)]


def check(
    engine: OrcaEngine, model: PreTrainedModel, folders: list[Path], greedy_reference: Reference
) -> dict[str, list[int | None]]:
    """Compare one batch of all prompts, with each adapter and without, to transformers with merged weights."""
    adapters: list[Adapter | None] = [None, *read(engine, *folders)]
    requests = [
        Request(f"{number}-{index}", prompt, GREEDY, adapter=adapter)
        for index, prompt in enumerate(PROMPTS)
        for number, adapter in enumerate(adapters)
    ]
    found = {name: tokens(events) for name, events in run(engine, *requests).items()}
    models = [model, *(merged(model, folder) for folder in folders)]
    expected = {
        f"{number}-{index}": greedy_reference(one, prompt, 12)
        for number, one in enumerate(models)
        for index, prompt in enumerate(PROMPTS)
    }
    assert found == expected
    assert len({tuple(found[f"{number}-1"]) for number in range(4)}) == 4, "every adapter gives a different output"
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_results_equal_merged_weights(
    family: str, make_model: MakeModel, make_engine: MakeEngine, greedy_reference: Reference, tmp_path: Path
) -> None:
    model = make_model(family, tie_word_embeddings=False)
    folders = three(model, tmp_path, **FAMILIES[family])
    engine = make_engine(model, max_adapters=3, max_num_batched_tokens=24)
    check(engine, model, folders, greedy_reference)


FLAT: dict[str, tuple[dict[str, Any], list[str]]] = {
    "opt": ({"ffn_dim": 64, "word_embed_proj_dim": 64, "hidden_size": 64}, ["q_proj", "fc1", "fc2"]),
    "qwen2_moe": (
        {**WIDE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        | {"shared_expert_intermediate_size": 32},
        ["q_proj", *(f"shared_expert.{name}" for name in MLP)],
    ),
}
"""Models some of whose layers get the tokens without a dimension for the batch: their sizes, and those layers."""


@pytest.mark.parametrize("passes", [False, pytest.param(True, marks=NATIVE)], ids=["modules", "passes"])
@pytest.mark.parametrize("family", FLAT)
def test_layers_that_get_a_matrix_of_tokens(
    family: str,
    passes: bool,
    make_model: MakeModel,
    make_engine: MakeEngine,
    greedy_reference: Reference,
    tmp_path: Path,
) -> None:
    sizes, targets = FLAT[family]
    model, served = make_model(family, **sizes), make_model(family, **sizes)
    if passes:
        if model.device.type != "cpu":
            pytest.skip("the passes are for CPUs")
        apply_passes(served)
    folders = three(model, tmp_path, target_modules=targets[::-1])
    check(make_engine(served, max_adapters=3, max_num_batched_tokens=24), model, folders, greedy_reference)


class TwoExperts(nn.Module):
    """Sends all tokens to both, to the second one in another order."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(size, size), nn.Linear(size, size)])
        self.shared = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        y: torch.Tensor = self.shared(rows) + self.experts[0](rows) + self.experts[1](rows.flip(0)).flip(0)
        return y.view_as(x)


def test_experts_take_no_adapter_although_a_probe_sends_them_all_tokens(
    make_model: MakeModel, make_engine: MakeEngine, tmp_path: Path
) -> None:
    model = make_model()
    for layer in model.model.layers:
        layer.mlp = TwoExperts(model.config.hidden_size).to(model.device)
    engine = make_engine(model, max_adapters=1)
    read(engine, save_adapter(model, tmp_path / "shared", seed=0, target_modules=["shared"]))
    experts = save_adapter(model, tmp_path / "experts", seed=0, target_modules=["experts.0"])
    with pytest.raises(UnsupportedAdapter, match=r"layers\.0\.mlp\.experts\.0: not a linear layer"):
        read(engine, experts)


@NATIVE
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "phi3", "mixtral", "cohere", "starcoder2"])
def test_results_equal_merged_weights_after_passes(
    family: str, make_model: MakeModel, make_engine: MakeEngine, greedy_reference: Reference, tmp_path: Path
) -> None:
    model, fast = make_model(family, **WIDE), make_model(family, **WIDE)
    if model.device.type != "cpu":
        pytest.skip("the passes are for CPUs")
    folders = three(model, tmp_path, **FAMILIES[family])
    replaced = apply_passes(fast)
    assert bool(replaced["compile_decoder"]) == (family in COMPILED)
    for backend in ("native", "torch"):
        engine = make_engine(fast, attention_backend=backend, max_adapters=3, max_num_batched_tokens=24)
        assert engine._runner.is_compiled == (backend == "native" and family in COMPILED)
        check(engine, model, folders, greedy_reference)


@NATIVE
@pytest.mark.parametrize("wanted", [(1, 1), (4, 0), (0, 3), (5, 21), (0, 0)])
def test_the_compiled_decoder_equals_the_modules_in_bfloat16(
    wanted: tuple[int, int], make_model: MakeModel, tmp_path: Path
) -> None:
    """One request with an adapter and one without, logits of the given number of last tokens: the adapter changes only
    the first request's logits.
    """
    model = make_model("llama", **WIDE)
    if model.device.type != "cpu":
        pytest.skip("the passes are for CPUs")
    folder = save_adapter(model, tmp_path / "one", seed=0)
    expected = [one.to(torch.bfloat16) for one in (merged(model, folder), model)]
    fast = make_model("llama", **WIDE).to(torch.bfloat16)
    assert apply_passes(fast)["compile_decoder"]
    runner = ModelRunner(fast, NativeBackend())
    runner.adapters = Adapters(fast, runner.probe, max_adapters=1, max_rank=4)
    adapter = runner.adapters.read("one", folder)
    groups = group_layers(runner.shapes, 32)
    runner.allocate(groups, [8], 16)
    cache = KVCache(groups, [8], block_size=16, max_sequences=2, max_model_len=32, longest_span=32, prefix_cache=False)
    columns = SpanColumns(adapters=[adapter.number, -1])
    for prompt, num_logits in zip(PROMPTS, wanted, strict=False):
        columns.add(cache.sequence_of(len(prompt)), prompt, 0, num_logits)
    batch = FlatBatch.lay_out(columns, cache, runner.device)
    logits = runner.forward(batch).float()
    spans = torch.tensor(batch.logit_spans)
    for span, num_logits in enumerate(wanted):
        with torch.inference_mode():
            own = expected[span](torch.tensor([PROMPTS[span]])).logits[0].float()
        found, own = logits[spans == span], own[len(own) - num_logits :]
        assert found.shape == own.shape
        assert ((found - own).norm(dim=1) < 0.05 * own.norm(dim=1)).all()


def test_nothing_is_shared_with_another_adapter(make_model: MakeModel, make_engine: MakeEngine, tmp_path: Path) -> None:
    model = make_model()
    folders = three(model, tmp_path)
    engine = make_engine(model, max_adapters=3)
    prompt = tuple(range(1, 30))
    adapters: list[Adapter | None] = [None, *read(engine, *folders)]
    first = {number: run(engine, Request("a", prompt, GREEDY, adapter=each)) for number, each in enumerate(adapters)}
    assert {events["a"][0].cached_tokens for events in first.values()} == {0}
    (again,) = read(engine, folders[0])  # the same files
    events = run(engine, Request("b", prompt, GREEDY, adapter=again))["b"]
    assert events[0].cached_tokens == 28
    assert tokens(events) == tokens(first[1]["a"])


@pytest.mark.parametrize(
    "preemption", [{"preemption": "recompute"}, {"preemption": "swap", "host_cache_memory": 1 << 20}]
)
def test_preempted_requests_keep_their_adapters(
    preemption: dict[str, Any],
    make_model: MakeModel,
    make_engine: MakeEngine,
    greedy_reference: Reference,
    tmp_path: Path,
) -> None:
    model = make_model()
    folders = three(model, tmp_path)
    engine = make_engine(model, max_adapters=3, num_blocks=24, max_num_batched_tokens=24, **preemption)
    check(engine, model, folders, greedy_reference)
    assert engine.stats().preemptions


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_candidates_of_one_prompt_have_its_adapter(
    overlap: str, make_model: MakeModel, make_engine: MakeEngine, tmp_path: Path
) -> None:
    model = make_model()
    (folder, *_) = three(model, tmp_path)
    alone = make_engine(merged(model, folder))
    engine = make_engine(model, max_adapters=1, overlap=overlap)
    (adapter,) = read(engine, folder)
    sampled = SamplingParams(temperature=1, max_tokens=6)

    def requests(adapter: Adapter | None) -> list[Request]:
        return [
            *(Request(f"c{seed}", PROMPTS[1], sampled, seed=seed, group="g", adapter=adapter) for seed in range(3)),
            Request("beam", PROMPTS[3], GREEDY, beam=Beam(3, 2), adapter=adapter),
        ]

    others = [Request("other", PROMPTS[1], sampled, seed=0, group="g"), Request("beside", PROMPTS[3], GREEDY)]
    found = run(engine, *requests(adapter), *others)
    expected = run(alone, *requests(None))
    assert {name: tokens(found[name]) for name in expected} == {name: tokens(each) for name, each in expected.items()}
    assert tokens(found["other"]) != tokens(found["c0"])


def test_an_adapter_of_another_engine_is_refused(
    make_model: MakeModel, make_engine: MakeEngine, tmp_path: Path
) -> None:
    model = make_model()
    (folder, *_) = three(model, tmp_path)
    one, other, without = make_engine(model, max_adapters=1), make_engine(model, max_adapters=1), make_engine(model)
    (adapter,) = read(one, folder)
    for engine in (other, without):
        with pytest.raises(InvalidRequest, match="adapter: got 'a0', allowed: one that this engine has read"):
            engine.submit(Request("a", (1, 2), GREEDY, adapter=adapter))
    assert not other.has_work


def test_engines_of_one_model_have_separate_adapters(
    make_model: MakeModel, make_engine: MakeEngine, greedy_reference: Reference, tmp_path: Path
) -> None:
    """Three engines step in turn: an adapter added to one does not affect the others."""
    model = make_model()
    folders = three(model, tmp_path)
    engines = [make_engine(model, max_adapters=1), make_engine(model, max_adapters=1), make_engine(model)]
    adapters: list[Adapter | None] = [*read(engines[0], folders[0]), *read(engines[1], folders[2]), None]
    requests = [Request("a", PROMPTS[1], GREEDY, adapter=adapter) for adapter in adapters]
    for engine, request in zip(engines, requests, strict=True):
        engine.submit(request)
    while any(engine.has_work for engine in engines):
        for engine in engines:
            engine.step()
    expected = [merged(model, folders[0]), merged(model, folders[2]), model]
    assert [list(each.output_ids) for each in requests] == [greedy_reference(one, PROMPTS[1], 12) for one in expected]


def test_a_model_is_restored_once_its_last_engine_with_adapters_is_gone(
    make_model: MakeModel, make_engine: MakeEngine
) -> None:
    model = make_model()
    engines = [make_engine(model, max_adapters=1), make_engine(model, max_adapters=2)]
    hooked = [module for module in model.modules() if module._forward_hooks]
    assert {len(module._forward_hooks) for module in hooked} == {1}
    del engines[0]
    gc.collect()
    assert [module for module in model.modules() if module._forward_hooks] == hooked
    engines.clear()
    gc.collect()
    assert not any(module._forward_hooks for module in model.modules())

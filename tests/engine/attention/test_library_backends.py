"""Backends that leave long spans to a library: on a GPU to the library itself, elsewhere to a reference."""

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from orcastream.engine.attention import (
    AttentionBackend,
    AttentionCall,
    FlashInferBackend,
    TorchBackend,
    TritonBackend,
    VarlenBackend,
    choose_backend,
)
from orcastream.engine.attention.library_backend import LibraryBackend, why_not_imported
from orcastream.engine.kv.layout import LayerShape
from tests.engine.attention.library_references import Calls, flash_attention_3, flashinfer
from tests.engine.attention.test_triton_backend import ITERATIONS, compare
from tests.engine.attention.triton_rig import Pair
from tests.engine.emulated_cuda import emulated_cuda, lacking

BACKENDS = (VarlenBackend, FlashInferBackend)
FITTING = LayerShape(4, 2, 64, 64)
LONG = [[9, 14], [11]]
"""The spans of several tokens in ITERATIONS, whose third has none."""


@pytest.fixture(params=BACKENDS, ids=lambda kind: kind.name)
def backend(
    request: pytest.FixtureRequest, triton_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LibraryBackend]:
    kind: type[LibraryBackend] = request.param
    if triton_device.type == "cuda":
        reason = kind.unavailable(triton_device)
        if reason is not None:
            pytest.skip(reason)
        yield kind()
        return
    calls = request.getfixturevalue("calls")
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer(calls))
    with flash_attention_3(calls):
        yield kind()


@pytest.fixture
def calls() -> Calls:
    return Calls()


def asked(calls: Calls, triton_device: torch.device) -> list[list[int]] | None:
    """The spans that the library computed, if it is the reference."""
    return None if triton_device.type == "cuda" else [sorted(spans) for spans in calls.spans]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [FITTING, LayerShape(6, 1, 128, 128), LayerShape(2, 2, 64, 64)], ids=str)
def test_a_library_computes_long_spans(
    shape: LayerShape, dtype: torch.dtype, backend: LibraryBackend, calls: Calls, triton_device: torch.device
) -> None:
    torch.manual_seed(0)
    for scale in (0.2, -0.2):
        calls.spans.clear()
        compare(Pair(triton_device, shape, AttentionCall(scale), dtype, block_size=16, backend=backend))
        assert asked(calls, triton_device) in (LONG, None)


def test_long_contexts_over_many_blocks_that_end_full(
    backend: LibraryBackend, calls: Calls, triton_device: torch.device
) -> None:
    torch.manual_seed(0)
    pair = Pair(triton_device, FITTING, AttentionCall(0.2), torch.bfloat16, block_size=4, backend=backend)
    compare(pair, ({"a": 128, "b": 3}, {"b": 61, "c": 1, "a": 33}))
    assert asked(calls, triton_device) in ([[3, 128], [33, 61]], None)


@pytest.mark.parametrize(
    ("shape", "options", "dtype", "rig"),
    [
        (LayerShape(4, 2, 64, 64, window=7), {}, torch.bfloat16, {}),
        (FITTING, {"softcap": 2.0}, torch.bfloat16, {}),
        (FITTING, {"sinks": torch.ones(4)}, torch.bfloat16, {}),
        (FITTING, {"scale": 0.0}, torch.bfloat16, {}),
        (FITTING, {}, torch.float32, {}),
        (FITTING, {}, torch.bfloat16, {"cache_dtype": torch.float16}),
        (FITTING, {}, torch.bfloat16, {"block_size": 128}),
        (LayerShape(4, 2, 64, 32), {}, torch.bfloat16, {}),
        (LayerShape(4, 2, 48, 48), {}, torch.bfloat16, {}),
    ],
    ids=["window", "soft cap", "sinks", "scale 0", "float32", "cache", "blocks", "values", "size"],
)
def test_what_a_library_does_not_fit_is_left_to_triton(
    shape: LayerShape,
    options: dict[str, Any],
    dtype: torch.dtype,
    rig: dict[str, Any],
    backend: LibraryBackend,
    calls: Calls,
    triton_device: torch.device,
) -> None:
    torch.manual_seed(0)
    options = {name: given.to(triton_device) if name == "sinks" else given for name, given in options.items()}
    call = AttentionCall(**{"scale": 0.2, **options})
    compare(Pair(triton_device, shape, call, dtype, backend=backend, **{"block_size": 16, **rig}), ITERATIONS[:2])
    assert asked(calls, triton_device) in ([], None)


def test_the_next_iteration_is_planned_elsewhere(triton_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer copies a plan from memory of the wrapper, maybe only when the host has made the next one."""
    if triton_device.type == "cuda":
        pytest.skip("wrappers of the library are not counted")
    calls = Calls()
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer(calls))
    pair = Pair(triton_device, FITTING, AttentionCall(0.2), torch.bfloat16, block_size=16, backend=FlashInferBackend())
    compare(pair, ({"a": 5}, {"a": 6}, {"a": 7}, {"a": 8}))
    first, second, third, fourth = calls.wrappers
    assert first == third != second == fourth


@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_a_plan_is_copied_before_another_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is several iterations ahead of the device if they only compute parts of prompts."""
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer(Calls()))
    torch.manual_seed(0)
    vectors = [[torch.randn(20, heads, 64).bfloat16().transpose(0, 1) for heads in (4, 2, 2)] for _ in range(5)]

    def outputs(device: torch.device, backend: AttentionBackend) -> list[torch.Tensor]:
        pair = Pair(device, FITTING, AttentionCall(0.2), torch.bfloat16, block_size=16, backend=backend)
        moved = [[each.to(device) for each in given] for given in vectors]
        found = []
        for name, (query, key, value) in zip("abcde", moved, strict=True):
            plan = backend.plan(pair.batch({name: 20}), torch.bfloat16)
            found.append(backend.attend(plan, pair.layers[0], query, key, value, pair.call))
        return [each.float().cpu() for each in found]

    with emulated_cuda(tmp_path):
        own = outputs(torch.device("cuda"), FlashInferBackend())
    for found, expected in zip(own, outputs(torch.device("cpu"), TorchBackend()), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


def test_contexts_are_split_only_for_tokens_of_about_one_span(triton_device: torch.device) -> None:
    """FlashAttention 3 allocates an output of all tokens per split, but counts splits as for one span."""
    if triton_device.type == "cuda":
        pytest.skip("what the library is asked for is not noted")
    calls = Calls()
    with flash_attention_3(calls):
        pair = Pair(triton_device, FITTING, AttentionCall(0.2), torch.bfloat16, backend=VarlenBackend())
        compare(pair, ({"a": 8}, {"a": 4, "b": 4}, {"a": 4, "b": 4, "c": 2}, {"a": 2, "d": 20, "b": 9}))
    assert calls.splits == [None, None, 1, None]


def test_layers_of_a_kind_share_a_plan(triton_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if triton_device.type == "cuda":
        pytest.skip("plans of the library are not counted")
    calls, planned = Calls(), []
    module = flashinfer(calls)
    wrapper = module.BatchPrefillWithPagedKVCacheWrapper
    plan = wrapper.plan

    def counted(self: Any, *given: Any, **named: Any) -> None:
        planned.append(named["sm_scale"])
        plan(self, *given, **named)

    monkeypatch.setattr(wrapper, "plan", counted)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    backend = FlashInferBackend()
    pair = Pair(triton_device, FITTING, AttentionCall(0.2), torch.bfloat16, block_size=16, backend=backend)
    batch = pair.batch({"a": 9, "b": 3})
    given = (pair.vectors(4, 12, 64), pair.vectors(2, 12, 64), pair.vectors(2, 12, 64))
    made = backend.plan(batch, torch.bfloat16)
    for scale in (0.2, 0.3, 0.2, 0.3):
        backend.attend(made, pair.layers[0], *given, AttentionCall(scale, group=1))
    assert planned == [0.2, 0.3]


@pytest.mark.parametrize("kind", BACKENDS, ids=lambda kind: kind.name)
def test_it_is_chosen_by_name_only(kind: type[LibraryBackend], triton_device: torch.device) -> None:
    assert kind.rank_on(torch.device("cuda")) is None
    if triton_device.type == "cpu":
        with pytest.raises(
            ValueError, match=f"attention_backend: {kind.name} cannot run here: it needs a GPU of NVIDIA"
        ):
            choose_backend(kind.name, triton_device, torch.bfloat16)


@pytest.mark.parametrize("kind", BACKENDS, ids=lambda kind: kind.name)
def test_it_needs_cuda_itself(
    kind: type[LibraryBackend], triton_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU of AMD is named cuda in torch, too, and one has compute capability 9.4."""
    monkeypatch.setattr(TritonBackend, "unavailable", lambda device: None)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 4))
    for package in ("flashinfer", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
        vars(sys.modules[package])["__spec__"] = ModuleSpec(package, None)
    why_not_imported.cache_clear()
    try:
        assert kind.unavailable(torch.device("cuda")) == "it needs a GPU of NVIDIA"
    finally:
        why_not_imported.cache_clear()


def test_a_package_that_is_absent_or_broken_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_imported("no_such_module", "some-package") == "the package some-package is not installed"
    (tmp_path / "broken_module.py").write_text("raise OSError('no such symbol\\nat all')\n")
    monkeypatch.syspath_prepend(tmp_path)
    reason = why_not_imported("broken_module", "broken-package")
    assert reason is not None
    assert reason.startswith("the package broken-package cannot be imported: no such symbol")
    assert "\n" not in reason

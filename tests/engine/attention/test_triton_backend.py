"""The Triton kernels against the reference, on random spans; without a GPU they are interpreted."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from orcastream.bench.gpu.layer import BLOCK_SIZE, Layer, Sequences, vectors
from orcastream.engine.attention import AttentionCall, TorchBackend, TritonBackend, choose_backend
from orcastream.engine.kv.layout import LayerShape
from tests.engine.attention.triton_rig import Pair

GROUPED = LayerShape(num_heads=6, num_kv_heads=2, key_size=8, value_size=5)

ITERATIONS: tuple[dict[str, int], ...] = (
    {"a": 9, "b": 14},
    {"a": 1, "b": 11, "c": 1},
    {"a": 1, "b": 1, "c": 1},
)
"""Prefill alone, mixed with cached context, and decodes alone; spans cross blocks and tiles."""

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Of the largest output: both round to the format, and the reference also the weights."""


def compare(pair: Pair, iterations: tuple[dict[str, int], ...] = ITERATIONS) -> None:
    for lengths in iterations:
        own, reference = pair.iterate(lengths)
        assert own.shape == reference.shape
        assert own.isfinite().all()
        error = (own - reference).abs().max() / reference.abs().max()
        assert error < TOLERANCE[pair.dtype], lengths


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (GROUPED, {}),
        (LayerShape(2, 2, 24, 16), {"sinks": True}),
        (LayerShape(6, 2, 8, 5, window=7), {}),
        (LayerShape(5, 1, 16, 16, window=1), {"softcap": 2.0}),
        (LayerShape(4, 2, 8, 8, window=5), {"softcap": 0.5, "sinks": True}),
    ],
    ids=str,
)
def test_mixed_iterations(shape: LayerShape, options: dict[str, Any], triton_device: torch.device) -> None:
    torch.manual_seed(0)
    sinks = torch.randn(shape.num_heads, device=triton_device) if options.get("sinks") else None
    compare(Pair(triton_device, shape, AttentionCall(0.4, softcap=options.get("softcap"), sinks=sinks)))


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [
        (torch.float32, torch.int8),
        (torch.float32, torch.float8_e4m3fn),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float8_e4m3fn),
    ],
    ids=str,
)
def test_formats(dtype: torch.dtype, cache_dtype: torch.dtype, triton_device: torch.device) -> None:
    """The cache stores the same numbers as the reference's, and they are read back."""
    torch.manual_seed(0)
    pair = Pair(triton_device, GROUPED, AttentionCall(0.4), dtype, cache_dtype)
    for layer in pair.layers:
        for part in layer.tensors:
            part.view(torch.uint8).zero_() if part.dtype.itemsize == 1 else part.zero_()
    compare(pair, ITERATIONS[:2])
    for own, reference in zip(pair.layers[0].tensors, pair.layers[1].tensors, strict=True):
        assert torch.equal(own.float(), reference.float())


@pytest.mark.parametrize("scale", [-0.4, 0.0])
def test_a_scale_of_any_sign(scale: float, triton_device: torch.device) -> None:
    torch.manual_seed(0)
    for softcap in (None, 2.0):
        compare(Pair(triton_device, GROUPED, AttentionCall(scale, softcap=softcap)))


def test_all_tokens_of_a_tile_see_whole_blocks_of_keys(triton_device: torch.device) -> None:
    """Those need no mask; the last ones do."""
    torch.manual_seed(0)
    compare(Pair(triton_device, GROUPED, AttentionCall(0.4), block_size=16), ({"a": 300, "b": 1}, {"a": 40, "b": 9}))


@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_queries_and_values_beyond_the_range_of_float16(cache_dtype: torch.dtype, triton_device: torch.device) -> None:
    """bfloat16 has more, and keys and values in 8 bits have scales of that range."""
    torch.manual_seed(0)
    pair = Pair(triton_device, GROUPED, AttentionCall(1e-6), torch.bfloat16, cache_dtype)
    plain = pair.vectors
    for query_size, value_size in ((3e6, 1e-9), (1.0, 3e6)):
        sizes = iter((query_size, 1.0, value_size) * len(ITERATIONS))
        pair.vectors = lambda *shape, sizes=sizes: plain(*shape) * next(sizes)
        compare(pair)


def test_a_long_context_is_split(triton_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from orcastream.engine.attention.triton import plan

    monkeypatch.setattr(plan, "_SHORTEST", 16)
    monkeypatch.setattr(plan, "_UNIT", 8)
    torch.manual_seed(0)
    pair = Pair(triton_device, LayerShape(4, 2, 8, 8, window=35), AttentionCall(0.4))
    compare(pair, ({"a": 40, "b": 5}, {"a": 1, "b": 1}))


def test_splits_cover_each_context_once() -> None:
    pytest.importorskip("triton")
    import numpy as np

    from orcastream.engine.attention.triton.plan import splits_of

    generator = np.random.default_rng(0)
    for window in (None, 300, 5000):
        for count in (1, 3, 40):
            contexts = generator.integers(0, 20_000, count)
            splits, firsts = splits_of(contexts, window, 16)
            assert len(splits) == count + 16
            for span, context in enumerate(contexts):
                own = splits[firsts[span] : firsts[span + 1]]
                assert (own[:, 0] == span).all()
                edges = [0 if window is None else max(0, context - window), *own[:, 2]]
                assert own[:, 1].tolist() == edges[:-1]
                assert edges[-1] == context
            assert not splits[firsts[-1] :].any()
            lengths = splits[:, 2] - splits[:, 1]
            assert lengths.max() <= max(256, lengths.sum() / 16) + 64


def test_the_interpreter_is_used_only_if_requested_by_name(triton_device: torch.device) -> None:
    expected = "triton" if triton_device.type == "cuda" else "torch"
    assert choose_backend("auto", triton_device, torch.float16).name == expected
    assert isinstance(choose_backend("triton", triton_device, torch.float16), TritonBackend)


def test_without_gpu_and_interpreter_the_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="triton cannot run here: it needs a GPU"):
        choose_backend("triton", torch.device("cpu"), torch.float16)


def test_kernels_compile_for_hopper() -> None:
    """Without a GPU: no registers are spilled, fp8 is read without slow conversions, and two decode programs fit into a
    multiprocessor's shared memory."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.engine.attention.compile_kernels", "128,256", "bf16", "fp8e4nv"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["kernel"] for each in found} == {"split", "merge", "prefill", "write"}
    for each in found:
        assert each["stack"] == 0, each
        assert each["kernel"] == "write" or not each["slow_conversions"], each
        assert each["shared"] <= (227 if each["kernel"] == "prefill" else 113) * 1024, each


def test_offsets_beyond_two_to_the_31(triton_device: torch.device) -> None:
    """Large GPUs have caches with more numbers per head than 32 bits index. The pages in between are never touched."""
    shape, far = LayerShape(2, 1, 128, 8), 2**31 // (BLOCK_SIZE * 128)
    batches = []
    for first in (0, far):
        sequences = Sequences([20, 6], None, triton_device, 0, first_block=first)
        batches.append([sequences.batch(lengths) for lengths in ((19, 5), (1, 1))])
    layers = [
        Layer(backend, shape, blocks, torch.int8, AttentionCall(0.1), triton_device)
        for backend, blocks in ((TorchBackend(), 3), (TritonBackend(), far + 3))
    ]
    assert layers[1].cache.keys[0].numel() > 2**31
    generator = torch.Generator(triton_device).manual_seed(0)
    for near, distant in zip(*batches, strict=True):
        given = vectors(shape, int(near.offsets[-1]), torch.float32, triton_device, generator)
        expected, found = layers[0].attend(near, *given), layers[1].attend(distant, *given)
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it starts")
def test_if_triton_does_not_start_a_gpu_uses_the_reference() -> None:
    """As in an image without a C compiler: Triton compiles a module for the driver before the first kernel."""
    device = torch.device("cuda")
    reason = TritonBackend.unavailable(device)
    assert reason is not None
    assert reason.startswith("Triton does not start: ")
    assert choose_backend("auto", device, torch.bfloat16).name == "torch"
    with pytest.raises(ValueError, match="triton cannot run here: Triton does not start: "):
        choose_backend("triton", device, torch.bfloat16)

"""The reference backend against attention written out, one query at a time."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.attention import AttentionCall, TorchBackend, torch_plan
from engine.attention.quantize import dequantize, quantize
from engine.batch.flat_batch import FlatBatch, SpanTokens
from engine.kv.cache import KVCache
from engine.kv.layout import LayerGroup, LayerShape
from engine.kv.sequence import Sequence

SHAPE = LayerShape(num_heads=6, num_kv_heads=2, key_size=8, value_size=5)
BLOCK_SIZE = 4
QUANTIZED = (torch.int8, torch.float8_e4m3fn)


class FromTheHost(TorchDispatchMode):
    """Fails where a tensor is made from what is on the host, or changes its device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        moved = (kwargs or {}).get("device") is not None and "_to_copy" in name
        if moved or "lift" in name or name.startswith(("_local_scalar", "item")):
            raise AssertionError(f"{name} within an attention call")
        return func(*args, **(kwargs or {}))


class Layer:
    """One layer's attention over iterations, with all keys and values kept aside for the reference."""

    def __init__(
        self,
        device: torch.device,
        call: AttentionCall,
        window: int | None = None,
        cache_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.backend, self.call, self.device, self.window = TorchBackend(), call, device, window
        self.layer = self.backend.allocate(SHAPE, 200, BLOCK_SIZE, cache_dtype, device)
        # What nobody wrote must never be read.
        plain = self.layer.key_scales is None
        for part in (self.layer.keys, self.layer.values) if plain else self.layer.tensors[2:]:
            part.fill_(torch.nan)
        self.cache = KVCache(
            [LayerGroup(None, ()), LayerGroup(window, (0,))],
            [200, 200],
            block_size=BLOCK_SIZE,
            max_sequences=8,
            max_model_len=128,
            longest_span=100,
            prefix_cache=False,
        )
        self.call = replace(call, group=1)
        self.sequences: dict[str, Sequence] = {}
        self.keys: dict[str, torch.Tensor] = {}
        self.values: dict[str, torch.Tensor] = {}

    def iterate(self, lengths: dict[str, int]) -> None:
        """Compute one span per name, and compare."""
        spans = []
        for name, length in lengths.items():
            if name not in self.sequences:
                self.sequences[name] = self.cache.sequence_of(1)
            start = len(self.keys.get(name, ()))
            assert self.cache.grow(self.sequences[name], start, start + length)
            spans.append(SpanTokens(self.sequences[name], [0] * length, start, 1))
        batch = FlatBatch.build(spans, self.cache, self.device)
        tokens = sum(lengths.values())
        query = torch.randn(SHAPE.num_heads, tokens, SHAPE.key_size, device=self.device)
        key = torch.randn(SHAPE.num_kv_heads, tokens, SHAPE.key_size, device=self.device)
        value = torch.randn(SHAPE.num_kv_heads, tokens, SHAPE.value_size, device=self.device)
        plan = self.backend.plan(batch, torch.float32)
        with FromTheHost():
            output = self.backend.attend(plan, self.layer, query, key, value, self.call)
        assert output.shape == (tokens, SHAPE.num_heads, SHAPE.value_size)
        for index, place in enumerate(batch.order):
            name = list(lengths)[place]
            own = slice(int(batch.offsets[index]), int(batch.offsets[index + 1]))
            start = int(batch.contexts[index]) - lengths[name]
            self.remember(name, key[:, own].transpose(0, 1), value[:, own].transpose(0, 1))
            for token in range(lengths[name]):
                expected = self.reference(name, query[:, own.start + token], start + token)
                assert torch.allclose(output[own.start + token], expected, atol=1e-5)

    def remember(self, name: str, key: torch.Tensor, value: torch.Tensor) -> None:
        dtype = self.layer.keys.dtype
        if dtype in QUANTIZED:
            key, value = (dequantize(*quantize(part, dtype), torch.float32) for part in (key, value))
        key, value = key.to(dtype).float() if dtype not in QUANTIZED else key, value
        value = value.to(dtype).float() if dtype not in QUANTIZED else value
        self.keys[name] = torch.cat([self.keys.get(name, key[:0]), key])
        self.values[name] = torch.cat([self.values.get(name, value[:0]), value])

    def reference(self, name: str, query: torch.Tensor, position: int) -> torch.Tensor:
        """One query `[heads, size]` at `position`, by the definition."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        rows = []
        for head in range(SHAPE.num_heads):
            kv_head = head // (SHAPE.num_heads // SHAPE.num_kv_heads)
            keys = self.keys[name][first : position + 1, kv_head]
            scores = keys @ query[head] * self.call.scale
            if self.call.softcap is not None:
                scores = self.call.softcap * torch.tanh(scores / self.call.softcap)
            if self.call.sinks is not None:
                scores = torch.cat([scores, self.call.sinks[head : head + 1]])
            weights = scores.softmax(0)[: len(keys)]
            rows.append(weights @ self.values[name][first : position + 1, kv_head])
        return torch.stack(rows)


def mixed_iterations(layer: Layer) -> None:
    layer.iterate({"a": 9})
    layer.iterate({"a": 1, "b": 20})
    layer.iterate({"b": 3, "a": 1, "c": 1})
    layer.iterate({"a": 6, "b": 1, "c": 1, "d": 2})
    layer.iterate({"a": 1, "b": 1, "c": 1, "d": 1})
    layer.iterate({"d": 1})


CALLS: list[dict[str, Any]] = [
    {},
    {"window": 1},
    {"window": 7},
    {"window": 100},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 5, "softcap": 2.0, "sinks": True},
]


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_mixed_iterations_copy_nothing_from_the_host(options: dict[str, Any], device: torch.device) -> None:
    torch.manual_seed(0)
    sinks = torch.randn(SHAPE.num_heads, device=device) if options.get("sinks") else None
    call = AttentionCall(1 / math.sqrt(SHAPE.key_size), softcap=options.get("softcap"), sinks=sinks)
    mixed_iterations(Layer(device, call, options.get("window")))


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("cache_dtype", [*QUANTIZED, torch.bfloat16], ids=str)
def test_every_span_sees_what_the_cache_holds(
    cache_dtype: torch.dtype, window: int | None, device: torch.device
) -> None:
    """A prompt computed at once sees its own keys as rounded as a later step will."""
    torch.manual_seed(0)
    mixed_iterations(Layer(device, AttentionCall(0.3), window, cache_dtype))


def test_the_spy_sees_a_copy() -> None:
    with pytest.raises(AssertionError, match="within an attention call"), FromTheHost():
        torch.tensor([1, 2])


def test_decodes_of_very_different_lengths(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_plan, "_PADDING_FREE_SLOTS", 0)
    torch.manual_seed(0)
    layer = Layer(device, AttentionCall(0.3))
    layer.iterate({"a": 100, "b": 3, "c": 4, "d": 50})
    layer.iterate({"a": 1, "b": 1, "c": 1, "d": 1})

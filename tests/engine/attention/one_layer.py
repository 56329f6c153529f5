"""One layer's attention over iterations, compared with attention written out, one query at a time."""

from dataclasses import replace

import torch

from orcastream.engine.attention import AttentionBackend, AttentionCall
from orcastream.engine.attention.quantize import dequantize, quantize
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import LayerGroup, LayerShape
from orcastream.engine.kv.sequence import Sequence

QUANTIZED = (torch.int8, torch.float8_e4m3fn)


class OneLayer:
    """One layer whose keys and values are also stored for the reference, rounded as in the cache."""

    def __init__(
        self,
        backend: AttentionBackend,
        call: AttentionCall,
        *,
        shape: LayerShape,
        window: int | None = None,
        block_size: int = 4,
        dtype: torch.dtype = torch.float32,
        cache_dtype: torch.dtype = torch.float32,
        tolerance: float = 1e-5,
        device: torch.device | None = None,
        max_model_len: int = 128,
    ) -> None:
        self.backend, self.shape, self.window = backend, shape, window
        self.device = device or torch.device("cpu")
        self.dtype, self.tolerance = dtype, tolerance
        num_blocks = 8 * -(-max_model_len // block_size)
        self.layer = backend.allocate(shape, num_blocks, block_size, cache_dtype, self.device)
        # Unwritten memory must never be read.
        plain = self.layer.key_scales is None
        for part in (self.layer.keys, self.layer.values) if plain else self.layer.tensors[2:]:
            part.fill_(torch.nan)
        self.cache = KVCache(
            [LayerGroup(None, ()), LayerGroup(window, (0,))],
            [num_blocks, num_blocks],
            block_size=block_size,
            max_sequences=8,
            max_model_len=max_model_len,
            longest_span=max_model_len,
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
        query = self.random(self.shape.num_heads, tokens, self.shape.key_size)
        key = self.random(self.shape.num_kv_heads, tokens, self.shape.key_size)
        value = self.random(self.shape.num_kv_heads, tokens, self.shape.value_size)
        output = self.attend(batch, query, key, value)
        assert output.shape == (tokens, self.shape.num_heads, self.shape.value_size)
        assert output.dtype is self.dtype
        for index, place in enumerate(batch.order):
            name = list(lengths)[place]
            own = slice(int(batch.offsets[index]), int(batch.offsets[index + 1]))
            start = int(batch.contexts[index]) - lengths[name]
            self.remember(name, key[:, own].transpose(0, 1), value[:, own].transpose(0, 1))
            for token in range(lengths[name]):
                expected = self.reference(name, query[:, own.start + token], start + token)
                found = output[own.start + token].double()
                assert torch.allclose(found, expected, rtol=self.tolerance, atol=self.tolerance), name

    def attend(self, batch: FlatBatch, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The call that is compared."""
        plan = self.backend.plan(batch, self.dtype)
        return self.backend.attend(plan, self.layer, query, key, value, self.call)

    def random(self, heads: int, tokens: int, size: int) -> torch.Tensor:
        """Return `[heads, tokens, size]`, in the layout that a model's projections produce."""
        made = torch.randn(tokens, heads, size, device=self.device).to(self.dtype)
        return made.transpose(0, 1)

    def remember(self, name: str, key: torch.Tensor, value: torch.Tensor) -> None:
        """Return the keys and values as the cache holds them."""
        dtype = self.layer.keys.dtype
        if dtype in QUANTIZED:
            key, value = (dequantize(*quantize(part, dtype), torch.float32) for part in (key, value))
        else:
            key, value = key.to(dtype), value.to(dtype)
        self.keys[name] = torch.cat([self.keys.get(name, key[:0].double()), key.double()])
        self.values[name] = torch.cat([self.values.get(name, value[:0].double()), value.double()])

    def reference(self, name: str, query: torch.Tensor, position: int) -> torch.Tensor:
        """Return the attention of one query `[heads, size]` at `position`, by the definition, in float64."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        rows = []
        for head in range(self.shape.num_heads):
            kv_head = head // (self.shape.num_heads // self.shape.num_kv_heads)
            scores = self.keys[name][first : position + 1, kv_head] @ query[head].double() * self.call.scale
            if self.call.softcap is not None:
                scores = self.call.softcap * torch.tanh(scores / self.call.softcap)
            if self.call.sinks is not None:
                scores = torch.cat([scores, self.call.sinks[head : head + 1].double()])
            weights = scores.softmax(0)[: position + 1 - first]
            rows.append(weights @ self.values[name][first : position + 1, kv_head])
        return torch.stack(rows)


def mixed_iterations(layer: OneLayer) -> None:
    """Compute prefills, chunks and decodes of four requests, alone and together."""
    layer.iterate({"a": 9})
    layer.iterate({"a": 1, "b": 20})
    layer.iterate({"b": 3, "a": 1, "c": 1})
    layer.iterate({"a": 6, "b": 1, "c": 1, "d": 2})
    layer.iterate({"a": 1, "b": 1, "c": 1, "d": 1})
    layer.iterate({"d": 1})

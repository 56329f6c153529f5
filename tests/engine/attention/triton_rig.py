"""One layer computed by a backend of Triton kernels and by the reference, over the same iterations."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from orcastream.engine.attention import AttentionBackend, AttentionCall, TorchBackend, TritonBackend
from orcastream.engine.batch.flat_batch import FlatBatch, SpanTokens
from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.layout import LayerGroup, LayerShape
from orcastream.engine.kv.sequence import Sequence

NUM_BLOCKS = 100


class Pair:
    """Two caches of one layer, each with its backend; unwritten memory is NaN."""

    def __init__(
        self,
        device: torch.device,
        shape: LayerShape,
        call: AttentionCall,
        dtype: torch.dtype = torch.float32,
        cache_dtype: torch.dtype | None = None,
        block_size: int = 4,
        backend: AttentionBackend | None = None,
    ) -> None:
        self.device, self.shape, self.dtype = device, shape, dtype
        self.call = replace(call, group=1)
        self.backends = (backend or TritonBackend(), TorchBackend())
        self.layers = [
            backend.allocate(shape, NUM_BLOCKS, block_size, cache_dtype or dtype, device) for backend in self.backends
        ]
        for layer in self.layers:
            for part in layer.tensors[2:] or layer.tensors:
                part.fill_(torch.nan)
        self.cache = KVCache(
            [LayerGroup(None, ()), LayerGroup(shape.window, (0,))],
            [NUM_BLOCKS, NUM_BLOCKS],
            block_size=block_size,
            max_sequences=16,
            max_model_len=NUM_BLOCKS * block_size,
            longest_span=NUM_BLOCKS * block_size,
            prefix_cache=False,
        )
        self.sequences: dict[str, Sequence] = {}
        self.lengths: dict[str, int] = {}

    def batch(self, lengths: Mapping[str, int]) -> FlatBatch:
        """Return a batch with one span of the given number of tokens per name."""
        spans = []
        for name, length in lengths.items():
            if name not in self.sequences:
                self.sequences[name] = self.cache.sequence_of(1)
            start = self.lengths.get(name, 0)
            assert self.cache.grow(self.sequences[name], start, start + length)
            self.lengths[name] = start + length
            spans.append(SpanTokens(self.sequences[name], [0] * length, start, 1))
        return FlatBatch.build(spans, self.cache, self.device)

    def vectors(self, heads: int, tokens: int, size: int) -> torch.Tensor:
        """Return random vectors in the layout of transformers: token after token, heads within."""
        return torch.randn(tokens, heads, size, device=self.device).to(self.dtype).transpose(0, 1)

    def iterate(self, lengths: Mapping[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both outputs of one iteration, as float32."""
        batch = self.batch(lengths)
        tokens, shape = int(batch.offsets[-1]), self.shape
        query = self.vectors(shape.num_heads, tokens, shape.key_size)
        key = self.vectors(shape.num_kv_heads, tokens, shape.key_size)
        value = self.vectors(shape.num_kv_heads, tokens, shape.value_size)
        own, reference = (
            backend.attend(backend.plan(batch, self.dtype), layer, query, key, value, self.call).float()
            for backend, layer in zip(self.backends, self.layers, strict=True)
        )
        return own, reference

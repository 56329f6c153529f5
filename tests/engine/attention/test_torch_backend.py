"""The reference backend against attention written out, one query at a time."""

import math
from typing import Any

import pytest
import torch

from engine.attention import AttentionCall, LayerShape, TorchBackend
from engine.attention import torch_backend as backend_module
from engine.batch.flat_batch import FlatBatch, Rows
from engine.kv.block_table import BlockTable

SHAPE = LayerShape(num_heads=6, num_kv_heads=2, key_size=8, value_size=5)
BLOCK_SIZE = 4


class Layer:
    """One layer's attention over iterations, with all keys and values kept aside for the reference."""

    def __init__(self, device: torch.device, call: AttentionCall) -> None:
        self.backend, self.call, self.device = TorchBackend(), call, device
        self.cache = self.backend.allocate(SHAPE, 200, BLOCK_SIZE, torch.float32, device)
        # What nobody wrote must never be read.
        self.cache.keys.fill_(torch.nan)
        self.cache.values.fill_(torch.nan)
        self.tables: dict[str, BlockTable] = {}
        self.keys: dict[str, torch.Tensor] = {}
        self.values: dict[str, torch.Tensor] = {}
        self.blocks = iter(torch.randperm(200, generator=torch.Generator().manual_seed(0)).tolist())

    def iterate(self, lengths: dict[str, int]) -> None:
        """Compute one span per name, and compare."""
        spans, names = [], {}
        for name, length in lengths.items():
            table = self.tables.setdefault(name, BlockTable())
            start = len(self.keys.get(name, ()))
            while len(table) * BLOCK_SIZE < start + length:
                table.append(next(self.blocks))
            spans.append(Rows([0] * length, start, table, True))
            names[id(table)] = name
        batch = FlatBatch.build(spans, BLOCK_SIZE, self.device)
        tokens = sum(lengths.values())
        query = torch.randn(SHAPE.num_heads, tokens, SHAPE.key_size, device=self.device)
        key = torch.randn(SHAPE.num_kv_heads, tokens, SHAPE.key_size, device=self.device)
        value = torch.randn(SHAPE.num_kv_heads, tokens, SHAPE.value_size, device=self.device)
        output = self.backend.attend(self.backend.plan(batch), self.cache, query, key, value, self.call)
        assert output.shape == (tokens, SHAPE.num_heads, SHAPE.value_size)
        for span, offset in zip(batch.spans, batch.offsets, strict=True):
            name = names[id(span.table)]
            own = slice(offset, offset + len(span.ids))
            self.keys[name] = torch.cat([self.keys.get(name, key[:, :0].transpose(0, 1)), key[:, own].transpose(0, 1)])
            self.values[name] = torch.cat(
                [self.values.get(name, value[:, :0].transpose(0, 1)), value[:, own].transpose(0, 1)]
            )
            for token in range(len(span.ids)):
                expected = self.reference(name, query[:, offset + token], span.start + token)
                assert torch.allclose(output[offset + token], expected, atol=1e-5)

    def reference(self, name: str, query: torch.Tensor, position: int) -> torch.Tensor:
        """One query `[heads, size]` at `position`, by the definition."""
        first = 0 if self.call.window is None else max(0, position - self.call.window + 1)
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


CALLS: list[dict[str, Any]] = [
    {},
    {"window": 1},
    {"window": 7},
    {"window": 1000},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 5, "softcap": 2.0, "sinks": True},
]


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_mixed_iterations(options: dict[str, Any], device: torch.device) -> None:
    torch.manual_seed(0)
    if options.get("sinks"):
        options = {**options, "sinks": torch.randn(SHAPE.num_heads, device=device)}
    layer = Layer(device, AttentionCall(1 / math.sqrt(SHAPE.key_size), **options))
    layer.iterate({"a": 9})
    layer.iterate({"a": 1, "b": 20})
    layer.iterate({"b": 3, "a": 1, "c": 1})
    layer.iterate({"a": 6, "b": 1, "c": 1, "d": 2})
    layer.iterate({"a": 1, "b": 1, "c": 1, "d": 1})
    layer.iterate({"d": 1})


def test_decodes_of_very_different_lengths(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "_PADDING_FREE_SLOTS", 0)
    torch.manual_seed(0)
    layer = Layer(device, AttentionCall(0.3))
    layer.iterate({"a": 100, "b": 3, "c": 4, "d": 50})
    layer.iterate({"a": 1, "b": 1, "c": 1, "d": 1})


@pytest.mark.parametrize(
    ("contexts", "groups"),
    [
        ([], []),
        ([5], [(0, 1)]),
        ([9000, 9000, 10], [(0, 2), (2, 3)]),
        ([100, 90, 10, 1], [(0, 4)]),
        ([20_000, 100, 90, 80], [(0, 1), (1, 4)]),
    ],
)
def test_groups_bound_the_padding(contexts: list[int], groups: list[tuple[int, int]]) -> None:
    assert backend_module._groups(contexts) == groups

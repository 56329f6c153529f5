"""Rows of similar length, concatenated into one flat stream so that each linear layer runs once over all of them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "rows"
"""Name of the attention implementation in transformers."""

RAGGED = 1.4
"""A group ends before a row that is longer than the group's shortest row by more than this factor ..."""
SHORT_TOKENS = 32
"""... unless that row is at most this long."""


def groups_of(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups of indices of similar length, shortest first; a group is padded to its longest row, the last one."""
    indices: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if indices and lengths[index] > max(SHORT_TOKENS, RAGGED * lengths[indices[0]]):
            yield indices
            indices = []
        indices.append(index)
    if indices:
        yield indices


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    shapes: Iterable[tuple[int, int]],
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention within each row of `[1, heads, tokens, head_dim]`, made of `shapes` (rows, length)."""
    outputs: list[torch.Tensor] = []
    start = 0
    for count, length in shapes:
        stop = start + count * length
        q, k, v = (_rows(part[0, :, start:stop], count) for part in (query, key, value))
        output = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
        start = stop
    return torch.cat(outputs).unsqueeze(0), None


def _rows(part: torch.Tensor, count: int) -> torch.Tensor:
    heads, tokens, head_dim = part.shape
    return part.reshape(heads, count, tokens // count, head_dim).transpose(0, 1)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)

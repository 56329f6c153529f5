"""Attention by its definition, behind the interfaces of the libraries that need a GPU, where there is none.

They stand in for FlashAttention 3 at the place where torch calls it, and for FlashInfer's wrapper. Both read nothing
but what the interface names, and refuse arguments that the backends must not rely on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch.library import Library
from torch.nn.attention import _registry

_MOST_PAGES = 200


class Calls:
    """What a reference was asked for: the numbers of tokens of the spans, call by call."""

    def __init__(self) -> None:
        self.spans: list[list[int]] = []
        self.splits: list[int | None] = []
        self.wrappers: list[int] = []


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, length: int, scale: float
) -> torch.Tensor:
    """Return the attention of one span `[num_tokens, num_heads, size]` at the end of `length` tokens, in float64."""
    device = query.device
    seen_keys, seen_values = (
        part[blocks.long()].flatten(0, 1)[:length].double().repeat_interleave(query.shape[1] // part.shape[2], dim=1)
        for part in (keys, values)
    )
    scores = torch.einsum("qhd,khd->hqk", query.double(), seen_keys) * scale
    positions = torch.arange(length - len(query), length, device=device)
    hidden = torch.arange(length, device=device)[None, :] > positions[:, None]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, seen_values)


@contextmanager
def flash_attention_3(calls: Calls) -> Iterator[None]:
    """Let torch take the reference for FlashAttention 3, on a CPU, as soon as that is activated."""

    def forward(
        out: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cum_seq_q: torch.Tensor,
        cum_seq_k: None,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        return_debug_mask: bool,
        *,
        scale: float,
        window_size_left: int,
        window_size_right: int,
        seqused_k: torch.Tensor,
        alibi_slopes: None = None,
        block_table: torch.Tensor,
        num_splits: int | None = None,
    ) -> torch.Tensor:
        assert is_causal
        assert (window_size_left, window_size_right) == (-1, 0)
        assert cum_seq_k is None
        assert {each.dtype for each in (cum_seq_q, seqused_k, block_table)} == {torch.int32}
        spans = (cum_seq_q[1:] - cum_seq_q[:-1]).tolist()
        assert max_q == max(spans)
        assert max_k == seqused_k.max()
        calls.spans.append(spans)
        calls.splits.append(num_splits)
        ends = cum_seq_q.tolist()
        for row, (begin, end) in enumerate(pairwise(ends)):
            length = int(seqused_k[row])
            blocks = block_table[row, : -(-length // key.shape[1])]
            out[begin:end] = attend(query[begin:end], key, value, blocks, length, scale)
        return query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)

    class Handle:
        def __init__(self) -> None:
            self.library = Library("aten", "IMPL", "CPU")
            self.library.impl("_flash_attention_forward_no_dropout_inplace", forward, "CPU")

        def remove(self) -> None:
            self.library._destroy()

    own = _registry._FLASH_ATTENTION_IMPLS["FA3"]
    _registry.register_flash_attention_impl("FA3", register_fn=Handle)
    try:
        yield
    finally:
        _registry.restore_flash_attention_impl(_raise_warn=False)
        _registry.register_flash_attention_impl("FA3", register_fn=own)


def flashinfer(calls: Calls) -> ModuleType:
    """Return a module with the reference for FlashInfer's wrapper, which copies a plan from page-locked memory."""

    class BatchPrefillWithPagedKVCacheWrapper:
        def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str, *, backend: str) -> None:
            assert kv_layout == "NHD"
            device = float_workspace_buffer.device
            assert backend == ("fa3" if device.type == "cuda" else "fa2")  # the emulated device is a Hopper
            self.planned: tuple[Any, ...] = ()
            self.place = torch.empty(_MOST_PAGES, dtype=torch.int32, pin_memory=device.type == "cuda")
            self.pages = torch.empty(_MOST_PAGES, dtype=torch.int32, device=device)

        def plan(
            self,
            qo_indptr: torch.Tensor,
            paged_kv_indptr: torch.Tensor,
            paged_kv_indices: torch.Tensor,
            paged_kv_last_page_len: torch.Tensor,
            num_qo_heads: int,
            num_kv_heads: int,
            head_dim_qk: int,
            page_size: int,
            *,
            causal: bool,
            sm_scale: float,
            q_data_type: torch.dtype,
            kv_data_type: torch.dtype,
        ) -> None:
            assert causal
            given = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
            assert {each.dtype for each in given} == {torch.int32}
            assert len(paged_kv_indices) == paged_kv_indptr[-1]
            self.planned = (*(given[index].tolist() for index in (0, 1, 3)), sm_scale)
            self.place[: len(paged_kv_indices)] = paged_kv_indices
            self.pages.copy_(self.place, non_blocking=True)
            self.expected = (num_qo_heads, num_kv_heads, head_dim_qk, page_size, q_data_type, kv_data_type)

        def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor], *, out: torch.Tensor) -> None:
            keys, values = paged_kv_cache
            given = (q.shape[1], keys.shape[2], q.shape[2], keys.shape[1], q.dtype, keys.dtype)
            assert given == self.expected
            assert out.shape == q.shape
            queries, begins, last, scale = self.planned
            calls.spans.append([end - begin for begin, end in pairwise(queries)])
            calls.wrappers.append(id(self))
            for row, (begin, end) in enumerate(pairwise(queries)):
                blocks = self.pages[begins[row] : begins[row + 1]]
                length = (len(blocks) - 1) * keys.shape[1] + last[row]
                out[begin:end] = attend(q[begin:end], keys, values, blocks, length, scale)

    module = ModuleType("flashinfer")
    vars(module).update({"BatchPrefillWithPagedKVCacheWrapper": BatchPrefillWithPagedKVCacheWrapper})
    return module

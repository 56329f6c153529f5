"""The backend of FlashInfer, whose kernels compute long spans."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from orcastream.engine.attention.base import AttentionCall, register
from orcastream.engine.attention.library_backend import LibraryBackend, is_hopper, why_not_imported
from orcastream.engine.attention.triton.plan import TritonPlan
from orcastream.engine.batch.flat_batch import FlatBatch, GroupTables

_WORKSPACE_BYTES = 128 * 2**20
"""What FlashInfer recommends."""

_LAYERS = "NHD"
"""FlashInfer's name for blocks `[block_size, num_kv_heads, size]`."""


@dataclass(frozen=True, slots=True)
class RaggedPages:
    """Spans in FlashInfer's terms, int32 on the host; its pages are our blocks.

    Span i has the queries `query_begins[i]` … `query_begins[i + 1] - 1`, counted from the first one's, and the pages
    `pages[page_begins[i]:page_begins[i + 1]]`, of which the last holds `last_lengths[i]` tokens.
    """

    query_begins: torch.Tensor
    page_begins: torch.Tensor
    pages: torch.Tensor
    last_lengths: torch.Tensor

    @classmethod
    def of(cls, batch: FlatBatch, group: GroupTables) -> "RaggedPages":
        """Return the spans of several tokens."""
        first, contexts = batch.num_single, batch.contexts[batch.num_single :]
        counts = -(-contexts // batch.block_size)
        tables = group.tables[first:]
        arrays = (
            batch.offsets[first:] - batch.offsets[first],
            np.concatenate([[0], counts.cumsum()]),
            tables[np.arange(tables.shape[1]) < counts[:, None]],
            contexts - (counts - 1) * batch.block_size,
        )
        return cls(*(torch.from_numpy(array.astype(np.int32)) for array in arrays))


@dataclass(frozen=True, slots=True)
class FlashInferSpans:
    """The spans of a group, and FlashInfer's plans for them by kind of layer, made by the first layer of a kind."""

    pages: RaggedPages
    turn: int
    planned: dict[tuple[Any, ...], Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Planner:
    """A wrapper of FlashInfer, and when the device has copied its last plan (None without a GPU)."""

    wrapper: Any
    copied: torch.cuda.Event | None

    def plan(self, *given: Any, **named: Any) -> None:
        """Make a plan, in the page-locked memory from which the last one must have been copied.

        The host may be several iterations ahead: it waits for none that only computes parts of prompts.
        """
        if self.copied is not None:
            self.copied.synchronize()
        self.wrapper.plan(*given, **named)
        if self.copied is not None:
            self.copied.record()


@register("flashinfer")
class FlashInferBackend(LibraryBackend):
    """FlashInfer's paged prefill: FlashAttention 3 on Hopper, 2 on other GPUs."""

    sizes = frozenset({64, 128, 256})

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """See the base class."""
        return super().unavailable(device) or why_not_imported("flashinfer", "flashinfer-python")

    def __init__(self) -> None:
        self._workspace: torch.Tensor | None = None
        self._planners: dict[tuple[Any, ...], _Planner] = {}
        self._turn = 0

    def plan(self, batch: FlatBatch, dtype: torch.dtype) -> TritonPlan:
        """See the base class."""
        # With one place for plans, the host would wait for the last iteration, and not overlap.
        self._turn = 1 - self._turn
        return super().plan(batch, dtype)

    def prepare(self, batch: FlatBatch, group: GroupTables) -> FlashInferSpans:
        """See the base class."""
        return FlashInferSpans(RaggedPages.of(batch, group), self._turn)

    def attend_spans(
        self,
        prepared: FlashInferSpans,
        keys: torch.Tensor,
        values: torch.Tensor,
        query: torch.Tensor,
        output: torch.Tensor,
        call: AttentionCall,
    ) -> None:
        """See the base class."""
        kind = (query.shape[1], keys.shape[2], keys.shape[3], keys.shape[1], abs(call.scale), query.dtype)
        wrapper = prepared.planned.get(kind)
        if wrapper is None:
            wrapper = prepared.planned[kind] = self._planned(prepared, kind, query.device)
        wrapper.run(query, (keys, values), out=output)

    def _planned(self, prepared: FlashInferSpans, kind: tuple[Any, ...], device: torch.device) -> Any:
        num_heads, num_kv_heads, size, block_size, scale, dtype = kind
        planner = self._planner((kind, prepared.turn), device)
        pages = prepared.pages
        planner.plan(
            pages.query_begins,
            pages.page_begins,
            pages.pages,
            pages.last_lengths,
            num_heads,
            num_kv_heads,
            size,
            block_size,
            causal=True,
            sm_scale=scale,
            q_data_type=dtype,
            kv_data_type=dtype,
        )
        return planner.wrapper

    def _planner(self, key: tuple[Any, ...], device: torch.device) -> _Planner:
        """Return what plans for layers of a kind in a turn, which has a place of its own for its plan."""
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        if self._workspace is None:
            self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        if key not in self._planners:
            wrapper = BatchPrefillWithPagedKVCacheWrapper(self._workspace, _LAYERS, backend=_kernels(device))
            copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
            self._planners[key] = _Planner(wrapper, copied)
        return self._planners[key]


def _kernels(device: torch.device) -> str:
    """Return FlashInfer's name for the kernels of this GPU. Left to itself, it takes others for short spans on Hopper,
    which would be compiled when the first long one comes, in the middle of an iteration."""
    return "fa3" if is_hopper(device) else "fa2"

"""The backend of torch's `varlen_attn`: FlashAttention 3 computes long spans."""

from dataclasses import dataclass

import torch

from orcastream.engine.attention.base import AttentionCall, register
from orcastream.engine.attention.library_backend import LibraryBackend, is_hopper, why_not_imported
from orcastream.engine.batch.flat_batch import FlatBatch, GroupTables

_IMPLEMENTATION = "FA3"

_OLDEST_TORCH = (2, 12)
"""The first with block tables."""

_SPLIT_SPANS = 2
"""Contexts are split for at most as many tokens as so many spans of the longest one's length have: the library chooses
the number of splits as if there were one span, but for each split allocates an output in float32 of all tokens."""


@dataclass(frozen=True, slots=True)
class VarlenSpans:
    """Spans in the terms of `varlen_attn`, int32 on the device.

    `begins` `[num_spans + 1]` counts from the first token of the first span, `lengths` `[num_spans]` is how many tokens
    each sees, `tables` `[num_spans, width]` are their blocks. `longest` is the largest number of tokens of a span,
    `farthest` of those that one sees. `num_splits` is in how many parts contexts may be split; None: as the library
    likes.
    """

    begins: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    longest: int
    farthest: int
    num_splits: int | None

    @classmethod
    def of(cls, batch: FlatBatch, group: GroupTables) -> "VarlenSpans":
        """Return the spans of several tokens."""
        first = batch.num_single
        offsets = batch.offsets_device[first:]
        num_tokens = int(batch.offsets[-1] - batch.offsets[first])
        longest = int((batch.offsets[first + 1 :] - batch.offsets[first:-1]).max())
        return cls(
            (offsets - offsets[0]).to(torch.int32),
            batch.contexts_device[first:].to(torch.int32),
            group.tables_device[first:].to(torch.int32),
            longest,
            int(batch.contexts[first:].max()),
            None if num_tokens <= _SPLIT_SPANS * longest else 1,
        )


@register("varlen")
class VarlenBackend(LibraryBackend):
    """FlashAttention 3, by torch's `varlen_attn`, whose kernels read block tables on GPUs of compute capability 9.

    It becomes the implementation of FlashAttention for all of torch in this process.
    """

    sizes = frozenset({64, 96, 128, 192, 256})

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """See the base class."""
        reason = super().unavailable(device)
        if reason is not None:
            return reason
        if not is_hopper(device):
            return "it needs a GPU of compute capability 9"
        if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _OLDEST_TORCH:
            return f"it needs torch {'.'.join(map(str, _OLDEST_TORCH))} or newer"
        return why_not_imported("flash_attn_interface", "flash-attn-3")

    def __init__(self) -> None:
        from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl

        if current_flash_attention_impl() != _IMPLEMENTATION:
            activate_flash_attention_impl(_IMPLEMENTATION)

    def prepare(self, batch: FlatBatch, group: GroupTables) -> VarlenSpans:
        """See the base class."""
        return VarlenSpans.of(batch, group)

    def attend_spans(
        self,
        prepared: VarlenSpans,
        keys: torch.Tensor,
        values: torch.Tensor,
        query: torch.Tensor,
        output: torch.Tensor,
        call: AttentionCall,
    ) -> None:
        """See the base class."""
        from torch.nn.attention.varlen import varlen_attn_out

        varlen_attn_out(
            output,
            query,
            keys,
            values,
            prepared.begins,
            None,
            prepared.longest,
            prepared.farthest,
            scale=abs(call.scale),
            window_size=(-1, 0),  # each token sees those up to itself
            enable_gqa=query.shape[1] != keys.shape[2],
            seqused_k=prepared.lengths,
            block_table=prepared.tables,
            num_splits=prepared.num_splits,
        )

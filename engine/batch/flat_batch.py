"""The tokens of one iteration, laid end to end."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.kv.block_table import BlockTable, IntArray


@dataclass(frozen=True, slots=True)
class Rows:
    """One span as the model sees it: `ids` at positions `start` …, whose cache lies in `table`."""

    ids: Sequence[int]
    start: int
    table: BlockTable
    wants_logits: bool

    @property
    def stop(self) -> int:
        """Length of the context behind the last token, itself included."""
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """Orca's flat batch: no token is padded, every token-wise layer sees `[1, num_tokens]`.

    `spans` stand in the order of the stream: those of one token first, by falling length of context (so that
    attention may compute neighbours together as contiguous slices), then the longer ones. `offsets[i]` is where span i
    starts. `slots` is where each token's key and value go in the cache; `logit_rows` are the stream indices of the last
    tokens of the spans in `sampled`, an index into the caller's order for each row of logits.
    """

    spans: tuple[Rows, ...]
    offsets: tuple[int, ...]
    num_single: int
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    slots: torch.Tensor
    logit_rows: torch.Tensor
    sampled: tuple[int, ...]
    block_size: int

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.input_ids.device

    @classmethod
    def build(cls, spans: Sequence[Rows], block_size: int, device: torch.device) -> "FlatBatch":
        """Lay `spans` (at least one, each with at least one token) end to end."""
        order = sorted(range(len(spans)), key=lambda i: (len(spans[i].ids) > 1, -spans[i].stop))
        offsets: list[int] = []
        ids: list[int] = []
        for index in order:
            offsets.append(len(ids))
            ids.extend(spans[index].ids)
        laid = tuple(spans[index] for index in order)
        num_single = sum(len(span.ids) == 1 for span in laid)
        rows = [offset + len(span.ids) - 1 for offset, span in zip(offsets, laid, strict=True) if span.wants_logits]
        # One copy to the device: ids, positions, slots, rows.
        packed = np.concatenate([np.asarray(ids), _positions(laid), _slots(laid, block_size), np.asarray(rows)])
        tensor = torch.from_numpy(packed.astype(np.int64, copy=False)).to(device, non_blocking=True)
        num_tokens = len(ids)
        return cls(
            spans=laid,
            offsets=tuple(offsets),
            num_single=num_single,
            input_ids=tensor[:num_tokens].unsqueeze(0),
            position_ids=tensor[num_tokens : 2 * num_tokens].unsqueeze(0),
            slots=tensor[2 * num_tokens : 3 * num_tokens],
            logit_rows=tensor[3 * num_tokens :],
            sampled=tuple(index for index in order if spans[index].wants_logits),
            block_size=block_size,
        )


def _positions(spans: Sequence[Rows]) -> IntArray:
    return np.concatenate([np.arange(span.start, span.stop) for span in spans])


def _slots(spans: Sequence[Rows], block_size: int) -> IntArray:
    return np.concatenate([span.table.slots(span.start, span.stop, block_size) for span in spans])

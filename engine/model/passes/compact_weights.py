"""The pass that stores bfloat16 weights in 12 bits."""

from functools import partial

import torch
from transformers import PreTrainedModel

from orcastream.engine.model.passes.base import Pass, RowsToCheck, random_inputs, register, same
from orcastream.engine.model.passes.pack_linears import packed_groups, packed_layers, packed_memory
from orcastream.engine.native.grouped import GroupedLinear
from orcastream.engine.native.linear import PackedLinear

LEAST_BYTES = 256 << 20
"""Of all weights: the caches of a processor may hold fewer, so that reading them is not what takes time."""


@register("compact_weights")
class CompactWeights(Pass):
    """Makes packed weights compact, without loss: a decode waits for weights from memory, and reads a quarter less.

    Where a product of bfloat16 pairs is one instruction, there is time to unpack them meanwhile. With more than some 20
    rows, products take longer than memory.
    """

    def __init__(self, least_bytes: int = LEAST_BYTES) -> None:
        self._least_bytes = least_bytes

    def apply(self, model: PreTrainedModel) -> int:
        """Replace weights one after another, each in memory that another one has left, if it fits."""
        if sum(memory.nbytes for memory in packed_memory(model)) < self._least_bytes:
            return 0
        rows, left = RowsToCheck(), _LeftMemory()
        count = sum(_make_compact(name, packed, rows, left) for name, packed in packed_layers(model))
        return count + sum(_make_group_compact(name, group, rows) for name, group in packed_groups(model))


class _LeftMemory:
    """Memory of layers that have been replaced, for layers that follow: as much as one decoder layer has."""

    _MOST = 4
    """Queries, keys and values, the attention's output, gate and up, down."""

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []

    def add(self, memory: torch.Tensor) -> None:
        self._parts = [*self._parts, memory][-self._MOST :]

    def take(self, num_bytes: int) -> torch.Tensor | None:
        """Return the smallest part that is large enough, if there is one."""
        fitting = [index for index, part in enumerate(self._parts) if part.nbytes >= num_bytes]
        if not fitting:
            return None
        return self._parts.pop(min(fitting, key=lambda index: self._parts[index].nbytes))


def _make_compact(name: str, packed: PackedLinear, rows: RowsToCheck, left: _LeftMemory) -> bool:
    compact = packed.compact(left.take)
    if compact is None or not _are_same(name, packed, compact, rows):
        return False
    left.add(packed.memory)
    packed.adopt(compact)
    return True


def _make_group_compact(name: str, group: GroupedLinear, rows: RowsToCheck) -> int:
    """Make all layers of a group compact; return how many that are."""
    compact = group.compact()
    if compact is None or not all(map(partial(_are_same, name, rows=rows), group.linears, compact.linears)):
        return 0
    group.adopt(compact)
    return len(group.linears)


def _are_same(name: str, packed: PackedLinear, compact: PackedLinear, rows: RowsToCheck) -> bool:
    kind = packed.n, packed.k
    if not same(name, packed, compact, random_inputs(packed.k, packed.dtype, rows.of(kind))):
        return False
    rows.passed(kind)
    return True

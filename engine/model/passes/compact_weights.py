"""The pass that stores bfloat16 weights in 12 bits."""

from transformers import PreTrainedModel

from orcastream.engine.model.passes.base import Pass, RowsToCheck, random_inputs, register, same
from orcastream.engine.model.passes.pack_linears import packed_layers
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
        """Replace weights one after another, so that at most one is in memory twice."""
        layers = packed_layers(model)
        if sum(packed.memory.nbytes for _, packed in layers) < self._least_bytes:
            return 0
        rows = RowsToCheck()
        return sum(_make_compact(name, packed, rows) for name, packed in layers)


def _make_compact(name: str, packed: PackedLinear, rows: RowsToCheck) -> bool:
    compact = packed.compact()
    if compact is None:
        return False
    kind = packed.n, packed.k
    if not same(name, packed, compact, random_inputs(packed.k, packed.dtype, rows.of(kind))):
        return False
    rows.passed(kind)
    packed.adopt(compact)
    return True

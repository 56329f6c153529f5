"""The Triton backend: attention in Triton kernels, for GPUs, or in Triton's interpreter, for tests."""

from typing import TYPE_CHECKING

import torch

from orcastream.engine.attention.base import PLAIN_DTYPES, AttentionBackend, AttentionCall, register
from orcastream.engine.attention.quantize import LARGEST, SCALE_DTYPE
from orcastream.engine.batch.flat_batch import FlatBatch, GroupTables
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.kv.store import LayerCache
from orcastream.engine.triton_support import why_no_triton

if TYPE_CHECKING:  # the package triton is optional
    from orcastream.engine.attention.triton.plan import PrefillPlan, TritonPlan

_OLDEST_FP8 = (8, 9)
"""Compute capability that converts from and to e4m3."""

_PROCESSORS_WITHOUT_GPU = 4


@register("triton")
class TritonBackend(AttentionBackend):
    """Writes keys and values into their blocks and reads them there, without gathering.

    Spans of one token are split along their contexts and merged; longer ones are computed in tiles. The cache layout is
    that of the reference.
    """

    rank = 10
    cache_dtypes = (*PLAIN_DTYPES, *LARGEST)
    graphs = True

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """See the base class."""
        return why_no_triton(device)

    @classmethod
    def rank_on(cls, device: torch.device) -> int | None:
        """See the base class; the interpreter is never chosen by itself."""
        return cls.rank if device.type == "cuda" else None

    def allocate(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """See the base class; ValueError for fp8 on a GPU without it."""
        if dtype is torch.float8_e4m3fn and device.type == "cuda" and torch.version.hip is None:
            capability = torch.cuda.get_device_capability(device)
            if capability < _OLDEST_FP8:
                raise ValueError(
                    "kv_cache_dtype: got 'fp8', allowed on a GPU of compute capability "
                    f"{capability[0]}.{capability[1]}: int8, or the model's own"
                )
        blocks = (shape.num_kv_heads, num_blocks, block_size)
        scales = [torch.empty(blocks, dtype=SCALE_DTYPE, device=device) for _ in range(2)] if dtype in LARGEST else []
        return LayerCache(
            torch.empty(*blocks, shape.key_size, dtype=dtype, device=device),
            torch.empty(*blocks, shape.value_size, dtype=dtype, device=device),
            *scales,
        )

    def plan(self, batch: FlatBatch, dtype: torch.dtype) -> "TritonPlan":
        """The lists of splits, copied at once."""
        from orcastream.engine.attention.triton.plan import TritonPlan

        return TritonPlan.of(batch, _processors(batch.device), self.plan_prefill)

    def follow(self, plan: "TritonPlan", batch: FlatBatch) -> None:
        """See the base class."""
        plan.follow(batch, _processors(batch.device))

    def attend(
        self,
        plan: "TritonPlan",
        cache: LayerCache,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: AttentionCall,
    ) -> torch.Tensor:
        """See the base class."""
        from orcastream.engine.attention.triton.decode import decode
        from orcastream.engine.attention.triton.scores import signed
        from orcastream.engine.attention.triton.write import write

        query = signed(query, call)
        query, key, value = (part if part.stride(-1) == 1 else part.contiguous() for part in (query, key, value))
        write(cache, plan.slots[call.group], key, value)
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        decodes, prefills = plan.decodes[call.group], plan.prefills[call.group]
        if decodes.num_spans:
            decode(decodes, cache, query, output, call)
        if prefills.num_spans:
            self.prefill(prefills, cache, query, output, call)
        return output

    def plan_prefill(self, batch: FlatBatch, group: GroupTables) -> "PrefillPlan":
        """Return the plan of the spans of several tokens for the layers of `group`."""
        from orcastream.engine.attention.triton.plan import PrefillPlan

        return PrefillPlan.of(batch, group)

    def prefill(
        self,
        spans: "PrefillPlan",
        cache: LayerCache,
        query: torch.Tensor,
        output: torch.Tensor,
        call: AttentionCall,
    ) -> None:
        """Attend from `spans` (at least one), whose keys and values are in `cache`; write their rows of `output`.

        `query` `[num_heads, num_tokens, key_size]` has the sign of the call's scale, of which only the absolute value
        counts here.
        """
        from orcastream.engine.attention.triton.prefill import prefill

        prefill(spans, cache, query, output, call)


def _processors(device: torch.device) -> int:
    """Multiprocessors of `device`."""
    if device.type != "cuda":
        return _PROCESSORS_WITHOUT_GPU
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

"""What backends share that leave long spans to the kernels of a library, and all else to ours."""

from abc import abstractmethod
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from orcastream.engine.attention.base import AttentionCall
from orcastream.engine.attention.triton_backend import TritonBackend
from orcastream.engine.batch.flat_batch import FlatBatch, GroupTables
from orcastream.engine.errors import one_line
from orcastream.engine.kv.store import LayerCache

if TYPE_CHECKING:  # the package triton is optional
    from orcastream.engine.attention.triton.plan import PrefillPlan

_DTYPES = (torch.bfloat16, torch.float16)

_HOPPER = 9
"""Major number of its compute capability."""

_LARGEST_BLOCK = 64
"""Above that, FlashAttention 3 may load blocks whole, with slots that nobody has written."""


class LibraryBackend(TritonBackend):
    """The Triton backend, but a library computes spans of several tokens in the layers that it fits.

    It reads the cache in place. Layers with windows, soft caps, sinks, 8-bit caches or other sizes of heads keep the
    Triton kernels: behind a window, libraries multiply values that they do not count by 0, and those belong to others.
    """

    sizes: ClassVar[frozenset[int]]
    """Sizes of keys and values for which the library has kernels."""

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """See the base class; a GPU of AMD is not enough."""
        reason = super().unavailable(device)
        if reason is None and (device.type != "cuda" or torch.version.hip is not None):
            return "it needs a GPU of NVIDIA"
        return reason

    @classmethod
    def rank_on(cls, device: torch.device) -> int | None:
        """See the base class; chosen by name only."""
        return None

    def plan_prefill(self, batch: FlatBatch, group: GroupTables) -> "PrefillPlan":
        """See the base class."""
        spans = super().plan_prefill(batch, group)
        if not spans.num_spans or group.window is not None:
            return spans
        return replace(spans, prepared=self.prepare(batch, group))

    def prefill(
        self,
        spans: "PrefillPlan",
        cache: LayerCache,
        query: torch.Tensor,
        output: torch.Tensor,
        call: AttentionCall,
    ) -> None:
        """See the base class."""
        if not self._fits(spans, cache, query, call):
            super().prefill(spans, cache, query, output, call)
            return
        first = len(output) - spans.num_tokens
        # [num_blocks, block_size, num_kv_heads, size]
        keys, values = (part.permute(1, 2, 0, 3) for part in (cache.keys, cache.values))
        self.attend_spans(spans.prepared, keys, values, query[:, first:].transpose(0, 1), output[first:], call)

    @abstractmethod
    def prepare(self, batch: FlatBatch, group: GroupTables) -> Any:
        """Return what the library needs to know of the spans of several tokens (at least one)."""

    @abstractmethod
    def attend_spans(
        self,
        prepared: Any,
        keys: torch.Tensor,
        values: torch.Tensor,
        query: torch.Tensor,
        output: torch.Tensor,
        call: AttentionCall,
    ) -> None:
        """Attend, each token to those up to itself.

        `keys` and `values` `[num_blocks, block_size, num_kv_heads, size]` are views of the cache, `query` and `output`
        `[num_tokens, num_heads, size]` the tokens of these spans; of the call's scale, the absolute value counts.
        """

    def _fits(self, spans: "PrefillPlan", cache: LayerCache, query: torch.Tensor, call: AttentionCall) -> bool:
        key_size, value_size, block_size = cache.keys.shape[-1], cache.values.shape[-1], cache.keys.shape[2]
        plain = call.softcap is None and call.sinks is None and call.scale != 0
        formats = query.dtype is cache.keys.dtype and query.dtype in _DTYPES
        sizes = key_size == value_size and key_size in self.sizes and block_size <= _LARGEST_BLOCK
        return spans.prepared is not None and plain and formats and sizes


def is_hopper(device: torch.device) -> bool:
    """Whether `device` is a GPU for which FlashAttention 3 is made."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == _HOPPER


@cache
def why_not_imported(module: str, package: str) -> str | None:
    """Return why `module` of the package with that name cannot be imported, or None if it can, which is cached."""
    if find_spec(module) is None:
        return f"the package {package} is not installed"
    try:
        import_module(module)
    except Exception as error:
        return f"the package {package} cannot be imported: {one_line(error) or type(error).__name__}"
    return None

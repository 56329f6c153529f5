"""The native backend: attention by a compiled operator, for CPUs."""

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import torch

from orcastream.engine.attention.base import AttentionBackend, AttentionCall, register
from orcastream.engine.attention.quantize import LARGEST, SCALE_DTYPE
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.kv.store import LayerCache
from orcastream.engine.native.formats import FORMATS
from orcastream.engine.native.large_pages import empty_bytes
from orcastream.engine.native.library import library, why_unavailable

_READ_BEHIND = 64
"""Number of values that may be read beyond the end of an array."""


class _Call(ctypes.Structure):
    """The struct OrcaAttention of native/src/attention.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "output", "keys", "values")),
        *((name, ctypes.c_void_p) for name in ("key_scales", "value_scales")),
        *((name, ctypes.c_void_p) for name in ("tables", "slots", "offsets", "contexts", "sinks", "rows")),
        *(
            (f"{name}_{what}_stride", ctypes.c_int64)
            for name in ("query", "key", "value")
            for what in ("head", "token")
        ),
        ("output_token_stride", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("table_width", "num_spans", "num_tokens", "num_heads", "num_kv_heads")),
        *((name, ctypes.c_int64) for name in ("key_size", "value_size", "block_size", "num_rows", "window")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("query_format", ctypes.c_int32),
        ("cache_format", ctypes.c_int32),
    ]


@dataclass(slots=True)
class NativePlan:
    """An iteration: its batch, whose arrays the operator reads, and the state that the layers of each group share."""

    batch: FlatBatch
    calls: ctypes.Array[_Call]
    threads: int


@register("native")
class NativeBackend(AttentionBackend):
    """Reads keys and values in place, without gathering them; see native/src/attention.h for their layout."""

    rank = 10
    dtypes = (torch.float32, torch.bfloat16)
    cache_dtypes = (torch.float32, torch.bfloat16, *LARGEST)

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """See the base class."""
        return "it is for CPUs" if device.type != "cpu" else why_unavailable()

    def allocate(
        self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """See the base class; odd key and block sizes are rounded up for the layout.

        The heads of a block are adjacent in memory, so that blocks scattered over a used pool are read in larger
        pieces.
        """
        blocks = (num_blocks, shape.num_kv_heads)
        pairs = dtype is not torch.float32
        keys = _empty((*blocks, block_size, shape.key_size + shape.key_size % 2), dtype, device)
        values = _empty((*blocks, block_size + pairs * (block_size % 2), shape.value_size), dtype, device)
        scales = [_empty((*blocks, block_size), SCALE_DTYPE, device) for _ in range(2)] if dtype in LARGEST else []
        return LayerCache(*(part.transpose(0, 1) for part in (keys, values, *scales)))

    def plan(self, batch: FlatBatch, dtype: torch.dtype) -> NativePlan:
        """See the base class."""
        groups = len(batch.groups)
        calls = (_Call * groups)(*(_shared(batch, index) for index in range(groups)))
        return NativePlan(batch, calls, torch.get_num_threads())

    @staticmethod
    def group_calls(
        plan: NativePlan,
        *,
        num_heads: int,
        num_kv_heads: int,
        key_size: int,
        scale: float,
        softcap: float,
        dtype: torch.dtype,
        cache_dtype: torch.dtype,
    ) -> ctypes.Array[_Call]:
        """Return the calls of layers of one shape, per group, without what each layer has of its own: queries, keys,
        values, outputs, sinks, and caches. Keys and values are of one size.
        """
        for call in plan.calls:
            call.num_tokens, call.num_heads, call.num_kv_heads = plan.batch.input_ids.shape[1], num_heads, num_kv_heads
            call.key_size = call.value_size = key_size
            call.scale, call.softcap = scale, softcap
            call.query_format, call.cache_format = FORMATS[dtype], FORMATS[cache_dtype]
        return plan.calls

    def attend(
        self,
        plan: NativePlan,
        cache: LayerCache,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: AttentionCall,
    ) -> torch.Tensor:
        """See the base class."""
        num_heads, num_tokens, key_size = query.shape
        output = query.new_empty(num_tokens, num_heads, value.shape[2])
        args = plan.calls[call.group]
        kept = [_place(args, name, part) for name, part in (("query", query), ("key", key), ("value", value))]
        args.output, args.output_token_stride = output.data_ptr(), output.stride(0)
        _put_cache(args, cache)
        sinks = None if call.sinks is None else call.sinks.float().contiguous()
        args.sinks = _address(sinks)
        args.num_tokens, args.num_heads, args.num_kv_heads = num_tokens, num_heads, key.shape[0]
        args.key_size, args.value_size = key_size, value.shape[2]
        args.scale, args.softcap = call.scale, call.softcap or 0.0
        args.query_format = FORMATS[query.dtype]
        library().orca_attend(ctypes.byref(args), plan.threads)
        del kept  # must stay alive until here: the operator reads them
        return output


def _shared(batch: FlatBatch, index: int) -> _Call:
    group = batch.groups[index]
    return _Call(
        tables=group.tables.ctypes.data,
        slots=group.slots.data_ptr(),
        offsets=batch.offsets.ctypes.data,
        contexts=batch.contexts.ctypes.data,
        table_width=group.tables.shape[1],
        num_spans=batch.num_spans,
        block_size=batch.block_size,
        window=group.window or 0,
    )


def addresses(cache: LayerCache) -> list[int | None]:
    """Return where keys, values, and the scales of both are."""
    return [_address(part) for part in (cache.keys, cache.values, cache.key_scales, cache.value_scales)]


def _put_cache(call: _Call, cache: LayerCache) -> None:
    call.keys, call.values, call.key_scales, call.value_scales = addresses(cache)
    call.cache_format = FORMATS[cache.keys.dtype]


def _place(call: _Call, name: str, part: torch.Tensor) -> torch.Tensor:
    """Set address and strides of `part` in `call`; return the tensor that must live until the call returns."""
    if part.stride(2) != 1:
        part = part.contiguous()
    setattr(call, name, part.data_ptr())
    setattr(call, f"{name}_head_stride", part.stride(0))
    setattr(call, f"{name}_token_stride", part.stride(1))
    return part


def _address(part: torch.Tensor | None) -> Any:
    return None if part is None else part.data_ptr()


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return an uninitialized tensor, beyond whose end more bytes may be read."""
    numbers = math.prod(shape)
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    return empty_bytes((numbers + _READ_BEHIND) * dtype.itemsize).view(dtype)[:numbers].view(shape)

"""The tensors of the KV cache, on the device and in host memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from orcastream.engine.memory_errors import is_out_of_memory, release

BLOCK_AXIS = 1
"""The block axis of every tensor of a LayerCache."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer: `[num_kv_heads, num_blocks, block_size, size]`.

    In a quantized cache the values must be multiplied by `key_scales` and `value_scales`, `[num_kv_heads, num_blocks,
    block_size]`.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors that are not None."""
        parts = (self.keys, self.values, self.key_scales, self.value_scales)
        return tuple(part for part in parts if part is not None)

    def like(self, num_blocks: int, device: torch.device) -> "LayerCache":
        """Return an uninitialized one for `num_blocks` blocks."""

        def make(part: torch.Tensor | None) -> torch.Tensor | None:
            if part is None:
                return None
            shape = (*part.shape[:BLOCK_AXIS], num_blocks, *part.shape[BLOCK_AXIS + 1 :])
            return torch.empty(shape, dtype=part.dtype, device=device)

        keys, values = make(self.keys), make(self.values)
        assert keys is not None
        assert values is not None
        return LayerCache(keys, values, make(self.key_scales), make(self.value_scales))


def as_bytes(part: torch.Tensor) -> torch.Tensor:
    """Return a view for copying by index, which torch does not support for 8-bit floats."""
    return part.view(torch.uint8) if part.dtype is torch.float8_e4m3fn else part


class KVStore:
    """Copies whole blocks of one layer group: on the device, to host memory, and back.

    Copies are issued on the device's current stream, in order with the iterations around them.
    """

    def __init__(self, layers: Sequence[LayerCache], num_host_slots: int) -> None:
        self.layers = layers
        cpu = torch.device("cpu")
        self.host = [layer.like(num_host_slots, cpu) for layer in layers] if num_host_slots else []

    @torch.inference_mode()
    def copy(self, source: int, target: int) -> None:
        """Copy block `source` over block `target`."""
        for layer in self.layers:
            for part in layer.tensors:
                part[:, target].copy_(part[:, source])

    @torch.inference_mode()
    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> bool:
        """Copy `blocks` into host `slots`. Return False if memory does not suffice; the slots hold nothing then."""
        return _all_moved(self.layers, self.host, blocks, slots)

    @torch.inference_mode()
    def to_device(self, slots: Sequence[int], blocks: Sequence[int]) -> bool:
        """Copy host `slots` into `blocks`. Return False if memory does not suffice; the blocks hold nothing then."""
        return _all_moved(self.host, self.layers, slots, blocks)


def _all_moved(
    sources: Sequence[LayerCache], targets: Sequence[LayerCache], taken: Sequence[int], written: Sequence[int]
) -> bool:
    """Copy blocks of all layers; return False if memory, of which the copies take some, does not suffice."""
    try:
        for source, target in zip(sources, targets, strict=True):
            _move(source, target, taken, written)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        release(error)
        return False
    return True


def _move(source: LayerCache, target: LayerCache, taken: Sequence[int], written: Sequence[int]) -> None:
    for from_part, to_part in zip(source.tensors, target.tensors, strict=True):
        indices = torch.tensor(taken, device=from_part.device)
        moved = _carried(as_bytes(from_part), indices, to_part.device)
        as_bytes(to_part).index_copy_(BLOCK_AXIS, torch.tensor(written, device=to_part.device), moved)


def _carried(part: torch.Tensor, blocks: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return `blocks` of `part` on `device`; between host and CUDA via page-locked memory, which is several times as
    fast."""
    if part.device.type == device.type:
        return part.index_select(BLOCK_AXIS, blocks)
    shape = (*part.shape[:BLOCK_AXIS], len(blocks), *part.shape[BLOCK_AXIS + 1 :])
    staged = torch.empty(shape, dtype=part.dtype, pin_memory=True)
    if part.device.type == "cpu":
        torch.index_select(part, BLOCK_AXIS, blocks, out=staged)
        return staged.to(device)
    return staged.copy_(part.index_select(BLOCK_AXIS, blocks))

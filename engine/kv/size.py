"""The size of the KV cache: how many blocks fit into memory."""

from collections.abc import Sequence

from orcastream.engine.kv.host_memory_size import available_host_memory
from orcastream.engine.kv.layout import LayerGroup, most_blocks_touched

_CPU_MOST_BYTES = 2 << 30
_CPU_SHARE = 0.25
"""Share of the available memory; the rest is left to other programs."""


def blocks_that_fit(
    memory: int,
    groups: Sequence[LayerGroup],
    bytes_per_block: Sequence[int],
    *,
    block_size: int,
    max_batch_size: int,
    max_model_len: int,
    longest_span: int,
) -> list[int]:
    """Return the number of blocks of each group within `memory` bytes.

    A group never gets more than `max_batch_size` requests of `max_model_len` tokens can hold, or twice that if a window
    bounds it, to keep blocks for reuse. Raises ValueError if not one block of each group fits.
    """
    most = [max_batch_size * _most_blocks(group, block_size, max_model_len, longest_span) for group in groups]

    def cost(blocks: int) -> int:
        return sum(min(blocks, bound) * size for bound, size in zip(most, bytes_per_block, strict=True))

    if cost(1) > memory:
        raise ValueError(f"kv_cache_memory: got {memory} bytes, allowed: at least {cost(1)}, one block of each layer")
    low, high = 1, max(most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= memory else (low, middle - 1)
    return [min(low, bound) for bound in most]


def _most_blocks(group: LayerGroup, block_size: int, max_model_len: int, longest_span: int) -> int:
    whole = -(-max_model_len // block_size)
    if group.window is None:
        return whole
    return min(whole, 2 * most_blocks_touched(group.window - 1 + longest_span, block_size))


def spare_host_memory() -> int:
    """Return the default size of a cache on a CPU, in bytes."""
    available = available_host_memory()
    return _CPU_MOST_BYTES if available is None else min(_CPU_MOST_BYTES, int(available * _CPU_SHARE))


def refuse_more_than_there_is(cached: int, host_cache: int, device_free: int | None) -> None:
    """Raise ValueError if a cache of `cached` bytes and `host_cache` bytes of host memory do not fit.

    The cache is on a device with `device_free` bytes; None: both share the host's memory.
    """
    if device_free is not None:
        _refuse_more_than(device_free, "kv_cache_memory", cached, "what the device has free")
    available = available_host_memory()
    if available is None:
        return
    if device_free is None:
        _refuse_more_than(available, "kv_cache_memory", cached, "what this machine has to spare")
        available -= cached
    _refuse_more_than(available, "host_cache_memory", host_cache, "what this machine has to spare")


def _refuse_more_than(left: int, name: str, wanted: int, what: str) -> None:
    if wanted > left:
        raise ValueError(f"{name}: got {wanted} bytes, allowed: at most {left}, {what}")

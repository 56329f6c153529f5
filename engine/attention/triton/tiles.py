"""The tile size of each kernel by head size: a small table, and the reasons.

Chosen for an H200 (132 multiprocessors, 228 KiB of shared memory and 65,536 registers each, 4.8 TB/s), and reduced on
devices with less shared memory. No search at run time: it would measure while requests wait.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton


class Tile(NamedTuple):
    """`rows` of queries (`tokens` tokens with the heads that share a key head) against `columns` keys at a time."""

    rows: int
    tokens: int
    columns: int
    key_columns: int
    value_columns: int
    warps: int
    stages: int

    def shared_bytes(self, element: int) -> int:
        """Shared memory of the queries and of the keys and values under way.

        Keys wait for block numbers, so that a place for one more lot of them takes two stages (as Triton's compiler
        shows: `python -m tests.engine.attention.compile_kernels`); matrix instructions of Hopper take one more.
        """
        heads, buffers = self.key_columns + self.value_columns, 1 + (self.stages - 1) // 2
        return element * (self.rows * self.key_columns + buffers * self.columns * heads)


_DECODE = ((64, 128, 4, 5), (128, 64, 4, 5), (256, 32, 4, 5), (512, 16, 4, 3), (None, 16, 8, 1))
"""Up to which head size: columns, warps, stages.

A decode tile waits for memory, and computes next to nothing. 4.8 TB/s over about a microsecond of latency are 36 KiB
in flight per multiprocessor. 64 keys and values of 128 16-bit numbers are 32 KiB; with five stages there is room for
two such sets, one being computed and one in flight, and three such programs (72 KiB each) fit on a multiprocessor.
Wider heads take fewer keys, so that the number of bytes stays the same.
"""

_PREFILL = ((64, 128, 64, 4, 5), (128, 128, 128, 8, 3), (256, 128, 32, 8, 3), (512, 32, 16, 8, 3), (None, 16, 16, 8, 1))
"""Up to which head size: rows, columns, warps, stages.

A prefill tile computes. 128 rows read each key 128 times for one load, and are two warp groups' worth of Hopper's
matrix instruction (64 rows each); their sums of 128 numbers take 64 registers of each thread of 8 warps. With 128 keys
at a time the sums are multiplied, and the warps wait for each other, half as often as with 64. At 256 the sums leave
registers for 32.
"""

_PREFILL_NARROW = ((64, 128, 64, 4, 5), (128, 128, 64, 8, 5), (256, 64, 32, 8, 5), *_PREFILL[3:])
"""For float32 and for caches in 8 bits, whose conversion takes the registers that more keys would need."""

_FLOAT32 = 4
"""Factor by which float32 has fewer rows and columns: its products run without matrix units (in full precision), and
large ones would be unrolled into more registers than exist."""


def decode_tile(heads: int, key_size: int, value_size: int, dtype: torch.dtype) -> Tile:
    """Return the tile for spans of one token with `heads` query heads per key head."""
    columns, warps, stages = next(rest for most, *rest in _DECODE if most is None or max(key_size, value_size) <= most)
    rows = max(16, triton.next_power_of_2(heads))  # matrix units take 16 rows
    if dtype is torch.float32:
        columns = max(16, columns // _FLOAT32)
    return _made(rows, heads, columns, key_size, value_size, max(warps, 8 if rows > 64 else 0), stages, dtype)


def prefill_tile(heads: int, key_size: int, value_size: int, dtype: torch.dtype, *, quantized: bool = False) -> Tile:
    """Return the tile for spans of several tokens with `heads` query heads per key head."""
    table = _PREFILL_NARROW if quantized or dtype is torch.float32 else _PREFILL
    rows, columns, warps, stages = next(
        rest for most, *rest in table if most is None or max(key_size, value_size) <= most
    )
    if dtype is torch.float32:
        rows, columns = max(16, rows // _FLOAT32), max(16, columns // _FLOAT32)
    return _made(max(rows, triton.next_power_of_2(heads)), heads, columns, key_size, value_size, warps, stages, dtype)


def _made(
    rows: int, heads: int, columns: int, key_size: int, value_size: int, warps: int, stages: int, dtype: torch.dtype
) -> Tile:
    # Matrix units take at least 16 numbers.
    key_columns, value_columns = (max(16, triton.next_power_of_2(size)) for size in (key_size, value_size))
    tile = Tile(rows, rows // heads, columns, key_columns, value_columns, warps, stages)
    return _fitted(tile, dtype.itemsize, _shared_memory())


def _fitted(tile: Tile, element: int, shared_memory: int) -> Tile:
    """Reduce the tile until it fits, last of all what is loaded ahead."""
    while tile.shared_bytes(element) > shared_memory:
        if tile.columns > 64:
            tile = tile._replace(columns=tile.columns // 2)
        elif tile.stages > 3:
            tile = tile._replace(stages=tile.stages - 2)
        elif tile.rows > 64 and tile.tokens > 1:
            tile = tile._replace(rows=tile.rows // 2, tokens=tile.tokens // 2)
        elif tile.stages > 1:
            tile = tile._replace(stages=tile.stages - 2)
        elif tile.columns > 16:
            tile = tile._replace(columns=tile.columns // 2)
        else:
            break
    return tile


@lru_cache
def _shared_memory() -> int:
    """Return the shared memory that one program may use, in bytes; that of an H200 if there is no GPU."""
    if not torch.cuda.is_available():
        return 227 * 1024
    found = triton.runtime.driver.active.utils.get_device_properties(torch.cuda.current_device())
    return int(found["max_shared_mem"])

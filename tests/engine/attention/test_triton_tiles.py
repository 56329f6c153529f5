"""Tiles are large enough, and fit into less memory than that of the GPU they were designed for."""

import pytest
import torch

pytest.importorskip("triton")

from orcastream.engine.attention.triton.tiles import Tile, _fitted, decode_tile, prefill_tile

SIZES = [(8, 5), (64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (512, 512), (576, 512)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("heads", [1, 3, 4, 8, 71])
@pytest.mark.parametrize(("key_size", "value_size"), SIZES)
def test_every_head_has_a_row_and_every_number_a_column(
    key_size: int, value_size: int, heads: int, dtype: torch.dtype
) -> None:
    for tile in (decode_tile(heads, key_size, value_size, dtype), prefill_tile(heads, key_size, value_size, dtype)):
        assert tile.tokens >= 1
        assert tile.rows >= tile.tokens * heads
        assert tile.key_columns >= key_size
        assert tile.value_columns >= value_size
        powers = (tile.rows, tile.columns, tile.key_columns, tile.value_columns, tile.warps)
        assert all(number & (number - 1) == 0 for number in powers)
        assert min(powers[:4]) >= 16  # the minimum for matrix units


@pytest.mark.parametrize("kilobytes", [227, 163, 99, 64])
def test_smaller_memories_get_smaller_tiles(kilobytes: int) -> None:
    for rows, columns, width, stages in ((128, 128, 128, 3), (128, 32, 256, 3), (64, 32, 256, 5), (16, 64, 128, 5)):
        tile = _fitted(Tile(rows, rows // 4, columns, width, width, 8, stages), 2, kilobytes * 1024)
        assert tile.shared_bytes(2) <= kilobytes * 1024
        assert tile.rows >= 4 * tile.tokens > 0
        assert tile.columns >= 16
        assert tile.stages >= (3 if kilobytes >= 99 else 1)  # keys are loaded ahead

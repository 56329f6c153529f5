"""A picture of one layer group's blocks: what each is used for, and by whom."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from orcastream.engine.kv.blocks import BlockUse
from orcastream.engine.kv.group import GroupCache
from orcastream.engine.kv.sequence import NO_BLOCK, Sequence

MOST_CELLS = 4096
"""Of a larger pool every n-th block is shown, so that a picture costs the same however large the cache is."""


@dataclass(frozen=True, slots=True)
class BlockMap:
    """Cells, of which each shows one block: number 0, `stride`, 2 * `stride`, … of `num_blocks`.

    `runs` are pairs: a code, and how many neighbouring cells have it. Codes: 0 blank, 1 free with content that can be
    used again, 2 * (place + 2) held by the request in that place, and 1 more where several hold it (the first of them
    counts); 2 and 3 where the request is in no place that was told.
    """

    window: int | None
    num_blocks: int
    stride: int
    runs: list[int]

    @classmethod
    def of(cls, group: GroupCache, holders: Iterable[tuple[int, Sequence]]) -> "BlockMap":
        """As the blocks of `group` are now; `holders` are open sequences with their places. Any thread may ask."""
        pool = group.pool
        stride = -(-pool.num_blocks // MOST_CELLS)
        codes: list[int] = list(pool.uses(stride))
        for place, sequence in holders:
            for block in list(sequence.blocks[group.index]):
                cell, rest = divmod(block, stride)
                if block != NO_BLOCK and not rest and codes[cell] in _HELD:
                    codes[cell] += 2 * (place + 1)
        runs = [part for code, run in groupby(codes) for part in (code, len(list(run)))]
        return cls(group.window, pool.num_blocks, stride, runs)


_HELD = (BlockUse.HELD, BlockUse.SHARED)

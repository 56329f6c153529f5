"""A picture of one layer group's blocks: what each is used for, and by which request."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from orcastream.engine.kv.blocks import BlockUse
from orcastream.engine.kv.group import GroupCache
from orcastream.engine.kv.sequence import NO_BLOCK, Sequence

MOST_CELLS = 4096
"""A larger pool shows only every n-th block, so that the cost of a picture is bounded for any cache size."""


@dataclass(frozen=True, slots=True)
class BlockMap:
    """Cells that each show one block: number 0, `stride`, 2 * `stride`, … of `num_blocks`.

    `runs` are pairs: a code, and how many neighboring cells have it. Codes: 0 blank, 1 free with reusable content,
    2 * (place + 2) held by the request in that place, plus 1 if several hold it (the first of them counts); 2 and 3 if
    no holder with a place is given.
    """

    window: int | None
    num_blocks: int
    stride: int
    runs: list[int]

    @classmethod
    def of(cls, group: GroupCache, holders: Iterable[tuple[int, Sequence]]) -> "BlockMap":
        """Return the map of `group` now; `holders` are open sequences with their places. Any thread may call this."""
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

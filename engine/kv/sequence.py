"""What the KV cache holds for one request."""

from dataclasses import dataclass

from orcastream.engine.kv.digest import ContentChain

NO_BLOCK = -1
"""An entry of a table whose block lies behind the window and was given back."""


class Sequence:
    """The blocks of one request, per layer group in the order of its tokens; made and changed by KVCache alone.

    All groups have tables of equal length; a group with a window has given back the blocks in front of `first`.
    `capacity` is how many tokens may be written without another call of `KVCache.grow`. Of the blocks named by
    `chain`, the first `num_named` are known to the pools, and up to `num_promised` to those who wait for them. `row`
    is its row in the block tables. Its content is nothing to share once the cache distrusts those of its `generation`.
    """

    __slots__ = ("blocks", "capacity", "chain", "first", "generation", "num_named", "num_promised", "row")

    def __init__(self, row: int, num_groups: int, chain: ContentChain, generation: int = 0) -> None:
        self.row = row
        self.generation = generation
        self.blocks: list[list[int]] = [[] for _ in range(num_groups)]
        self.first = [0] * num_groups
        self.capacity = 0
        self.chain = chain
        self.num_named = 0
        self.num_promised = 0

    def __len__(self) -> int:
        return len(self.blocks[0])

    @property
    def num_held(self) -> int:
        """Blocks that it holds, of all groups."""
        return sum(len(blocks) - first for blocks, first in zip(self.blocks, self.first, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class SwappedSequence:
    """A sequence in host memory: per group its first block that is not behind the window, and the slots from there."""

    length: int
    first: list[int]
    slots: list[list[int]]
    chain: ContentChain
    num_named: int
    generation: int

    @property
    def num_blocks(self) -> int:
        """Blocks that it needs to come back, of all groups."""
        return sum(map(len, self.slots))

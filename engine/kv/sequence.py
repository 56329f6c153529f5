"""The blocks that one request holds in the KV cache or in host memory."""

from dataclasses import dataclass

from orcastream.engine.kv.digest import ContentChain

NO_BLOCK = -1
"""A table entry whose block is outside the window and was released."""


class Sequence:
    """The blocks of one request, per layer group in token order; only KVCache creates and changes it.

    All groups have tables of equal length; a group with a window has released the blocks before `first`.
    `capacity` is how many tokens may be written without another call of `KVCache.grow`. Of the blocks named by
    `chain`, the pools know the first `num_named`; those up to `num_promised` are promised to waiting sequences. `row`
    is its row in the block tables. Its content is shared only while it is `trusted`.
    """

    __slots__ = ("blocks", "capacity", "chain", "first", "num_named", "num_promised", "row", "trusted")

    def __init__(self, row: int, num_groups: int, chain: ContentChain) -> None:
        self.row = row
        self.trusted = True
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
        """Blocks that it holds in all groups."""
        return sum(len(blocks) - first for blocks, first in zip(self.blocks, self.first, strict=True))


@dataclass(slots=True, eq=False)
class SwappedSequence:
    """A sequence in host memory: per group its first block inside the window, and the slots from there on.

    `trusted` as in Sequence.
    """

    length: int
    first: list[int]
    slots: list[list[int]]
    chain: ContentChain
    num_named: int
    trusted: bool

    @property
    def num_blocks(self) -> int:
        """Blocks that it needs in all groups to return to the device."""
        return sum(map(len, self.slots))

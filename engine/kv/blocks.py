"""The pool of KV cache blocks: who may write where."""

from collections import deque
from collections.abc import Iterable

from engine.errors import IntegrityError, OutOfBlocks
from engine.kv.block_table import BlockTable


class BlockPool:
    """Hands out block numbers 0 … num_blocks-1 and counts the references to each (PagedAttention, SOSP'23).

    A block is free exactly while its count is 0. `_free` holds every free block once, the longest free in front, so
    that allocation and release cost O(1) per block and a released block is reused as late as possible.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens: both must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: deque[int] = deque(range(num_blocks))
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    def missing(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks that `table` lacks to hold `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - len(table))

    def grow(self, table: BlockTable, num_tokens: int) -> None:
        """Let `table` hold `num_tokens` tokens; OutOfBlocks, and no change, where too few blocks are free."""
        missing = self.missing(table, num_tokens)
        if missing > len(self._free):
            raise OutOfBlocks(f"{missing} blocks are needed, {len(self._free)} are free")
        for _ in range(missing):
            block = self._free.popleft()
            self._references[block] = 1
            table.append(block)

    def share(self, block: int) -> None:
        """One more table holds `block`, which somebody holds already."""
        if not self._references[block]:
            raise IntegrityError(f"block {block} is free and cannot be shared")
        self._references[block] += 1

    def release(self, table: BlockTable) -> None:
        """Give all blocks of `table` back; the table is empty then."""
        for block in table.clear():
            if not self._references[block]:
                raise IntegrityError(f"block {block} was released twice")
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """IntegrityError unless `tables`, all that there are, account for every reference."""
        held = [0] * self.num_blocks
        for table in tables:
            blocks = table.blocks
            if len(set(blocks)) != len(blocks):
                raise IntegrityError(f"a table holds a block twice: {blocks}")
            for block in blocks:
                held[block] += 1
        if held != self._references:
            wrong = [block for block in range(self.num_blocks) if held[block] != self._references[block]]
            raise IntegrityError(f"reference counts of blocks {wrong[:8]} do not match the tables")
        free = set(self._free)
        if len(free) != len(self._free) or free != {block for block, count in enumerate(held) if not count}:
            raise IntegrityError("the free list is not the set of blocks that nobody holds")

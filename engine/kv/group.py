"""The block tables of one layer group, and the blocks in them."""

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from orcastream.engine.errors import IntegrityError
from orcastream.engine.kv.group_memory import GroupMemory
from orcastream.engine.kv.layout import LayerGroup, most_blocks_touched
from orcastream.engine.kv.sequence import NO_BLOCK, Sequence
from orcastream.engine.kv.tables import BlockTables

if TYPE_CHECKING:
    from orcastream.engine.kv.store import KVStore

Digests = Items[bytes]
"""Names of block contents, in token order."""


class GroupCache(GroupMemory):
    """Blocks, tables and tensors of the layers with one window; KVCache keeps all groups in step.

    Layers with a window of w hold, for a span of c tokens, the w - 1 tokens before it and the span itself; older blocks
    return to the pool.
    """

    def __init__(
        self,
        index: int,
        group: LayerGroup,
        *,
        num_blocks: int,
        block_size: int,
        num_rows: int,
        width: int,
        longest_span: int,
        store: "KVStore | None",
        num_host_slots: int,
    ) -> None:
        super().__init__(num_blocks, num_host_slots, store)
        self.index = index
        self.window = group.window
        self.layers = group.layers
        self.tables = BlockTables(num_rows, width)
        self._block_size = block_size
        self._bound: int | None = None
        if group.window is not None:
            self._bound = most_blocks_touched(group.window - 1 + longest_span, block_size)

    def most_blocks(self, num_tokens: int) -> int:
        """Return the most blocks that a sequence of up to `num_tokens` tokens holds at any time."""
        blocks = -(-num_tokens // self._block_size)
        return blocks if self._bound is None else min(blocks, self._bound)

    def num_held(self, sequence: Sequence) -> int:
        """Return the number of blocks of this group that `sequence` holds."""
        return len(sequence.blocks[self.index]) - sequence.first[self.index]

    def first_visible(self, start: int) -> int:
        """Return the first block that a query at position `start` or later can see."""
        return 0 if self.window is None else max(0, start - self.window + 1) // self._block_size

    def new_blocks(self, digests: Digests, num_tokens: int, matched: int) -> int:
        """Return the most free blocks taken by a sequence of `num_tokens` that reuses its first `matched` blocks.

        A reused block that is held already costs nothing until the window moves past it.
        """
        reused = digests[self.first_visible(matched * self._block_size) : matched]
        new = -(-num_tokens // self._block_size) - matched + sum(map(self._cost_of_reuse, reused))
        return min(new, self.most_blocks(num_tokens))

    def give_back(self, sequence: Sequence, first: int) -> None:
        """Drop the blocks of `sequence` before block `first`."""
        blocks, row = sequence.blocks[self.index], self.tables.array[sequence.row]
        for index in range(sequence.first[self.index], min(first, len(blocks))):
            self.pool.drop(blocks[index])
            blocks[index] = NO_BLOCK
            row[index] = 0
        sequence.first[self.index] = max(sequence.first[self.index], min(first, len(blocks)))

    def append(self, sequence: Sequence, block: int) -> None:
        """Append `block`, which already has a reference for `sequence`, to its table."""
        blocks = sequence.blocks[self.index]
        self.tables.array[sequence.row, len(blocks)] = block
        blocks.append(block)

    def skip(self, sequence: Sequence, count: int) -> None:
        """Mark the first `count` blocks of an empty table as outside the window."""
        sequence.blocks[self.index].extend([NO_BLOCK] * count)
        sequence.first[self.index] = count

    def own(self, sequence: Sequence, index: int) -> None:
        """Make block `index` of the table writable for `sequence`: copy it if others hold it (copy on write)."""
        shared = sequence.blocks[self.index][index]
        if not self.pool.is_shared(shared):
            self.pool.unname(shared)
            return
        block = self._copy(shared)
        sequence.blocks[self.index][index] = block
        self.tables.array[sequence.row, index] = block

    def clear(self, sequence: Sequence) -> None:
        """Drop all blocks of the table, last first, so that the last is evicted first."""
        blocks, row = sequence.blocks[self.index], self.tables.array[sequence.row]
        row[: len(blocks)] = 0
        while blocks:
            block = blocks.pop()
            if block != NO_BLOCK:
                self.pool.drop(block)
        sequence.first[self.index] = 0

    def reuse(self, sequence: Sequence, digests: Digests) -> bool:
        """Append blocks with these contents, which must exist. Return False, and append none, if blocks are lacking.

        Blocks on the device are held first, so that blocks from host memory do not evict them. Without memory for the
        copies, what is in host memory is forgotten.
        """
        found = [self.pool.find(digest) for digest in digests]
        for shared in [block for block in found if block is not None]:
            self.pool.hold(shared)
        away = [digest for digest, block in zip(digests, found, strict=True) if block is None]
        fits = len(away) <= self.pool.num_free
        brought = self._bring([self.host.pin_cached(digest) for digest in away], away) if fits else None
        return self._append_all(sequence, found, brought)

    def append_copy(self, sequence: Sequence, digest: bytes) -> None:
        """Append a copy of the block with that content, for `sequence` alone."""
        source = self.pool.find(digest)
        if source is None:
            raise IntegrityError("what is to be copied is not there")
        self.pool.hold(source)  # or the copy might evict it
        self.append(sequence, self._copy(source))

    def swap_in(self, sequence: Sequence, slots: list[int], digests: Digests) -> bool:
        """Append the content of pinned `slots`, which become free; there must be enough free blocks.

        The first slots hold the contents `digests`: those still on the device are shared, not copied. Copied blocks
        stay nameless: their names may have been forgotten meanwhile because the content cannot be trusted. Returns
        False, with nothing appended and the slots free, if memory does not suffice for the copies.
        """
        found = [self.pool.find(digest) for digest in digests]
        found += [None] * (len(slots) - len(digests))
        for shared, slot in zip(found, slots, strict=True):
            if shared is not None:
                self.pool.hold(shared)
                self.host.unpin(slot)
        away = [slot for slot, block in zip(slots, found, strict=True) if block is None]
        return self._append_all(sequence, found, self._bring(away, []))

    def check_integrity(self, sequences: list[Sequence], pinned: list[int]) -> None:
        """Raise IntegrityError if tables, pool and host slots disagree."""
        held: list[int] = []
        for sequence in sequences:
            blocks, first = sequence.blocks[self.index], sequence.first[self.index]
            own = blocks[first:]
            if len(set(own)) != len(own) or any(block != NO_BLOCK for block in blocks[:first]) or NO_BLOCK in own:
                raise IntegrityError(f"a table holds a block twice, or one behind its window: {blocks}")
            row = self.tables.array[sequence.row]
            if row[: len(blocks)].tolist() != [max(0, block) for block in blocks] or row[len(blocks) :].any():
                raise IntegrityError("a table and its row in the array differ")
            held += own
        self.pool.check_integrity(held)
        self.host.check_integrity(pinned)

    def _append_all(self, sequence: Sequence, found: Items[int | None], brought: list[int] | None) -> bool:
        """Append the held blocks `found`, with one of `brought` for each None; drop them and return False without."""
        if brought is None:
            for shared in [block for block in reversed(found) if block is not None]:
                self.pool.drop(shared)
            return False
        fresh = iter(brought)
        for block in found:
            self.append(sequence, next(fresh) if block is None else block)
        return True

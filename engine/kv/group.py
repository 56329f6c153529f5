"""The blocks of one layer group."""

from typing import TYPE_CHECKING

from engine.errors import IntegrityError
from engine.kv.blocks import BlockPool
from engine.kv.host import HostSlots
from engine.kv.layout import LayerGroup
from engine.kv.sequence import NO_BLOCK, Sequence
from engine.kv.tables import BlockTables

if TYPE_CHECKING:
    from engine.kv.store import KVStore


class GroupCache:
    """Pool, tables and tensors of the layers of one window; KVCache keeps all groups in step.

    Layers with a window of w hold, for a span of c tokens, the w - 1 tokens before it and the span itself: whatever
    lies farther back is given back to the pool.
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
        self.index = index
        self.window = group.window
        self.layers = group.layers
        self.pool = BlockPool(num_blocks, self._evicted if num_host_slots else None)
        self.host = HostSlots(num_host_slots)
        self.tables = BlockTables(num_rows, width)
        self.store = store
        self._block_size = block_size
        self._bound: int | None = None
        if group.window is not None:
            self._bound = -(-(group.window - 1 + longest_span) // block_size) + 1

    def most_blocks(self, num_tokens: int) -> int:
        """Most blocks that a sequence which comes to `num_tokens` tokens holds at any one time."""
        blocks = -(-num_tokens // self._block_size)
        return blocks if self._bound is None else min(blocks, self._bound)

    def first_visible(self, start: int) -> int:
        """The first block that a query at position `start` or later can see."""
        return 0 if self.window is None else max(0, start - self.window + 1) // self._block_size

    def has(self, digest: bytes) -> bool:
        """Whether content of that name is on the device or in host memory."""
        return self.pool.find(digest) is not None or self.host.find(digest) is not None

    def cost_of_reuse(self, digest: bytes) -> int:
        """Free blocks that using content of that name takes: none if somebody holds it."""
        block = self.pool.find(digest)
        return 1 if block is None or self.pool.is_free(block) else 0

    def give_back(self, sequence: Sequence, first: int) -> None:
        """Drop what `sequence` holds in front of block `first`."""
        blocks, row = sequence.blocks[self.index], self.tables.array[sequence.row]
        for index in range(sequence.first[self.index], min(first, len(blocks))):
            self.pool.drop(blocks[index])
            blocks[index] = NO_BLOCK
            row[index] = 0
        sequence.first[self.index] = max(sequence.first[self.index], min(first, len(blocks)))

    def append(self, sequence: Sequence, block: int) -> None:
        """`block`, which is held for it, comes next in the table."""
        blocks = sequence.blocks[self.index]
        self.tables.array[sequence.row, len(blocks)] = block
        blocks.append(block)

    def skip(self, sequence: Sequence, count: int) -> None:
        """The first `count` blocks of an empty table lie behind the window."""
        sequence.blocks[self.index].extend([NO_BLOCK] * count)
        sequence.first[self.index] = count

    def own(self, sequence: Sequence, index: int) -> None:
        """Let `sequence` hold block `index` of its table alone, by a copy if others hold it too (copy on write)."""
        shared = sequence.blocks[self.index][index]
        if not self.pool.is_shared(shared):
            return
        block = self.pool.take()
        if self.store is not None:
            self.store.copy(shared, block)
        self.pool.drop(shared)
        sequence.blocks[self.index][index] = block
        self.tables.array[sequence.row, index] = block

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Drop all blocks of the table from number `length` on, the last one first: it is the first to be evicted."""
        blocks, row = sequence.blocks[self.index], self.tables.array[sequence.row]
        row[length : len(blocks)] = 0
        while len(blocks) > length:
            block = blocks.pop()
            if block != NO_BLOCK:
                self.pool.drop(block)
        sequence.first[self.index] = min(sequence.first[self.index], length)

    def fetch(self, digest: bytes) -> int | None:
        """A reference to a block with that content, brought from host memory if need be; None: no block is free."""
        block = self.pool.find(digest)
        if block is not None:
            self.pool.hold(block)
            return block
        if self.host.find(digest) is None or not self.pool.num_free:
            return None
        slot = self.host.pin_cached(digest)  # what `take` evicts must not go where this comes from
        (block,) = self.swap_in([slot])
        self.pool.name(block, digest)
        return block

    def swap_out(self, held: list[int]) -> list[int]:
        """Copies of blocks in pinned host slots; there must be enough of them."""
        slots = [self.host.pin() for _ in held]
        if self.store is not None and held:
            self.store.to_host(held, slots)
        return slots

    def swap_in(self, slots: list[int]) -> list[int]:
        """Fresh blocks with the content of pinned `slots`, which become free; there must be enough blocks."""
        blocks = [self.pool.take() for _ in slots]
        if self.store is not None and slots:
            self.store.to_device(slots, blocks)
        for slot in slots:
            self.host.unpin(slot)
        return blocks

    def check_integrity(self, sequences: list[Sequence], pinned: list[int]) -> None:
        """IntegrityError where tables, pool and host slots disagree."""
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

    def _evicted(self, block: int, name: bytes) -> None:
        slot = self.host.keep(name)
        if slot is not None and self.store is not None:
            self.store.to_host([block], [slot])

"""The pool of KV cache blocks: reference counts, and the names of reusable content."""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum

from orcastream.engine.errors import IntegrityError, OutOfBlocks


class BlockUse(IntEnum):
    """The use of a block."""

    BLANK = 0
    """Free, without reusable content."""
    REUSABLE = 1
    """Free, with reusable content."""
    HELD = 2
    SHARED = 3
    """Held by several sequences."""


class BlockPool:
    """Hands out block numbers 0 … num_blocks-1 and counts the references to each (PagedAttention, SOSP'23).

    A block is free exactly while its count is 0. Free blocks whose content has a name (a digest of all tokens up to
    its end) wait in `_reusable`, least recently used first, for a sequence that can use that content; the others wait
    in `_blank`. `take` prefers blank blocks and then evicts the least recently used. Every operation is O(1) per block.
    """

    def __init__(self, num_blocks: int, evicted: Callable[[list[int], list[bytes]], None] | None = None) -> None:
        """`evicted` is called with the blocks, and their names, whose content is about to be overwritten."""
        if num_blocks < 1:
            raise ValueError(f"a pool of {num_blocks} blocks: it must have at least 1")
        self.num_blocks = num_blocks
        self._evicted = evicted
        self._blank: deque[int] = deque(range(num_blocks))
        self._reusable: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._by_name: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Free blocks, including reusable ones."""
        return len(self._blank) + len(self._reusable)

    @property
    def num_used(self) -> int:
        """Held blocks."""
        return self.num_blocks - self.num_free

    @property
    def num_reusable(self) -> int:
        """Free blocks whose content can be reused."""
        return len(self._reusable)

    def take(self, count: int) -> list[int]:
        """Return blocks with one reference and no name; OutOfBlocks, and nothing changed, if too few are free."""
        if count > self.num_free:
            raise OutOfBlocks(f"{count} blocks are needed, {self.num_free} of {self.num_blocks} are free")
        blank = min(count, len(self._blank))
        blocks = [self._blank.popleft() for _ in range(blank)]
        evicted = [self._reusable.popitem(last=False)[0] for _ in range(count - blank)]
        if evicted:
            names = [name for block in evicted if (name := self._names[block]) is not None]
            if self._evicted is not None:
                self._evicted(evicted, names)
            for block in evicted:
                self.unname(block)
        for block in (blocks := blocks + evicted):
            self._references[block] = 1
        return blocks

    def take_one(self) -> int:
        """Do as `take(1)`, with a fast path for the single blank block that most decode steps need."""
        if not self._blank:
            return self.take(1)[0]
        block = self._blank.popleft()
        self._references[block] = 1
        return block

    def hold(self, block: int) -> None:
        """Add a reference to `block`, which is held or reusable."""
        if not self._references[block]:
            if block not in self._reusable:
                raise IntegrityError(f"block {block} is free and cannot be shared")
            del self._reusable[block]
        self._references[block] += 1

    def drop(self, block: int) -> None:
        """Remove a reference to `block`; without references it is reusable if it has a name, else blank."""
        count = self._references[block]
        if not count:
            raise IntegrityError(f"block {block} was released twice")
        self._references[block] = count - 1
        if count == 1:
            if self._names[block] is None:
                self._blank.append(block)
            else:
                self._reusable[block] = None

    def is_shared(self, block: int) -> bool:
        """Whether it has several holders, so that a writer needs a copy."""
        return self._references[block] > 1

    def is_free(self, block: int) -> bool:
        """Whether it has no holder."""
        return not self._references[block]

    def find(self, name: bytes) -> int | None:
        """Return the block with that content, or None."""
        return self._by_name.get(name)

    def name(self, block: int, name: bytes) -> None:
        """Name the content of a held block. If another block already has that name, this one stays nameless."""
        if name not in self._by_name and self._names[block] is None:
            self._names[block] = name
            self._by_name[name] = block

    def names(self) -> Collection[bytes]:
        """Return the names of all blocks."""
        return self._by_name.keys()

    def unname(self, block: int) -> None:
        """Remove its name: its content must not be reused."""
        name = self._names[block]
        if name is not None:
            self._names[block] = None
            del self._by_name[name]
            if block in self._reusable:
                del self._reusable[block]
                self._blank.append(block)

    def uses(self, stride: int) -> list[BlockUse]:
        """Return the use of every `stride`-th block. Any thread may call this; states may be from nearby moments."""
        references, names = self._references[::stride], self._names[::stride]
        return [
            (BlockUse.SHARED if count > 1 else BlockUse.HELD)
            if count
            else (BlockUse.BLANK if name is None else BlockUse.REUSABLE)
            for count, name in zip(references, names, strict=True)
        ]

    def check_integrity(self, held: Sequence[int]) -> None:
        """Raise IntegrityError unless `held`, every block once per holder, accounts for every reference."""
        counts = [0] * self.num_blocks
        for block in held:
            counts[block] += 1
        if counts != self._references:
            wrong = [block for block in range(self.num_blocks) if counts[block] != self._references[block]]
            raise IntegrityError(f"reference counts of blocks {wrong[:8]} do not match the tables")
        blank, free = set(self._blank), {block for block, count in enumerate(counts) if not count}
        if len(blank) != len(self._blank) or blank & set(self._reusable) or blank | set(self._reusable) != free:
            raise IntegrityError("the free lists are not the set of blocks that nobody holds")
        if {block: name for block, name in enumerate(self._names) if name is not None} != {
            block: name for name, block in self._by_name.items()
        }:
            raise IntegrityError("names of blocks and blocks by name differ")
        if any(self._names[block] is None for block in self._reusable) or any(
            self._names[block] is not None for block in blank
        ):
            raise IntegrityError("a blank block has a name, or a reusable one has none")

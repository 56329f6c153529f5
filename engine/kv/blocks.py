"""The pool of KV cache blocks: who may write where, and what stays for reuse."""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum

from orcastream.engine.errors import IntegrityError, OutOfBlocks


class BlockUse(IntEnum):
    """What a block is used for."""

    BLANK = 0
    """Nobody holds it, and its content is of no use."""
    REUSABLE = 1
    """Nobody holds it, and its content can be used again."""
    HELD = 2
    SHARED = 3
    """Several hold it."""


class BlockPool:
    """Hands out block numbers 0 … num_blocks-1 and counts the references to each (PagedAttention, SOSP'23).

    A block is free exactly while its count is 0. Free blocks whose content has a name (a digest of all tokens up to
    its end) wait in `_reusable`, the least recently used in front, for somebody who can use that content; the others
    wait in `_blank`. `take` prefers blank ones and then evicts the least recently used. Every operation is O(1)
    per block.
    """

    def __init__(self, num_blocks: int, evicted: Callable[[list[int], list[bytes]], None] | None = None) -> None:
        """`evicted` is told of the blocks, with their names, whose content is about to be overwritten."""
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
        """Blocks that nobody holds, reusable ones among them."""
        return len(self._blank) + len(self._reusable)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_free

    @property
    def num_reusable(self) -> int:
        """Free blocks whose content can be used again."""
        return len(self._reusable)

    def take(self, count: int) -> list[int]:
        """Blocks with one reference and no name; OutOfBlocks, and nothing changed, where too few are free."""
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
        """As `take(1)`: the blank block that most decode steps need, without more ado."""
        if not self._blank:
            return self.take(1)[0]
        block = self._blank.popleft()
        self._references[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One more holds `block`, which is held already or reusable."""
        if not self._references[block]:
            if block not in self._reusable:
                raise IntegrityError(f"block {block} is free and cannot be shared")
            del self._reusable[block]
        self._references[block] += 1

    def drop(self, block: int) -> None:
        """One fewer holds `block`; the last one leaves it reusable if it has a name."""
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
        """Whether more than one holds it, so that a writer needs a copy."""
        return self._references[block] > 1

    def is_free(self, block: int) -> bool:
        """Whether nobody holds it."""
        return not self._references[block]

    def find(self, name: bytes) -> int | None:
        """The block with that content."""
        return self._by_name.get(name)

    def name(self, block: int, name: bytes) -> None:
        """Say what a held block contains. Where another block has that name already, this one stays nameless."""
        if name not in self._by_name and self._names[block] is None:
            self._names[block] = name
            self._by_name[name] = block

    def names(self) -> Collection[bytes]:
        """All names that blocks have."""
        return self._by_name.keys()

    def unname(self, block: int) -> None:
        """Its content is of no use any more."""
        name = self._names[block]
        if name is not None:
            self._names[block] = None
            del self._by_name[name]
            if block in self._reusable:
                del self._reusable[block]
                self._blank.append(block)

    def uses(self, stride: int) -> list[BlockUse]:
        """What every `stride`-th block is used for. Any thread may ask: they may be those of neighbouring moments."""
        references, names = self._references[::stride], self._names[::stride]
        return [
            (BlockUse.SHARED if count > 1 else BlockUse.HELD)
            if count
            else (BlockUse.BLANK if name is None else BlockUse.REUSABLE)
            for count, name in zip(references, names, strict=True)
        ]

    def check_integrity(self, held: Sequence[int]) -> None:
        """IntegrityError unless `held`, every block once per holder, accounts for every reference."""
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

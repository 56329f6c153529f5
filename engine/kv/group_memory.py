"""The blocks and host slots of one layer group, and what they contain."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orcastream.engine.kv.blocks import BlockPool
from orcastream.engine.kv.host import HostSlots

if TYPE_CHECKING:
    from orcastream.engine.kv.store import KVStore


class GroupMemory:
    """Pool, host slots and tensors of the layers with one window; copies blocks between them.

    The half of GroupCache that knows no sequences.
    """

    def __init__(self, num_blocks: int, num_host_slots: int, store: "KVStore | None") -> None:
        """Without a `store`, nothing is ever copied."""
        self.pool = BlockPool(num_blocks, self._evicted if num_host_slots else None)
        self.host = HostSlots(num_host_slots)
        self.store = store

    def has(self, digest: bytes) -> bool:
        """Whether content with that name is on the device or in host memory."""
        return self.pool.find(digest) is not None or self.host.find(digest) is not None

    def names(self) -> list[bytes]:
        """Return the names of all content on the device and in host memory."""
        return [*self.pool.names(), *self.host.names()]

    def forget(self, digest: bytes) -> None:
        """Forget the content with that name: it must not be reused."""
        block = self.pool.find(digest)
        if block is not None:
            self.pool.unname(block)
        self.host.forget(digest)

    def can_copy(self, digest: bytes) -> bool:
        """Whether that content is on the device, and another block is free for a copy."""
        block = self.pool.find(digest)
        return block is not None and self.pool.num_free > self.pool.is_free(block)

    def swap_out(self, held: list[int]) -> list[int] | None:
        """Copy blocks to pinned host slots and return these; there must be enough free slots.

        None, and nothing changed, if memory does not suffice for the copies.
        """
        slots = [self.host.pin() for _ in held]
        if self.store is not None and held and not self.store.to_host(held, slots):
            self.drop(slots)
            return None
        return slots

    def drop(self, slots: Sequence[int]) -> None:
        """Free pinned host slots, whose content is not needed any more."""
        for slot in slots:
            self.host.unpin(slot)

    def _cost_of_reuse(self, digest: bytes) -> int:
        """Return the free blocks that using that content takes: 0 if its block is held already, else 1."""
        block = self.pool.find(digest)
        return 1 if block is None or self.pool.is_free(block) else 0

    def _copy(self, held: int) -> int:
        """Return a fresh block with the content of `held`, which loses one reference."""
        block = self.pool.take_one()
        if self.store is not None:
            self.store.copy(held, block)
        self.pool.drop(held)
        return block

    def _bring(self, slots: list[int], names: Sequence[bytes]) -> list[int] | None:
        """Return fresh blocks with the content of pinned `slots`, which become free; the first ones get `names`.

        None if memory does not suffice for the copies: the slots are free all the same.
        """
        blocks = self.pool.take(len(slots))
        moved = self.store is None or not slots or self.store.to_device(slots, blocks)
        self.drop(slots)
        if not moved:
            for block in blocks:
                self.pool.drop(block)
            return None
        for block, name in zip(blocks, names, strict=False):
            self.pool.name(block, name)
        return blocks

    def _evicted(self, blocks: list[int], names: list[bytes]) -> None:
        """Copy content that is about to be overwritten to host memory, as far as it has room, all in one copy.

        It is lost if memory does not suffice for that copy.
        """
        kept = [(block, self.host.keep(name)) for block, name in zip(blocks, names, strict=True)]
        last = {slot: block for block, slot in kept if slot is not None}
        if self.store is not None and last and not self.store.to_host(list(last.values()), list(last)):
            for name, (_, slot) in zip(names, kept, strict=True):
                if slot is not None:
                    self.host.forget(name)

"""Block slots in host memory, for swapped-out sequences and for cached blocks evicted from the device."""

from collections import OrderedDict
from collections.abc import Collection

from orcastream.engine.errors import IntegrityError


class HostSlots:
    """Hands out slots 0 … num_slots-1 of one layer group's host memory.

    A slot is blank, pinned (holds a block of a swapped-out sequence), or cached (holds named content that may be
    overwritten, least recently used first). Every operation is O(1).
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._blank = list(range(num_slots))
        self._pinned: set[int] = set()
        self._cached: OrderedDict[bytes, int] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Slots that can be pinned."""
        return self.num_slots - len(self._pinned)

    def pin(self) -> int:
        """Return a slot that is kept until `unpin`; one must be free."""
        slot = self._blank.pop() if self._blank else self._cached.popitem(last=False)[1]
        self._pinned.add(slot)
        return slot

    def unpin(self, slot: int) -> None:
        """Free a slot whose sequence is back on the device, or has ended."""
        self._pinned.remove(slot)
        self._blank.append(slot)

    def keep(self, name: bytes) -> int | None:
        """Return a slot for that content, which the caller writes; None if it is here already, or all are pinned."""
        if name in self._cached:
            self._cached.move_to_end(name)
            return None
        if not self._blank and not self._cached:
            return None
        slot = self._blank.pop() if self._blank else self._cached.popitem(last=False)[1]
        self._cached[name] = slot
        return slot

    def names(self) -> Collection[bytes]:
        """Return the names of all cached slots."""
        return self._cached.keys()

    def find(self, name: bytes) -> int | None:
        """Return the slot with that content, or None."""
        return self._cached.get(name)

    def pin_cached(self, name: bytes) -> int:
        """Pin the slot with that content, which must exist, while it is copied back."""
        slot = self._cached.pop(name)
        self._pinned.add(slot)
        return slot

    def forget(self, name: bytes) -> None:
        """Forget the content with that name: it must not be reused."""
        slot = self._cached.pop(name, None)
        if slot is not None:
            self._blank.append(slot)

    def check_integrity(self, pinned: list[int]) -> None:
        """Raise IntegrityError unless `pinned` are the pinned slots, and every slot is in one place."""
        if sorted(pinned) != sorted(self._pinned):
            raise IntegrityError("pinned host slots and swapped-out sequences differ")
        if sorted([*self._blank, *self._pinned, *self._cached.values()]) != list(range(self.num_slots)):
            raise IntegrityError("a host slot is lost, or in two places")

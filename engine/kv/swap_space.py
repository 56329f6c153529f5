"""The sequences that are swapped out to host memory."""

from collections.abc import Sequence as Items

from orcastream.engine.kv.group import GroupCache
from orcastream.engine.kv.sequence import Sequence, SwappedSequence


class SwapSpace:
    """Keeps whole sequences in pinned host slots of all layer groups until they are restored or dropped."""

    def __init__(self, groups: Items[GroupCache]) -> None:
        self._groups = groups
        self._swapped: set[SwappedSequence] = set()

    def has_room(self, sequence: Sequence) -> bool:
        """Whether there is a slot for each block that `sequence` holds."""
        return all(group.num_held(sequence) <= group.host.num_free for group in self._groups)

    def store(self, sequence: Sequence) -> SwappedSequence | None:
        """Copy the blocks of `sequence`, for which there must be room; the sequence keeps its blocks.

        None, and nothing changed, if memory does not suffice for the copies.
        """
        slots: list[list[int]] = []
        for group in self._groups:
            own = group.swap_out(sequence.blocks[group.index][sequence.first[group.index] :])
            if own is None:
                for before, held in zip(self._groups, slots, strict=False):
                    before.drop(held)
                return None
            slots.append(own)
        swapped = SwappedSequence(
            len(sequence),
            list(sequence.first),
            slots,
            sequence.chain,
            sequence.num_named,
            sequence.trusted,
        )
        self._swapped.add(swapped)
        return swapped

    def restore(self, swapped: SwappedSequence, sequence: Sequence, num_named: int) -> bool:
        """Fill the empty tables of `sequence`; those of the first `num_named` blocks still on the device are shared.

        Returns False if memory does not suffice for the copies: some tables are filled, and `swapped` is lost.
        """
        self._swapped.remove(swapped)
        filled = True
        for group, first, slots in zip(self._groups, swapped.first, swapped.slots, strict=True):
            if not filled:
                group.drop(slots)
                continue
            group.skip(sequence, first)
            filled = group.swap_in(sequence, slots, swapped.chain.digests[first:num_named])
        return filled

    def drop(self, swapped: SwappedSequence) -> None:
        """Free the slots of `swapped`."""
        self._swapped.remove(swapped)
        for group, slots in zip(self._groups, swapped.slots, strict=True):
            group.drop(slots)

    def distrust(self, root: bytes) -> None:
        """Trust no sequence whose chain starts with `root`: what it names must not be reused."""
        for swapped in self._swapped:
            if swapped.chain.root == root:
                swapped.trusted = False

    def pinned(self, index: int) -> list[int]:
        """Return the slots that sequences hold in group `index`."""
        return [slot for swapped in self._swapped for slot in swapped.slots[index]]

"""Swapping of preempted requests to host memory and back."""

import time

from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.sequence import Sequence, SwappedSequence
from orcastream.engine.request import Request
from orcastream.engine.schedule.preemption import PreemptionChoice


class Swapper:
    """Copies the blocks of preempted requests, and reports the copy times to the choice of swap or recompute."""

    def __init__(self, cache: KVCache, choice: PreemptionChoice) -> None:
        self._cache = cache
        self._choice = choice
        self.swaps = 0
        """Number of requests swapped out."""

    def out(self, kv: Sequence) -> SwappedSequence | None:
        """Move `kv` to host memory; return None if it has no room, or an empty cache could not take `kv` back.

        None, too, if memory does not suffice for the copies.
        """
        could_return = all(
            len(blocks) - first < group.pool.num_blocks
            for blocks, first, group in zip(kv.blocks, kv.first, self._cache.groups, strict=True)
        )
        if not could_return or not self._cache.can_swap_out(kv):
            return None
        started_s = time.monotonic()
        swapped = self._cache.swap_out(kv)
        if swapped is None:
            return None
        self._choice.copied_out(swapped.num_blocks, time.monotonic() - started_s)
        self.swaps += 1
        return swapped

    def back(self, request: Request, swapped: SwappedSequence) -> bool:
        """Let `request` continue where it was; there must be room.

        Returns False if memory does not suffice for the copies: `request` must be recomputed.
        """
        started_s = time.monotonic()
        kv = self._cache.swap_in(swapped)
        if kv is None:
            request.start_over()
            return False
        request.resume(kv)
        self._choice.copied_back(swapped.num_blocks, time.monotonic() - started_s)
        return True

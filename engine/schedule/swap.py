"""Requests that leave for host memory, and come back."""

import time

from orcastream.engine.kv.cache import KVCache
from orcastream.engine.kv.sequence import Sequence, SwappedSequence
from orcastream.engine.request import Request
from orcastream.engine.schedule.preemption import PreemptionChoice


class Swapper:
    """Copies what preempted requests hold, and tells the choice between swap and recompute how long that took."""

    def __init__(self, cache: KVCache, choice: PreemptionChoice) -> None:
        self._cache = cache
        self._choice = choice
        self.swaps = 0
        """Requests that went out."""

    def out(self, kv: Sequence) -> SwappedSequence | None:
        """What `kv` held, in host memory; None where there is no room, or an empty cache could not take it back."""
        could_return = all(
            len(blocks) - first < group.pool.num_blocks
            for blocks, first, group in zip(kv.blocks, kv.first, self._cache.groups, strict=True)
        )
        if not could_return or not self._cache.can_swap_out(kv):
            return None
        started_s = time.monotonic()
        swapped = self._cache.swap_out(kv)
        self._choice.copied_out(swapped.num_blocks, time.monotonic() - started_s)
        self.swaps += 1
        return swapped

    def back(self, request: Request, swapped: SwappedSequence) -> None:
        """`request` goes on where it was; there must be room."""
        started_s = time.monotonic()
        request.resume(self._cache.swap_in(swapped))
        self._choice.copied_back(swapped.num_blocks, time.monotonic() - started_s)

"""The choice of how a request is preempted: swapped to host memory, or recomputed."""

from collections import deque
from statistics import median

from orcastream.engine.request import Request
from orcastream.engine.schedule.timing import IterationTimes

_MEASURED = 3
"""Copies measured in each direction before swapping is compared with recomputing."""
_KEPT = 9
_AGAIN = 16
"""Of the preemptions for which recomputing is cheaper, every 16th swaps nevertheless, in case the machine has
changed."""


class PreemptionChoice:
    """Recompute, swap, or whichever is measured to be cheaper (auto).

    The cost of a swap is the median time of recent copies per block, out and back, times the blocks; the cost of
    recomputing follows from IterationTimes. The first preemptions swap in order to measure copies. Blocks that a
    recompute may find in the prefix cache are not counted: when memory is short, they are evicted next.
    """

    def __init__(self, kind: str = "recompute", times: IterationTimes | None = None) -> None:
        """`kind` is a value of EngineConfig.preemption."""
        self.kind = kind
        self._times = times or IterationTimes()
        self._out: deque[float] = deque(maxlen=_KEPT)
        self._back: deque[float] = deque(maxlen=_KEPT)
        self._recomputed = 0

    def prefers_swap(self, request: Request) -> bool:
        """Whether running `request` should be swapped to host memory if it is preempted; ignores whether it can."""
        if self.kind != "auto":
            return self.kind == "swap"
        assert request.kv is not None
        recompute_s = self._times.prefill_s(request.num_computed)
        if recompute_s is None or min(len(self._out), len(self._back)) < _MEASURED:
            return True
        if request.kv.num_held * (median(self._out) + median(self._back)) < recompute_s:
            return True
        self._recomputed += 1
        return self._recomputed % _AGAIN == 0

    def copied_out(self, num_blocks: int, seconds: float) -> None:
        """Record that `num_blocks` were copied to host memory in `seconds`."""
        self._out.append(seconds / max(1, num_blocks))

    def copied_back(self, num_blocks: int, seconds: float) -> None:
        """Record that `num_blocks` were copied back in `seconds`."""
        self._back.append(seconds / max(1, num_blocks))

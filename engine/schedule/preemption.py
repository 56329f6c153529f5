"""How a preempted request leaves: to host memory, or to be computed again."""

from collections import deque
from statistics import median

from orcastream.engine.request import Request
from orcastream.engine.schedule.timing import IterationTimes

_MEASURED = 3
"""Copies in each direction that are made before they are compared with anything."""
_KEPT = 9
_AGAIN = 16
"""Every so manieth preemption is a copy even where computing again was cheaper, for the machine may have changed."""


class PreemptionChoice:
    """Recompute, swap, or what is measured to be cheaper (auto).

    The price of a swap is the median time of late copies per block, out and back, times the blocks; that of computing
    again follows from IterationTimes. The first copies are made to be measured. That a recompute may find some of its
    blocks in the prefix cache is not counted: where memory is short, they are the next to be evicted.
    """

    def __init__(self, kind: str = "recompute", times: IterationTimes | None = None) -> None:
        """`kind` is a value of EngineConfig.preemption."""
        self.kind = kind
        self._times = times or IterationTimes()
        self._out: deque[float] = deque(maxlen=_KEPT)
        self._back: deque[float] = deque(maxlen=_KEPT)
        self._recomputed = 0

    def prefers_swap(self, request: Request) -> bool:
        """Whether running `request`, if it is preempted, should go to host memory; whether it can is not asked."""
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
        """`num_blocks` went to host memory in `seconds`."""
        self._out.append(seconds / max(1, num_blocks))

    def copied_back(self, num_blocks: int, seconds: float) -> None:
        """`num_blocks` came back in `seconds`."""
        self._back.append(seconds / max(1, num_blocks))

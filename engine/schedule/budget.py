"""Token budgets: how many tokens an iteration may compute."""

from collections.abc import Sequence

from orcastream.engine.request import Request, RequestState
from orcastream.engine.schedule.timing import IterationTimes


class TokenBudget:
    """A fixed number of tokens per iteration."""

    def __init__(self, most: int) -> None:
        self.most = most

    def tokens(self, running: Sequence[Request]) -> int:
        """Return the most tokens of the next iteration, including the decode steps of `running`."""
        return self.most


class AdaptiveBudget(TokenBudget):
    """As many tokens as keep the time between tokens under its target.

    Sarathi-Serve (OSDI'24) fixes the chunk in advance by profiling; here the time of an iteration is learned while
    serving. The target is the lowest `tbt_slo_ms` of the running decodes, or else `target_ms`. Without a target, or if
    nothing decodes, the whole budget is used. Prefills get at least one block per iteration, so that they always make
    progress, however tight the target; decode steps are always computed.
    """

    def __init__(self, most: int, *, block_size: int, times: IterationTimes, target_ms: float | None = None) -> None:
        super().__init__(most)
        self._block_size = block_size
        self._times = times
        self._target_ms = target_ms

    def tokens(self, running: Sequence[Request]) -> int:
        """Return the most tokens of the next iteration; see the class."""
        decodes = context = start = 0
        tightest: float | None = None
        for request in running:
            if request.state is not RequestState.INCREMENT:
                start = max(start, request.num_computed)
                continue
            decodes += 1
            context += request.num_computed
            target = request.tbt_slo_ms
            if target is not None and (tightest is None or target < tightest):
                tightest = target
        if tightest is None:
            tightest = self._target_ms
        if not decodes or tightest is None:
            return self.most
        prefill = self._times.prefill_within(tightest / 1000, decodes, context, start)
        if prefill is None:
            return self.most
        return min(self.most, decodes + max(prefill, self._block_size))

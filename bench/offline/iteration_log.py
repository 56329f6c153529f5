"""The engine's own statistics after each iteration of a run."""

from typing import Any

from orcastream.bench.figures.spread import in_ms
from orcastream.engine import OrcaEngine


class IterationLog:
    """Gauges summed over iterations, and totals since the log's creation."""

    def __init__(self, engine: OrcaEngine) -> None:
        self._engine = engine
        self._before = engine.stats()
        self._select_s: list[float] = []
        self._waste: list[float] = []
        self._use: list[float] = []
        self._batch_sizes: list[int] = []
        self._last = engine.last_iteration

    def note(self) -> None:
        """Record a step; one that finished no iteration adds nothing."""
        last = self._engine.last_iteration
        if last is None or last is self._last:
            return
        self._last = last
        stats = self._engine.stats()
        self._select_s.append(last.select_s)
        self._batch_sizes.append(len(last.requests))
        self._use.append(stats.blocks_used / stats.blocks_total)
        if stats.slots_held:
            self._waste.append(1 - stats.slots_used / stats.slots_held)

    def figures(self) -> dict[str, Any]:
        """Return prompt tokens computed and cached, KV use and waste, preemptions, swaps, and the scheduler's time.

        `kv_waste` is the share of the running requests' token slots that are empty, `kv_use` the share of blocks in
        use; both are means over the iterations.
        """
        before, after = self._before, self._engine.stats()
        return {
            "prompt_tokens_computed": after.prompt_tokens - before.prompt_tokens,
            "prompt_tokens_cached": after.cached_tokens - before.cached_tokens,
            "kv_waste": _mean(self._waste),
            "kv_use": _mean(self._use),
            "kv_tokens_total": self._engine.limits.max_cached_tokens,
            "preemptions": after.preemptions - before.preemptions,
            "swaps": after.swaps - before.swaps,
            "iterations": after.iterations - before.iterations,
            "batch_size": _mean(self._batch_sizes),
            "scheduler_ms": in_ms(self._select_s),
        }


def _mean(values: list[float] | list[int]) -> float | None:
    return sum(values) / len(values) if values else None

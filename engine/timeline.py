"""The timestamps of one request."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Timeline:
    """When a request changed its state, in seconds of `time.monotonic()`; None means not yet."""

    submitted_s: float | None = None
    scheduled_s: float | None = None
    """First admission to a batch."""
    first_token_s: float | None = None
    """First token of this engine; tokens that another engine generated before do not count."""
    finished_s: float | None = None
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """When each chunk had been computed, and its tokens; includes chunks recomputed after a preemption."""
    preempted_s: list[float] = field(default_factory=list)

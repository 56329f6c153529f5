"""Results of an overload: requests served in time, refusals and their latency, and the time to recovery."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orcastream.bench.figures.outcome import Outcome
from orcastream.bench.figures.spread import Spread

MOST_REFUSAL_S = 0.050
"""Goal for the 99th percentile of the time to a refusal."""
MOST_RECOVERY_S = 10.0
_AS_BEFORE = 2.0
"""Service has recovered once first tokens take at most this multiple of the slowest under normal load."""


@dataclass(frozen=True)
class Report:
    """`capacity` in requests per second; outcomes of each phase by arrival. `recovery_s`: the end of the overload."""

    capacity: float
    normal: Sequence[Outcome]
    overload: Sequence[Outcome]
    after: Sequence[Outcome]
    deadline_s: float
    recovery_s: float

    @property
    def seconds(self) -> float:
        """Duration of the overload."""
        return self.recovery_s - self.overload[0].arrived_s

    @property
    def accepted(self) -> list[Outcome]:
        """Requests that were not refused during the overload."""
        return [outcome for outcome in self.overload if outcome.refused_after_s is None]

    @property
    def in_time(self) -> int:
        """Number of accepted requests whose whole answer arrived before their deadline."""
        return sum(outcome.e2e_s is not None and outcome.e2e_s <= self.deadline_s for outcome in self.accepted)

    @property
    def refusals(self) -> Spread | None:
        """Times from a refused request to its refusal."""
        return Spread.of(one.refused_after_s for one in self.overload if one.refused_after_s is not None)

    @property
    def recovered_after_s(self) -> float | None:
        """Seconds after the overload from which every request got its first token as under normal load.

        None if the last one did not.
        """
        slowest_s = max((outcome.ttft_s for outcome in self.normal if outcome.ttft_s is not None), default=0.0)
        late = [one for one in self.after if one.ttft_s is None or one.ttft_s > _AS_BEFORE * slowest_s]
        if not late:
            return 0.0
        following = [one.arrived_s for one in self.after if one.arrived_s > late[-1].arrived_s]
        return following[0] - self.recovery_s if following else None

    @property
    def _completed(self) -> int:
        """Number of answers that were complete before the overload ended."""
        return sum(one.ended_s is not None and one.ended_s <= self.recovery_s for one in self.accepted if one.complete)

    def figures(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        refusals, e2e = self.refusals, Spread.of(one.e2e_s for one in self.accepted if one.e2e_s is not None)
        return {
            "capacity_requests_per_s": self.capacity,
            "requests": len(self.overload),
            "accepted": len(self.accepted),
            "in_time": self.in_time,
            "refused": dict(Counter(one.error for one in self.overload if one.refused_after_s is not None)),
            "failed": dict(Counter(one.error for one in self.accepted if one.error is not None)),
            "refusal_ms": None if refusals is None else refusals.to_ms(),
            "accepted_e2e_ms": None if e2e is None else e2e.to_ms(),
            "completed_per_s": self._completed / self.seconds,
            "recovered_after_s": self.recovered_after_s,
            "normal_ttft_s": [one.ttft_s for one in self.normal],
            "after_ttft_s": [(one.arrived_s - self.recovery_s, one.ttft_s) for one in self.after],
        }

    def failed(self) -> list[str]:
        """Return the missed goals as sentences."""
        complaints = []
        if not self.refusals:
            complaints.append("nothing was refused: the load was not an overload")
        elif self.refusals.p99 > MOST_REFUSAL_S:
            complaints.append(f"refusals took {self.refusals.p99 * 1000:.0f} ms at the 99th percentile")
        if self.in_time < len(self.accepted):
            complaints.append(
                f"{len(self.accepted) - self.in_time} of {len(self.accepted)} accepted were not answered in time"
            )
        recovered_s = self.recovered_after_s
        if recovered_s is None or recovered_s > MOST_RECOVERY_S:
            complaints.append(f"service had not recovered within {MOST_RECOVERY_S:.0f} s")
        return complaints

    def summary(self) -> str:
        """Return the figures in a few lines."""
        figures, refusals = self.figures(), self.refusals
        e2e = figures["accepted_e2e_ms"]
        lines = [
            f"{figures['requests']} requests at {figures['requests'] / self.seconds:.1f}/s, "
            f"capacity {self.capacity:.2f}/s",
            f"{figures['accepted']} accepted, {self.in_time} of them answered within {self.deadline_s:g} s",
            *(f"{count} refused: {kind}" for kind, count in figures["refused"].items()),
            *(f"{count} accepted and failed: {kind}" for kind, count in figures["failed"].items()),
        ]
        if e2e is not None:
            lines.append(f"accepted, end to end: p50 {e2e['p50'] / 1000:.1f} s, p99 {e2e['p99'] / 1000:.1f} s")
        if refusals is not None:
            lines.append(f"refusals: p50 {refusals.p50 * 1000:.1f} ms, p99 {refusals.p99 * 1000:.1f} ms")
        recovered_s = self.recovered_after_s
        lines.append("not recovered" if recovered_s is None else f"recovered {recovered_s:.1f} s after the overload")
        return "\n".join(lines)
